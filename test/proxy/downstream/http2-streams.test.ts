import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { afterEach, describe, expect, test } from 'vitest';
import { matrixSettings } from '../../attack/matrix-settings.ts';
import {
  CODE,
  dataFrame,
  type Field,
  FLAG,
  FRAME,
  type Frame,
  type FrameClient,
  type FrameClientOptions,
  frame,
  frameClient,
  headersFrame,
  priorityFrame,
  requestFields,
  resetFrame,
  SETTING,
  settingsFrame,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import {
  type RecordingUpstream,
  respondOk,
  startRecordingUpstream,
} from '../../support/recording-upstream.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';
import { testNonces } from './http2-nonces.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

testNonces(1_000);

async function setUp(
  change?: SettingsChange,
): Promise<{ gateway: TestGateway; upstream: RecordingUpstream }> {
  const upstream = await startRecordingUpstream();
  cleanups.push(() => upstream.close());
  const gateway = await startGateway(matrixSettings(upstream.url, change));
  cleanups.push(() => gateway.close());
  return { gateway, upstream };
}

async function openClient(
  gateway: TestGateway,
  options: Omit<FrameClientOptions, 'ca'> = {},
): Promise<FrameClient> {
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...options });
  cleanups.push(() => client.destroy());
  return client;
}

const GET = requestFields('/public/1');
const POST = requestFields('/public/1', 'POST');

/** A gateway whose upstream handles each request in its own way, as its first segment says. */
async function setUpHandlers(
  handlers: Record<string, (request: IncomingMessage, response: ServerResponse) => void>,
) {
  const server = await listenTcp(
    createServer((request, response) => {
      const handler = handlers[request.url?.split('/')[2] ?? ''];
      if (handler === undefined) response.end(`${request.method} ${request.url}`);
      else handler(request, response);
    }),
  );
  cleanups.push(() => server.close());
  const gateway = await startGateway(
    matrixSettings(`http://127.0.0.1:${server.port}`, (settings) => ({
      ...settings,
      upstreams: { default: { ...settings.upstreams?.['default'], bodyBuffer: 0 } },
    })),
  );
  cleanups.push(() => gateway.close());
  return gateway;
}

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

