import { afterAll, beforeAll, test } from 'vitest';
import { curl } from './http2/curl.ts';
import { undici } from './http2/undici.ts';
import { startWalkthroughGateway, type WalkthroughGateway } from './http2/walkthrough.ts';

/** All clients, with up to 10,000 requests each: http2-clients.full.test.ts. */
let at: WalkthroughGateway;
beforeAll(async () => {
  at = await startWalkthroughGateway();
});
afterAll(() => at?.close());

test.each([curl, undici])('$name: the walkthrough and 300 requests over HTTP/2', async (client) => {
  await at.check(client, 300);
});
