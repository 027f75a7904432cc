import type { AddressInfo } from 'node:net';
import { createSecureContext, createServer } from 'node:tls';
import { expect, onTestFinished, test } from 'vitest';
import type { ResponseHandler } from '../../../src/proxy/upstream/connection.ts';
import { openConnectionPool } from '../../../src/proxy/upstream/connection-pool.ts';
import { createCa, issueServer } from '../../support/pki.ts';
import { startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/until.ts';

test('a TLS connection that was paused during the last read of a response can be reused', async () => {
  const ca = await createCa();
  const certificate = await issueServer(ca);
  const response = `HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n${'a'.repeat(40_000)}`;
  const server = createServer({ cert: certificate.pem, key: certificate.keyPem }, (socket) => {
    socket.on('error', () => {}).on('data', () => void socket.write(response));
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  const tls = { serverName: 'localhost', secureContext: createSecureContext({ ca: ca.pem }) };
  let freeCount = 0;
  const pool = openConnectionPool(`https://127.0.0.1:${port}`, tls, () => {
    freeCount += 1;
  });
  onTestFinished(() => {
    pool.destroy();
    server.close();
  });
  const send = async (isSlow: boolean): Promise<boolean> => {
    const ended = Promise.withResolvers<boolean>();
    const connection = pool.acquire(false);
    let reads = 0;
    const handler: ResponseHandler = {
      onConnected: () => connection.send('GET / HTTP/1.1\r\nhost: a\r\n\r\n', undefined),
      onDrain() {},
      onHead() {},
      onData() {
        reads += 1;
        return !(isSlow && reads === 1);
      },
      onReadEnd() {},
      onEnd: ended.resolve,
      onError: ended.reject,
      onInternalError: ended.reject,
    };
    connection.assign(handler, false);
    if (connection.isConnected) handler.onConnected();
    return ended.promise;
  };
  for (const [index, isSlow] of [false, true, false].entries()) {
    expect(await send(isSlow)).toBe(true);
    await until('the connection is free', () => freeCount === index + 1);
  }
});

test.each(['fast', 'full'] as const)(
  'an empty chunked body that is forwarded as it arrives is terminated upstream, %s path',
  async (proxyPath) => {
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      proxyPath,
      upstreamSettings: { bodyBuffer: 0 },
    });
    onTestFinished(async () => {
      await proxy.close();
      await upstream.close();
    });
    const head =
      'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n';
    expect((await rawRequest(proxy.port, `${head}0\r\n\r\n`)).status).toBe(200);
  },
);
