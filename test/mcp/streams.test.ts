import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect as connectHttp2, type IncomingHttpHeaders } from 'node:http2';
import { request as sendHttps } from 'node:https';
import { text as readText } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { listenTcp, type TcpServer } from '../support/tcp-server.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/** The Streamable HTTP transport of the Model Context Protocol, with a server that the test controls. */
interface Received {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly body: string;
  isClosed: boolean;
}

let server: TcpServer;
let received: Received[] = [];
beforeAll(async () => {
  server = await listenTcp(
    createServer((request, response) => {
      void readText(request).then((body) => {
        const one: Received = { request, response, body, isClosed: false };
        response.on('close', () => (one.isClosed = true));
        received.push(one);
      });
    }),
  );
});
afterAll(() => server?.close());
beforeEach(() => (received = []));

const nextRequest = (): Promise<Received> => until('the server has received the request', () => received.shift());

interface StreamRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
}

interface OpenedStream {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
  ending: 'complete' | 'truncated' | undefined;
}

type OpenStream = (request: StreamRequest) => OpenedStream;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

const openOverHttp1 =
  (gateway: TestGateway): OpenStream =>
  ({ method, path, headers, body }) => {
    const stream: OpenedStream = { status: 0, headers: {}, text: '', ending: undefined };
    const sent = sendHttps(
      {
        host: '127.0.0.1',
        servername: 'localhost',
        port: gateway.port,
        ca: gateway.ca.pem,
        agent: false,
        method,
        path,
        headers: { ...headers, ...(body !== undefined && { 'content-length': Buffer.byteLength(body) }) },
      },
      (response) => {
        stream.status = response.statusCode ?? 0;
        stream.headers = response.headers;
        response.setEncoding('utf8').on('data', (part: string) => (stream.text += part));
        response.on('error', () => {});
        response.on('close', () => (stream.ending = response.complete ? 'complete' : 'truncated'));
      },
    );
    sent.on('error', () => (stream.ending ??= 'truncated'));
    sent.end(body);
    cleanups.push(() => sent.destroy());
    return stream;
  };

const openOverHttp2 =
  (gateway: TestGateway): OpenStream =>
  ({ method, path, headers, body }) => {
    const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
    cleanups.push(() => session.destroy());
    const stream: OpenedStream = { status: 0, headers: {}, text: '', ending: undefined };
    const sent = session.request({ ':method': method, ':path': path, ...headers });
    sent.on('response', ({ ':status': status = 0, ...fields }) => {
      stream.status = status;
      stream.headers = fields;
    });
    sent.setEncoding('utf8').on('data', (part: string) => (stream.text += part));
    let isComplete = false;
    sent.on('end', () => (isComplete = sent.rstCode === 0)).on('error', () => (isComplete = false));
    sent.on('close', () => (stream.ending = isComplete && sent.rstCode === 0 ? 'complete' : 'truncated'));
    session.on('error', () => {});
    sent.end(body);
    return stream;
  };

const withMcpServer = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  upstreams: { default: { url: `http://127.0.0.1:${server.port}`, connections: 4, eventStreams: 16 } },
  integrations: [
    { clientId: 'report-runner', scope: 'mcp:use,admin', access: [{ groups: ['operators'] }] },
    ...(settings.integrations?.slice(1) ?? []),
  ],
  routes: [
    { path: '/mcp/admin', requires: 'mcp:admin' },
    { path: '/mcp', requires: 'mcp:use' },
    { path: '/public', public: true },
  ],
});

const readLatency = ({ server: { metrics } }: TestGateway) =>
  metrics.histogram('gatehouse_http_request_duration_seconds', 'routes[1] /mcp');

async function countStreams({ server: { metrics } }: TestGateway): Promise<number> {
  const { gatehouse_upstream_streams: samples = [] } = await metrics.snapshot();
  return samples.reduce((total, [, count]) => total + count, 0);
}

const EVENT_STREAM = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache, no-transform' };
const CALL = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'wait' } });