describe('messages', () => {
  test('trailers of a request are accepted and not forwarded', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const length of [undefined, '4'] as const) {
      const stream = client.request(
        [...POST, ...(length === undefined ? [] : [['content-length', length] as const])],
        { end: false },
      );
      client.send(dataFrame(stream, 'body'), headersFrame(stream, [['x-checksum', '1234']]));
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    }
    expect(upstream.requests.map(({ body }) => body)).toEqual(['body', 'body']);
    expect(upstream.bytes()).not.toContain('x-checksum');
  });

  test('trailers that do not end the stream, have pseudo-fields, or come before the declared length, are a stream error', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    const cases: readonly (readonly [Field[], Field[], boolean])[] = [
      [[], [['x-checksum', '1']], false],
      [[], [[':path', '/admin/x']], true],
      [[['content-length', '9']], [['x-checksum', '1']], true],
      [[], [['connection', 'close']], true],
    ];
    for (const [fields, trailers, end] of cases) {
      const stream = client.request([...POST, ...fields], { end: false });
      client.send(dataFrame(stream, 'body'), headersFrame(stream, trailers, { end }));
      expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.protocolError });
    }
    expect(upstream.requests).toEqual([]);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
  });

  test('a body that differs from its length is a stream error, and never a complete request upstream', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const [length, ...parts] of [
      ['3', 'longer'],
      ['9', 'shorter'],
      ['4', 'in', ' parts'],
      ['1', ''],
    ] as const) {
      const stream = client.request([...POST, ['content-length', length]], { end: false });
      parts.forEach((part, index) =>
        client.send(dataFrame(stream, part, { end: index === parts.length - 1 })),
      );
      expect([length, await client.waitForEnd(stream)]).toEqual([length, { reset: CODE.protocolError }]);
    }
    const endsWithHead = client.request([...POST, ['content-length', '5']]);
    expect(await client.waitForEnd(endsWithHead)).toEqual({ reset: CODE.protocolError });
    expect(upstream.requests).toEqual([]);
    const exact = client.post([...POST, ['content-length', '5']], 'exact');
    expect(await client.waitForEnd(exact)).toEqual({ status: 200 });
    expect(upstream.requests.map(({ body }) => body)).toEqual(['exact']);
  });

  test('a scheme that is not one (RFC 3986 §3.1) is a stream error', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const scheme of ['', 'h t', 'https://evil.test/', '1http', 'http:', 'ü']) {
      const fields = GET.map(([name, value]): Field => [name, name === ':scheme' ? scheme : value]);
      expect([scheme, await client.waitForEnd(client.request(fields))]).toEqual([
        scheme,
        { reset: CODE.protocolError },
      ]);
    }
    expect(upstream.requests).toEqual([]);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
  });

  test('RST_STREAM is not sent for a stream that the client has not opened (RFC 9113 §6.4)', async () => {
    const { gateway } = await setUp();
    for (const malformed of [frame(FRAME.priority, 0, 1, Buffer.alloc(3)), priorityFrame(1, 1)]) {
      const client = await openClient(gateway);
      client.send(malformed);
      await client.waitForPong();
      expect(client.resetCode(1)).toBeUndefined();
      if (!client.isOver()) expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    }
  });

  test('responses without a body end with their head', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const [method, head, status, length] of [
      ['HEAD', '200 OK\r\nContent-Length: 5', 200, '5'],
      ['HEAD', '200 OK\r\nTransfer-Encoding: chunked', 200, undefined],
      ['GET', '204 No Content', 204, undefined],
      ['GET', '304 Not Modified\r\nETag: "x"\r\nContent-Length: 7', 304, '7'],
      ['GET', '200 OK\r\nContent-Length: 0', 200, '0'],
    ] as const) {
      upstream.respondWith((socket) => socket.write(`HTTP/1.1 ${head}\r\n\r\n`));
      const stream = client.request(requestFields('/public/1', method));
      expect(await client.waitForEnd(stream)).toEqual({ status });
      const fields = client.fields(stream);
      expect([head, fields.find(([name]) => name === 'content-length')?.[1]]).toEqual([head, length]);
      expect([head, client.bodyLength(stream), client.resetCode(stream)]).toEqual([head, 0, undefined]);
      const frames = client.frames.filter(({ stream: on }) => on === stream);
      expect(frames.filter(({ type }) => type === FRAME.headers).length).toBe(1);
    }
  });

  test('a large head of a response is sent in CONTINUATION frames', async () => {
    const { gateway, upstream } = await setUp();
    const head = Array.from({ length: 15 }, (_, index) => `X-${index}: ${'~'.repeat(1_000)}\r\n`).join('');
    upstream.respondWith((socket) => socket.write(`HTTP/1.1 200 OK\r\n${head}Content-Length: 2\r\n\r\nok`));
    const client = await openClient(gateway);
    const stream = client.request(GET);
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.fields(stream).filter(([, value]) => value === '~'.repeat(1_000)).length).toBe(15);
  });

  test('a head of the size that limits.headers allows is accepted, also above 16 KiB', async () => {
    const { gateway, upstream } = await setUp((settings) => ({
      ...settings,
      limits: { ...settings.limits, headers: '48KiB' },
    }));
    const client = await openClient(gateway);
    const large = 'x'.repeat(14_000);
    const first = headersFrame(1, [...GET, ['x-1', large]], { endHeaders: false });
    const more = headersFrame(1, [['x-2', large]]).subarray(9);
    client.send(first, frame(FRAME.continuation, FLAG.endHeaders, 1, more));
    expect(await client.waitForEnd(1)).toEqual({ status: 200 });
    expect(upstream.requests[0]?.headers.filter(([, value]) => value === large).length).toBe(2);
  });
});

