import { afterAll, beforeAll, test } from 'vitest';
import { chromiumClient } from './http2/chromium-client.ts';
import { curl } from './http2/curl.ts';
import { goClient, goClientProgram } from './http2/go-client.ts';
import { httpx } from './http2/httpx-client.ts';
import { javaClient } from './http2/java-client.ts';
import { h2load, nghttp } from './http2/nghttp2-clients.ts';
import { undici } from './http2/undici.ts';
import { startWalkthroughGateway, type WalkthroughGateway } from './http2/walkthrough.ts';

const ITEMS = 10_000;
const CLIENTS = [curl, goClient, javaClient, chromiumClient, undici, httpx, h2load, nghttp];

const missingGo = goClientProgram.missing;
if (missingGo !== undefined) console.log(`The Go client is skipped. ${missingGo}`);

let at: WalkthroughGateway;
beforeAll(async () => {
  at = await startWalkthroughGateway();
});
afterAll(() => at?.close());

test.each(CLIENTS.filter((client) => client !== goClient || missingGo === undefined))(
  '$name: the walkthrough and 10,000 requests over HTTP/2',
  async (client) => {
    await at.check(client, ITEMS);
  },
  // A program may have to be built first.
  1_200_000,
);
