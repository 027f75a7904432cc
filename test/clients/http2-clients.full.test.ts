import { afterAll, beforeAll, test } from 'vitest';
import { chromiumClient } from './http2/chromium-client.ts';
import { curl } from './http2/curl.ts';
import { goClient, goClientProgram } from './http2/go-client.ts';
import { httpx } from './http2/httpx-client.ts';
import { javaClient } from './http2/java-client.ts';
import { h2load, nghttp } from './http2/nghttp2-clients.ts';
import { undici } from './http2/undici.ts';
import { startWalkthroughGateway, type WalkthroughGateway } from './http2/walkthrough.ts';

/** Chromium and httpx need 3 to 4 ms of CPU for each request. */
const CLIENTS = [
  ...[curl, goClient, javaClient, undici, h2load, nghttp].map((client) => ({ client, items: 10_000 })),
  ...[chromiumClient, httpx].map((client) => ({ client, items: 3_000 })),
];

const missingGo = goClientProgram.missing;
if (missingGo !== undefined) console.log(`The Go client is skipped. ${missingGo}`);

let at: WalkthroughGateway;
beforeAll(async () => {
  at = await startWalkthroughGateway();
});
afterAll(() => at?.close());

test.each(CLIENTS.filter(({ client }) => client !== goClient || missingGo === undefined))(
  '$client.name: the walkthrough and $items requests over HTTP/2',
  async ({ client, items }) => {
    await at.check(client, items);
  },
  // A program may have to be built first.
  1_200_000,
);