describe.each([
  ['HTTP/1.1', openOverHttp1],
  ['HTTP/2', openOverHttp2],
] as const)('%s', (_protocol, createOpen) => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startGateway(withMcpServer);
  });
  afterAll(() => gateway?.close());

  const setUp = async (scope = 'mcp:use') => {
    const { access_token: token } = await gateway.grant({ scope });
    const open = createOpen(gateway);
    return {
      token,
      open: (request: Partial<StreamRequest>) =>
        open({
          method: 'POST',
          path: '/mcp',
          ...request,
          headers: { authorization: `Bearer ${token}`, ...request.headers },
        }),
    };
  };

  test('POST: each event arrives before the next is sent, and every field of the protocol is forwarded', async () => {
    const { open } = await setUp();
    const fields = {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-protocol-version': '2025-11-25',
      'mcp-session-id': 'b9a1-~!session',
      'mcp-method': 'tools/call',
      'mcp-name': 'wait',
    };
    const stream = open({ headers: fields, body: CALL });
    const { request, response, body } = await nextRequest();
    expect([request.method, request.url, body]).toEqual(['POST', '/mcp', CALL]);
    expect(request.headers).toMatchObject(fields);
    expect(request.headers.authorization).toBeUndefined();
    response.writeHead(200, { ...EVENT_STREAM, 'mcp-session-id': 'b9a1-~!session' });
    // The head arrives before any event.
    response.flushHeaders();
    await until('the head has arrived', () => stream.status === 200);
    expect(stream.headers).toMatchObject({ ...EVENT_STREAM, 'mcp-session-id': 'b9a1-~!session' });
    let sent = '';
    for (let count = 1; count <= 20; count += 1) {
      const event = `id: ${count}\nevent: message\ndata: {"progress":${count}}\n\n`;
      response.write(event);
      sent += event;
      await until(`event ${count} has arrived`, () => stream.text === sent);
    }
    response.end();
    await until('the stream has ended', () => stream.ending === 'complete');
    expect(stream.text).toBe(sent);
  });

  test('GET: a stream is resumed with Last-Event-ID, and comments and retry fields are not changed', async () => {
    const { open } = await setUp();
    const fields = {
      accept: 'text/event-stream',
      'last-event-id': '7_stream-1',
      'mcp-session-id': 's1',
      'mcp-protocol-version': '2025-11-25',
    };
    const stream = open({ method: 'GET', headers: fields });
    const { request, response } = await nextRequest();
    expect(request.headers).toMatchObject(fields);
    response.writeHead(200, EVENT_STREAM);
    const parts = [': keep-alive\n\n', 'retry: 1500\nid: 8\ndata:\n\n', 'id: 9\r\ndata: ä€😀\r\n\r\n'];
    for (const [index, part] of parts.entries()) {
      response.write(part);
      const expected = parts.slice(0, index + 1).join('');
      await until('the part has arrived', () => stream.text === expected);
    }
    response.end();
    await until('the stream has ended', () => stream.ending === 'complete');
  });

  test('the duration of a stream is no latency: the histogram has the time to its head', async () => {
    const { open } = await setUp();
    const { sum: before } = readLatency(gateway);
    gateway.clearLog();
    const stream = open({ method: 'GET', headers: { accept: 'text/event-stream' } });
    const { response } = await nextRequest();
    response.writeHead(200, EVENT_STREAM).flushHeaders();
    await until('the stream is open', () => stream.status === 200);
    const openedAt = performance.now();
    await until('some time has passed', () => performance.now() - openedAt > 100);
    response.end();
    const line = await until('the request is logged', () => gateway.log.find(({ event }) => event === 'request'));
    const increase = (readLatency(gateway).sum - before) * 1_000;
    expect(increase).toBeGreaterThan(0);
    expect(increase).toBeCloseTo(Number(line['upstream_ms']), 0);
    expect(Number(line['ms'])).toBeGreaterThan(increase + 90);
  });

  test('several streams of one session are independent', async () => {
    const { open } = await setUp();
    const listening = open({ method: 'GET', headers: { accept: 'text/event-stream' } });
    const listener = await nextRequest();
    listener.response.writeHead(200, EVENT_STREAM).flushHeaders();
    await until('the first stream is open', () => listening.status === 200);
    const call = open({ headers: { 'content-type': 'application/json' }, body: CALL });
    const caller = await nextRequest();
    caller.response.writeHead(200, EVENT_STREAM);
    caller.response.end('data: done\n\n');
    await until('the call is complete', () => call.ending === 'complete');
    listener.response.write('data: still open\n\n');
    await until('the event has arrived', () => listening.text === 'data: still open\n\n');
  });

  test('idle streams hold no connection that calls need, and one client cannot open all streams', async () => {
    const { open } = await setUp();
    const accept = { accept: 'text/event-stream' };
    const streams: OpenedStream[] = [];
    // Seven times as many as are free.
    for (let count = 0; count < 14; count += 1) {
      const stream = open({ method: 'GET', headers: accept });
      const { response } = await nextRequest();
      response.writeHead(200, EVENT_STREAM).flushHeaders();
      await until('the stream is open', () => stream.status === 200);
      streams.push(stream);
    }
    const refused = open({ method: 'GET', headers: accept });
    const extra = await nextRequest();
    extra.response.writeHead(200, EVENT_STREAM).flushHeaders();
    await until('it is refused', () => refused.ending === 'complete');
    expect([refused.status, refused.headers['retry-after'], refused.text]).toEqual([
      503,
      '5',
      expect.stringContaining('Too many event streams are open'),
    ]);
    await until('the stream of the server is closed', () => extra.isClosed);
    // The server has acted already: its response is not lost.
    const call = open({ headers: { 'content-type': 'application/json' }, body: CALL });
    const { response } = await nextRequest();
    response.writeHead(200, EVENT_STREAM).end('data: done\n\n');
    await until('the call is complete', () => call.ending === 'complete');
    expect(call.text).toBe('data: done\n\n');
    // Another client, without a token.
    const stream = createOpen(gateway)({ method: 'GET', path: '/public', headers: accept });
    (await nextRequest()).response.writeHead(200, EVENT_STREAM).flushHeaders();
    await until('the stream is open', () => stream.status === 200);
    expect(streams.map(({ ending }) => ending)).toEqual(streams.map(() => undefined));
    while (cleanups.length > 0) await cleanups.pop()?.();
    await until('all streams are closed', async () => (await countStreams(gateway)) === 0);
  });

  test('a client that closes its stream ends that of the server', async () => {
    const { open } = await setUp();
    const stream = open({ method: 'GET', headers: { accept: 'text/event-stream' } });
    const one = await nextRequest();
    one.response.writeHead(200, EVENT_STREAM).flushHeaders();
    await until('the stream is open', () => stream.status === 200);
    await cleanups.pop()?.();
    await until('the server sees that the client is gone', () => one.isClosed);
  });

  test('DELETE ends a session; 404 and 405 of the server are forwarded', async () => {
    const { open } = await setUp();
    for (const status of [204, 404, 405]) {
      const stream = open({ method: 'DELETE', headers: { 'mcp-session-id': 's1' } });
      const { request, response } = await nextRequest();
      expect([request.method, request.headers['mcp-session-id']]).toEqual(['DELETE', 's1']);
      response.writeHead(status, status === 405 ? { allow: 'POST' } : {}).end();
      await until('the response has arrived', () => stream.ending === 'complete');
      expect(stream.status).toBe(status);
    }
  });

  test('a revocation truncates the open streams of its grant and of no other', async () => {
    const { token, open } = await setUp();
    const other = await setUp();
    const streams = [];
    for (const start of [open, open, other.open]) {
      const stream = start({ method: 'GET', headers: { accept: 'text/event-stream' } });
      const one = await nextRequest();
      one.response.writeHead(200, EVENT_STREAM).flushHeaders();
      await until('the stream is open', () => stream.status === 200);
      streams.push({ stream, one });
    }
    const [first, second, third] = streams;
    expect((await gateway.api('/authsvc/Revoke/Token', token)).status).toBe(200);
    for (const ended of [first, second]) {
      await until('the stream has ended', () => ended?.stream.ending !== undefined);
      expect(ended?.stream.ending).toBe('truncated');
      await until('the server sees the end', () => ended?.one.isClosed === true);
    }
    third?.one.response.write('data: still open\n\n');
    await until('the event has arrived', () => third?.stream.text === 'data: still open\n\n');
    const again = open({ method: 'GET', headers: { accept: 'text/event-stream' } });
    await until('it is refused', () => again.ending === 'complete');
    expect(again.status).toBe(401);
  });

  test('a path can require a scope of its own: 403 names the scope and the metadata', async () => {
    const { open } = await setUp();
    const refused = open({ path: '/mcp/admin', body: CALL });
    await until('it is refused', () => refused.ending === 'complete');
    expect(refused.status).toBe(403);
    expect(refused.headers['www-authenticate']).toMatch(
      /^Bearer .*error="insufficient_scope".*scope="mcp:admin".*resource_metadata="https:\/\/[^"]*\/mcp\/admin"/,
    );
    const admin = await setUp('mcp:use,admin');
    const allowed = admin.open({ path: '/mcp/admin', body: CALL });
    const { request, response } = await nextRequest();
    expect(request.url).toBe('/mcp/admin');
    response.end('{}');
    await until('the response has arrived', () => allowed.ending === 'complete');
  });
});

