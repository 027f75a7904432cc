import { createServer } from 'node:net';
import { afterEach, beforeEach, onTestFinished, test, vi } from 'vitest';
import { startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw } from '../support/raw-client.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] }));
afterEach(() => void vi.useRealTimers());

const PARTS = 6;
const PART = 'x'.repeat(1_000);

test('an upload that makes progress is not aborted after the response has begun', async () => {
  let received = 0;
  const server = await listenTcp(
    createServer((socket) => {
      socket.on('error', () => {});
      socket.on('data', (bytes) => {
        if (received === 0) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n');
        received += bytes.toString('latin1').replace(/^[^]*\r\n\r\n/, '').length;
        if (received === PARTS * PART.length) socket.write('done');
      });
    }),
  );
  const proxy = await startProxyHarness({
    upstream: `http://127.0.0.1:${server.port}`,
    upstreamSettings: { bodyBuffer: 0, timeouts: { connect: 10, headers: 10, idle: 10 } },
  });
  const client = await connectRaw(proxy.port);
  onTestFinished(async () => {
    client.destroy();
    await proxy.close();
    await server.close();
  });
  client.send(`POST /public/a HTTP/1.1\r\nHost: a\r\nContent-Length: ${PARTS * PART.length}\r\n\r\n`);
  for (let part = 1; part <= PARTS; part += 1) {
    client.send(PART);
    await until('the upstream has the part', () => received === part * PART.length);
    if (part === 1) await client.until((text) => text.startsWith('HTTP/1.1 200'));
    if (part < PARTS) await vi.advanceTimersByTimeAsync(6_000);
  }
  await client.until((text) => text.endsWith('done'));
});
