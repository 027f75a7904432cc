import { createServer } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { openPoster } from '../../src/observability/json-poster.ts';
import { listenTcp } from '../support/tcp-server.ts';

test('only the status of a response is used, and at most 64 KiB of its body are read', async () => {
  let written = 0;
  const { port, close, sockets } = await listenTcp(
    createServer((_request, response) => {
      response.writeHead(202);
      const more = (): void => {
        do written += 65_536;
        while (!response.destroyed && response.write(Buffer.alloc(65_536)));
      };
      response.on('drain', more);
      more();
    }),
  );
  onTestFinished(close);
  const poster = openPoster({ url: `http://127.0.0.1:${port}`, timeoutMs: 60_000 });
  onTestFinished(() => poster.close());
  expect(await poster.post('{}')).toBe(202);
  // The connection was closed, so the next delivery opens another one.
  expect(await poster.post('{}')).toBe(202);
  expect(written).toBeLessThan(64 * 1_048_576);
  expect(sockets.size).toBeLessThanOrEqual(2);
});
