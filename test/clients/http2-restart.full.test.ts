import { createRequire } from 'node:module';
import * as undici8 from 'undici';
import { expect, test } from 'vitest';
import { installNpmPackage } from '../support/npm-package.ts';
import { startHttpx, startNodeHttp2, startUndici, waitForMore } from './http2/load-clients.ts';
import { startReplicas } from './http2/restart.ts';

const UNDICI_7 = '7.30.2';
const RESPONSE_MS = 10;
const PAUSE_MS = 20;

test('a rolling restart under constant load loses no request of HTTP/2 clients', async (context) => {
  const require = createRequire(import.meta.url);
  const undici7 = require(await installNpmPackage(context, 'undici', UNDICI_7)) as typeof undici8;
  const replicas = await startReplicas(RESPONSE_MS);
  const target = { url: replicas.url, caFile: replicas.folder.file('ca.pem') };
  const clients = [
    startNodeHttp2(target, { name: 'node:http2', concurrency: 1 }),
    startNodeHttp2(target, { name: 'node:http2, several requests at a time', concurrency: 3 }),
    startNodeHttp2(target, { name: 'node:http2 with pauses', concurrency: 1, pauseMs: PAUSE_MS }),
    startUndici(undici8, target, { name: 'undici 8, several requests at a time', concurrency: 3 }),
    startUndici(undici7, target, { name: 'undici 7', concurrency: 1, pauseMs: PAUSE_MS }),
    startUndici(undici7, target, { name: 'undici 7 with long pauses', concurrency: 1, pauseMs: 600 }),
    await startHttpx(target, { name: 'httpx', concurrency: 1 }),
    await startHttpx(target, { name: 'httpx, synchronous', concurrency: 0 }),
    await startHttpx(target, { name: 'httpx with pauses', concurrency: 1, pauseMs: PAUSE_MS }),
    await startHttpx(target, { name: 'httpx, long pauses', concurrency: 1, pauseMs: 600 }),
  ];
  await replicas.restart((count) => waitForMore(clients, Math.ceil(count / 25)));
  for (const { stop } of clients) await stop();
  expect(clients.map(({ name, failures }) => [name, failures])).toEqual(clients.map(({ name }) => [name, []]));
}, 240_000);
