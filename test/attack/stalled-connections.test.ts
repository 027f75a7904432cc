import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { FLAG, FRAME, frame, frameClient, headerBlock, requestFields } from '../support/http2-frames.ts';
import { startTestListener } from '../support/listener.ts';
import { until } from '../support/until.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { OWN } from './matrix-settings.ts';
import { sendHeadsSlowly, stallHandshakes } from './stalled-connections.ts';

/** Rows X01, X02 and C20: every state of a connection has a timeout. The tests wait for them concurrently. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  limits: { ...settings.limits, headerTimeout: '2s' },
  upstreams: { default: { ...settings.upstreams?.['default'], timeouts: { idle: '2s' } } },
}));

const openFrameClient = () => frameClient(attack.gateway.port, { ca: attack.gateway.ca.pem });
const head = (line: string, ...more: string[]): string =>
  [`${line} HTTP/1.1`, `Host: ${OWN}`, ...more, '', ''].join('\r\n');

describe.concurrent('deadlines', () => {
  test('X01 clients that send their head byte by byte are disconnected, and others are served meanwhile', () =>
    sendHeadsSlowly(attack, 20));

  test('X01 a client that sends no request is disconnected', async ({ onTestFinished }) => {
    const silent = await attack.client();
    onTestFinished(() => silent.destroy());
    await silent.closed();
  });

  test('X01 an HTTP/2 client that sends no request, or half a head, is disconnected', async ({ onTestFinished }) => {
    const [silent, half] = [await openFrameClient(), await openFrameClient()];
    onTestFinished(() => [silent, half].forEach((client) => client.destroy()));
    half.send(frame(FRAME.headers, FLAG.endStream, 1, headerBlock(requestFields('/public/1')).subarray(0, 20)));
    await Promise.all([silent, half].map((client) => client.until(() => client.closed())));
  });

  test('C20 connections that never finish their handshake are closed, and others are served meanwhile', () =>
    stallHandshakes(attack, 40));

  test('X02 a request body for the token service that does not end: 408, and the connection is closed', async ({
    onTestFinished,
  }) => {
    const client = await attack.client();
    onTestFinished(() => client.destroy());
    client.send(head('POST /authsvc/Authorize/Token', 'Content-Type: application/json', 'Content-Length: 100'));
    const timer = setInterval(() => client.send('{'), 300);
    onTestFinished(() => clearInterval(timer));
    expect(await client.closed()).toMatch(/^HTTP\/1\.1 408 /);
  });

  test('X02 a request body for an upstream that does not end: 408, and no upstream connection was used', async ({
    onTestFinished,
  }) => {
    const client = await attack.client();
    onTestFinished(() => client.destroy());
    client.send(head('POST /files/half', `Authorization: Bearer ${attack.token}`, 'Content-Length: 100'));
    client.send('half');
    expect(await client.closed()).toMatch(/^HTTP\/1\.1 408 /);
    expect(attack.upstream.bytes()).not.toContain('/files/half');
  });

  test('a client that never closes its side after a CONNECT, or never sends its body, is disconnected', async ({
    onTestFinished,
  }) => {
    const listener = await startTestListener({
      limits: { headers: 16_384, headerTimeout: 30, connections: 100 },
      onRequest: () => ({ status: 200, headers: {}, body: 'served' }),
    });
    onTestFinished(() => listener.close());
    await Promise.all(
      [
        'CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n',
        'GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n',
        'GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx',
        'POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n',
      ].map(async (bytes) => {
        const socket = connect({ port: listener.port, host: '127.0.0.1', allowHalfOpen: true });
        onTestFinished(() => void socket.destroy());
        socket.on('error', () => {}).write(bytes);
        await once(socket, 'data');
        expect(listener.countConnections()).toBeGreaterThan(0);
      }),
    );
    await until('the connections are closed', () => listener.countConnections() === 0);
  });

  test('X02 a request body over HTTP/2 that does not end: 408, and the connection stays open', async ({
    onTestFinished,
  }) => {
    const client = await openFrameClient();
    onTestFinished(() => client.destroy());
    const stream = client.request(
      [...requestFields('/authsvc/Authorize/Token', 'POST'), ['content-type', 'application/json']],
      { end: false },
    );
    client.send(frame(FRAME.data, 0, stream, Buffer.from('{')));
    await client.until(() => client.endedCleanly(stream));
    expect(client.outcome(stream)).toEqual({ status: 408 });
    const next = client.request(requestFields('/public/1'));
    await client.until(() => client.endedCleanly(next));
    expect(client.outcome(next)).toEqual({ status: 200 });
  });
});

test('the gateway still serves requests and has logged no error', () => attack.expectHealthy());