describe.each([
  ['HTTP/1.1', openOverHttp1],
  ['HTTP/2', openOverHttp2],
] as const)('shutdown: %s', (_name, createOpen) => {
  const setUp = async () => {
    const gateway = await startGateway(withMcpServer);
    cleanups.push(() => gateway.close());
    const { access_token: token } = await gateway.grant({ scope: 'mcp:use' });
    const open = createOpen(gateway);
    const start = async (method: string, path = '/mcp', body?: string) => {
      const headers = { authorization: `Bearer ${token}`, accept: 'text/event-stream' };
      const stream = open({ method, path, headers, ...(body !== undefined && { body }) });
      const { response } = await nextRequest();
      response.writeHead(200, EVENT_STREAM).flushHeaders();
      await until('the stream is open', () => stream.status === 200);
      return { stream, response };
    };
    return { gateway, start };
  };

  test('a silent stream ends, a stream that is sending and the response to a call go on', async () => {
    const { gateway, start } = await setUp();
    const silent = await start('GET');
    const withoutToken = await start('GET', '/public');
    const sending = await start('GET');
    const call = await start('POST', '/mcp', CALL);
    const sender = setInterval(() => sending.response.write('data: more\n\n'), 50);
    cleanups.push(() => clearInterval(sender));
    const drained = gateway.server.drain({ preStop: 0, drain: 60 });
    // A client that the gateway asks to reconnect sees no error.
    await until('the silent stream has ended', () => silent.stream.ending !== undefined);
    await until('so has the public one', () => withoutToken.stream.ending !== undefined);
    expect([silent.stream.ending, withoutToken.stream.ending]).toEqual(['complete', 'complete']);
    expect([sending.stream.ending, call.stream.ending]).toEqual([undefined, undefined]);
    const before = sending.stream.text.length;
    await until('more events arrive', () => sending.stream.text.length > before);
    clearInterval(sender);
    await until('the stream that was sending has ended', () => sending.stream.ending !== undefined);
    expect([sending.stream.ending, call.stream.ending]).toEqual(['complete', undefined]);
    call.response.end('data: done\n\n');
    await until('the call is complete', () => call.stream.ending === 'complete');
    expect(call.stream.text).toBe('data: done\n\n');
    expect(await drained).toBe(true);
  });

  test('a stream that is silent in the middle of an event is truncated', async () => {
    const { gateway, start } = await setUp();
    const complete = await start('GET');
    const partial = await start('GET');
    complete.response.write('data: all\n\n');
    partial.response.write('data: all\n\ndata: {"amount":1');
    await until('the events have arrived', () => partial.stream.text.endsWith('1') && complete.stream.text !== '');
    const drained = gateway.server.drain({ preStop: 0, drain: 60 });
    await until('both streams have ended', () =>
      [complete, partial].every(({ stream }) => stream.ending !== undefined),
    );
    expect([complete.stream.ending, partial.stream.ending]).toEqual(['complete', 'truncated']);
    expect(await drained).toBe(true);
  });

  test('what arrives while the event loop is stalled is forwarded before the stream ends', async () => {
    const { gateway, start } = await setUp();
    const { stream, response } = await start('GET');
    const drained = gateway.server.drain({ preStop: 0, drain: 60 });
    // Timers run next, before the gateway reads what is sent here.
    await new Promise(setImmediate);
    response.write('data: sent\n\n');
    await new Promise<void>((resolve) => process.nextTick(resolve));
    // Longer than a stream may be silent.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_500);
    await until('the stream has ended', () => stream.ending !== undefined);
    expect([stream.ending, stream.text]).toEqual(['complete', 'data: sent\n\n']);
    expect(await drained).toBe(true);
  });
});