describe('flow control', () => {
  test('100 responses reach a client with small windows: each gets what its own window allows', async () => {
    const { gateway, upstream } = await setUp((settings) => ({ ...settings, log: { level: 'info' } }));
    const body = 'x'.repeat(20_000);
    upstream.respondWith((socket) =>
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
    );
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
    upstream.respondWith((socket) =>
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
    );
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

describe('shutdown', () => {
  const isPing = ({ type, flags }: Frame): boolean => type === FRAME.ping && flags === 0;
  const HELD = requestFields('/public/held');

  /** An upstream that responds to `/public/held` when the test releases it. */
  function holdResponses(upstream: RecordingUpstream): () => void {
    const held: (() => void)[] = [];
    upstream.respondWith((socket, request) => {
      if (request.target === '/public/held') held.push(() => respondOk(socket, request));
      else respondOk(socket, request);
    });
    return () => held.splice(0).forEach((respond) => respond());
  }

  test('it is announced; requests that are on their way are served; then the connection closes', async () => {
    const { gateway, upstream } = await setUp();
    const release = holdResponses(upstream);
    const client = await openClient(gateway);
    const running = client.request(HELD);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await client.until(() => client.goAways().length > 0 && client.frames.some(isPing));
    expect(client.goAways()).toEqual([{ lastStream: 0x7fff_ffff, code: CODE.noError }]);

    // Sent before the client has seen the announcement.
    const late = client.request(HELD);
    await until('the upstream has this request', () => upstream.requests.length === 2);
    const ping = client.frames.find(isPing)?.payload;
    client.send(frame(FRAME.ping, FLAG.ack, 0, ping));
    await client.until(() => client.goAways().length === 2);
    expect(client.goAways()[1]).toEqual({ lastStream: late, code: CODE.noError });

    // RFC 9113 §6.8: frames of later streams are ignored.
    const ignored = client.post(POST, 'body');
    client.send(windowUpdateFrame(ignored, 1), resetFrame(ignored));
    await client.waitForPong();
    expect([client.closed(), client.goAways().length]).toEqual([false, 2]);
    release();
    for (const stream of [running, late]) expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    await client.until(() => client.closed());
    expect(client.outcome(ignored)).toBeUndefined();
    expect(upstream.requests.length).toBe(2);
    expect(await drained).toBe(true);
  });

  const PRE_STOP: SettingsChange = (settings) => ({ ...settings, shutdown: { preStop: '1h', drain: '30s' } });
  const NOTICE = { lastStream: 0x7fff_ffff, code: CODE.noError };

  test('streams that a client begins after the announcement are served until the end of the pre-stop time', async () => {
    const { gateway } = await setUp(PRE_STOP);
    const client = await openClient(gateway);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    gateway.server.announceShutdown();
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    await client.until(() => client.frames.some(isPing));
    client.send(frame(FRAME.ping, FLAG.ack, 0, client.frames.find(isPing)?.payload));
    for (let count = 0; count < 5; count += 1)
      expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    const last = client.request(GET);
    expect(await client.waitForEnd(last)).toEqual({ status: 200 });
    expect(client.goAways()).toEqual([NOTICE]);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await client.until(() => client.closed());
    expect(client.goAways()).toEqual([NOTICE, { lastStream: last, code: CODE.noError }]);
    expect(await drained).toBe(true);
  });

  test('the announcement precedes the next response, also on connections that are opened later', async () => {
    const { gateway, upstream } = await setUp(PRE_STOP);
    const release = holdResponses(upstream);
    const before = await openClient(gateway);
    const running = before.request(HELD);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    gateway.server.announceShutdown();
    const after = await openClient(gateway);
    const held = after.request(HELD);
    await until('the upstream has both requests', () => upstream.requests.length === 2);
    for (const client of [before, after]) {
      await client.waitForPong();
      expect(client.goAways()).toEqual([]);
    }
    release();
    for (const [client, stream] of [
      [before, running],
      [after, held],
    ] as const) {
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      const types = client.frames.map(({ type }) => type);
      expect(types.indexOf(FRAME.goAway)).toBeLessThan(types.indexOf(FRAME.headers));
      expect(client.goAways()).toEqual([NOTICE]);
      expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    }
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    for (const client of [before, after]) await client.until(() => client.closed());
    expect(await drained).toBe(true);
  });

  test('a client that does not acknowledge the announcement is drained as well', async () => {
    const { gateway, upstream } = await setUp();
    const release = holdResponses(upstream);
    const [busy, idle] = [await openClient(gateway), await openClient(gateway)];
    const running = busy.request(HELD);
    expect(await idle.waitForEnd(idle.request(GET))).toEqual({ status: 200 });
    await until('the upstream has the request', () => upstream.requests.length === 2);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await busy.until(() => busy.goAways().length === 2);
    expect(busy.goAways()[1]).toEqual({ lastStream: running, code: CODE.noError });
    await idle.until(() => idle.closed());
    release();
    expect(await busy.waitForEnd(running)).toEqual({ status: 200 });
    await busy.until(() => busy.closed());
    expect(await drained).toBe(true);
  });

  test('an upload that is running is completed', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    const stream = client.request([...POST, ['content-length', '600000']], { end: false });
    const part = Buffer.alloc(10_000, 'x');
    for (let sent = 0; sent < 6; sent += 1) client.send(dataFrame(stream, part));
    await client.waitForPong();
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await client.until(() => client.goAways().length === 2);
    for (let sent = 6; sent < 60; sent += 1) {
      await client.until(() => 65_535 + client.credit(stream) >= (sent + 1) * part.length);
      client.send(dataFrame(stream, part, { end: sent === 59 }));
    }
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(upstream.requests.map(({ body }) => body.length)).toEqual([600_000]);
    expect(await drained).toBe(true);
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
