import type { IncomingMessage, ServerResponse } from 'node:http';
import { describe, expect, test } from 'vitest';
import {
  CODE,
  dataFrame,
  type Field,
  type FrameClient,
  requestFields,
  resetFrame,
  SETTING,
  settingsFrame,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import { until } from '../../support/until.ts';
import { testNonces } from './http2-nonces.ts';
import { GET, useStreamGateways } from './http2-stream-gateway.ts';

const { openClient, setUp, setUpHandlers } = useStreamGateways();

testNonces(1_000);

describe('streaming', () => {
  test('parts of a request and of its response are forwarded as they arrive', async () => {
    const gateway = await setUpHandlers({
      echo(request, response) {
        response.flushHeaders();
        request.pipe(response);
      },
    });
    const client = await openClient(gateway);
    const stream = client.request(requestFields('/public/echo', 'POST'), { end: false });
    let expected = '';
    for (const part of ['first', 'second', 'x'.repeat(10_000), 'last']) {
      client.send(dataFrame(stream, part));
      expected += part;
      await client.until(() => client.body(stream) === expected);
    }
    expect(client.endedCleanly(stream)).toBe(false);
    client.send(dataFrame(stream, '', { end: true }));
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.body(stream)).toBe(expected);
  });

  test('100 streams are echoed concurrently, each with its own bytes', async () => {
    const gateway = await setUpHandlers({ echo: (request, response) => void request.pipe(response) });
    const client = await openClient(gateway, { updateWindows: true });
    const streams = Array.from({ length: 100 }, () =>
      client.request(requestFields('/public/echo', 'POST'), { end: false }),
    );
    for (let round = 0; round < 5; round += 1)
      client.send(...streams.map((stream) => dataFrame(stream, `${stream}.${round} `.repeat(40))));
    client.send(...streams.map((stream) => dataFrame(stream, '', { end: true })));
    for (const stream of streams) {
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      const expected = Array.from({ length: 5 }, (_, round) => `${stream}.${round} `.repeat(40)).join('');
      expect(client.body(stream)).toBe(expected);
    }
  });

  test('a client that cancels while its request is sent, while it waits, or while it receives, ends the request upstream', async () => {
    const aborted: string[] = [];
    const started: string[] = [];
    const hold =
      (name: string, respond: (response: ServerResponse) => void = () => {}) =>
      (request: IncomingMessage, response: ServerResponse): void => {
        started.push(name);
        request.on('error', () => {}).resume();
        response.on('close', () => aborted.push(name));
        respond(response);
      };
    const gateway = await setUpHandlers({
      sending: hold('sending'),
      waiting: hold('waiting'),
      receiving: hold('receiving', (response) => void response.write('some')),
    });
    const client = await openClient(gateway);
    const sending = client.request(requestFields('/public/sending', 'POST'), { end: false });
    client.send(dataFrame(sending, 'some'));
    const waiting = client.request(requestFields('/public/waiting'));
    const receiving = client.request(requestFields('/public/receiving'));
    await until('the upstream has all requests', () => started.length === 3);
    await client.until(() => client.body(receiving) === 'some');
    client.send(...[sending, waiting, receiving].map((stream) => resetFrame(stream)));
    await until('all requests have ended', () => aborted.length === 3);
    const next = client.request(requestFields('/public/next'));
    expect(await client.waitForEnd(next)).toEqual({ status: 200 });
    // The gateway does not respond on a stream that the client has reset.
    expect([sending, waiting].map((stream) => client.outcome(stream))).toEqual([undefined, undefined]);
    await until(
      'the requests are logged as aborted',
      () => gateway.log.filter(({ event, aborted: was }) => event === 'request' && was === true).length === 3,
    );
  });

  test('a client that disconnects ends all its requests', async () => {
    const { gateway, upstream } = await setUp();
    upstream.respondWith((socket) => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf'));
    const client = await openClient(gateway);
    const streams = Array.from({ length: 30 }, () => client.request(GET));
    await client.until(() => streams.every((stream) => client.body(stream) === 'half'));
    client.destroy();
    await until('the upstream connections are closed', () => upstream.openConnections() === 0);
  });

  test('an upstream that fails within its response: RST_STREAM INTERNAL_ERROR, never END_STREAM', async () => {
    const { gateway, upstream } = await setUp();
    upstream.respondWith((socket, { target }) => {
      if (target === '/public/1') return void socket.end('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf');
      socket.end('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n');
    });
    const client = await openClient(gateway);
    for (const path of ['/public/1', '/public/2']) {
      const stream = client.request(requestFields(path));
      expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
      expect([client.outcome(stream), client.body(stream), client.endedCleanly(stream)]).toEqual([
        { status: 200 },
        'half',
        false,
      ]);
    }
    expect(client.isOver()).toBe(false);
  });
});

describe('flow control', () => {
  test('100 responses reach a client with small windows: each gets what its own window allows', async () => {
    const { gateway, upstream } = await setUp((settings) => ({ ...settings, log: { level: 'info' } }));
    const body = 'x'.repeat(20_000);
    upstream.respondWith((socket) => socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`));
    const client = await openClient(gateway, {
      settings: [
        [SETTING.headerTableSize, 0],
        [SETTING.initialWindowSize, 1_000],
      ],
    });
    client.send(windowUpdateFrame(0, 10_000_000));
    const streams = Array.from({ length: 100 }, () => client.request(GET));
    const allHave = (length: number): Promise<void> =>
      client.until(() => streams.every((stream) => client.bodyLength(stream) === length));
    await allHave(1_000);
    for (let length = 2_000; length <= 5_000; length += 1_000) {
      client.send(...streams.map((stream) => windowUpdateFrame(stream, 1_000)));
      await allHave(length);
    }
    // Some get all of it; the others are not affected.
    const [fast, slow] = [streams.slice(0, 50), streams.slice(50)];
    client.send(...fast.map((stream) => windowUpdateFrame(stream, 50_000)));
    for (const stream of fast) expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(slow.map((stream) => client.bodyLength(stream))).toEqual(slow.map(() => 5_000));
    client.send(...slow.map((stream) => windowUpdateFrame(stream, 50_000)));
    for (const stream of slow) expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(streams.map((stream) => client.bodyLength(stream))).toEqual(streams.map(() => body.length));
  });

  test('streams that compete for the window of the connection take turns', async () => {
    const { gateway, upstream } = await setUp();
    const body = Buffer.alloc(200_000, 'x');
    upstream.respondWith((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
      socket.write(body);
    });
    const client = await openClient(gateway, {
      settings: [
        [SETTING.headerTableSize, 0],
        [SETTING.initialWindowSize, 1_000_000],
      ],
    });
    const streams = Array.from({ length: 20 }, () => client.request(GET));
    const received = (): number => streams.reduce((sum, stream) => sum + client.bodyLength(stream), 0);
    await client.until(() => streams.every((stream) => client.outcome(stream) !== undefined));
    await client.until(() => received() === 65_535);
    // Two frames of 16 KiB for each stream.
    let credit = 65_535;
    for (; credit < 65_535 + 20 * 2 * 16_384; credit += 32_768) {
      client.send(windowUpdateFrame(0, 32_768));
      await client.until(() => received() === credit + 32_768);
    }
    const lengths = streams.map((stream) => client.bodyLength(stream));
    expect(Math.min(...lengths)).toBeGreaterThanOrEqual(16_384);
    client.send(windowUpdateFrame(0, 20 * body.length));
    await client.until(() => streams.every((stream) => client.endedCleanly(stream)));
    expect(received()).toBe(20 * body.length);
  });

  test('windows that are made smaller, even negative, and larger again are respected', async () => {
    const { gateway, upstream } = await setUp();
    const body = 'x'.repeat(30_000);
    upstream.respondWith((socket) => socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`));
    const client = await openClient(gateway, {
      settings: [
        [SETTING.headerTableSize, 0],
        [SETTING.initialWindowSize, 10_000],
      ],
    });
    const stream = client.request(GET);
    await client.until(() => client.bodyLength(stream) === 10_000);
    // The window is -9,000 then.
    client.send(settingsFrame([[SETTING.initialWindowSize, 1_000]]), windowUpdateFrame(stream, 9_000));
    await client.waitForPong();
    expect(client.bodyLength(stream)).toBe(10_000);
    client.send(windowUpdateFrame(stream, 5));
    await client.until(() => client.bodyLength(stream) === 10_005);
    client.send(settingsFrame([[SETTING.initialWindowSize, 100_000]]));
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.bodyLength(stream)).toBe(30_000);
  });
});

describe('TLS', () => {
  test('a resumed session keeps the client certificate of its handshake, and gets none if it had none', async () => {
    const { gateway } = await setUp();
    const { alice } = gateway.users;
    const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
    const requestGrant = async (client: FrameClient): Promise<number | undefined> => {
      const fields: Field[] = [
        ...requestFields('/authsvc/Authorize/Certificate', 'POST'),
        ['content-type', 'application/json'],
      ];
      return (await client.waitForEnd(client.post(fields, body)))?.status;
    };
    for (const [certificate, status] of [
      [{ cert: alice.pem, key: alice.keyPem }, 200],
      [{}, 401],
    ] as const) {
      const first = await openClient(gateway, { tls: certificate });
      expect(await requestGrant(first)).toBe(status);
      const session = first.socket.getSession();
      first.destroy();
      const resumed = await openClient(gateway, { tls: session === undefined ? {} : { session } });
      expect(resumed.socket.isSessionReused()).toBe(true);
      expect(await requestGrant(resumed)).toBe(status);
    }
  });
});
