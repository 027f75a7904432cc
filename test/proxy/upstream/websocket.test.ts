import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { createCa, issueServer } from '../../support/pki.ts';
import { type HarnessOptions, type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';
import {
  acceptUpgrade,
  computeAccept,
  encodeFrame,
  openWebSocket,
  startWebSocketUpstream,
  TEXT,
  type WebSocketRequest,
  type WebSocketUpstreamOptions,
} from '../../support/websocket.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

const RULES = [
  rule('/ws/**', 'files:read', { websocket: true }),
  rule('/open/**', 'public', { websocket: true }),
  rule('/cut/**', 'files:read', { websocket: true, stripPrefix: '/cut' }),
  rule('/plain/**', 'files:read'),
];

async function startProxyTo(upstream: string, options: Partial<HarnessOptions> = {}): Promise<ProxyHarness> {
  const proxy = await startProxyHarness({ rules: RULES, upstream, ...options });
  cleanups.push(() => proxy.close());
  return proxy;
}

async function setUp(upstreamOptions: WebSocketUpstreamOptions = {}, options: Partial<HarnessOptions> = {}) {
  const upstream = await startWebSocketUpstream(upstreamOptions);
  cleanups.push(() => upstream.close());
  const proxy = await startProxyTo(`http://127.0.0.1:${upstream.port}`, options);
  const open = async (request: Omit<WebSocketRequest, 'port'> = {}) => {
    const client = await openWebSocket({ port: proxy.port, ...request });
    cleanups.push(() => client.destroy());
    return client;
  };
  return { upstream, proxy, open };
}

/** Starts an upstream that records every byte and never responds on its own. */
async function startSilentUpstream() {
  const upstream = await startRecordingUpstream();
  upstream.respondWith(() => {});
  cleanups.push(() => upstream.close());
  return upstream;
}

describe('a WebSocket is forwarded', () => {
  test('with its handshake and the messages of both sides', async () => {
    const { upstream, proxy, open } = await setUp();
    const client = await open({ headers: ['Sec-WebSocket-Protocol: chat, other'] });
    expect(client.status).toBe(101);
    expect(client.head).toContain(`sec-websocket-accept: ${computeAccept(client.key)}`);
    expect(client.head).toMatch(/sec-websocket-protocol: chat/i);
    expect(client.head).toMatch(/x-request-id: \S+/i);
    client.send('hello');
    await until('the echo arrives', () => client.messages[0]);
    expect([upstream.messages, client.messages]).toEqual([['hello'], ['echo hello']]);
    expect(proxy.notes[0]).toMatchObject({
      decision: 'forwarded',
      rule: '/ws/**',
      clientId: 'report-runner',
    });
  });

  test('from the client that is built into Node', async () => {
    const { proxy } = await setUp();
    const socket = new WebSocket(`ws://127.0.0.1:${proxy.port}/ws/1`, {
      headers: { authorization: 'Bearer A' },
    });
    const received = Promise.withResolvers<unknown>();
    const closed = Promise.withResolvers<number>();
    socket.addEventListener('open', () => socket.send('x'.repeat(70_000)));
    socket.addEventListener('message', ({ data }) => received.resolve(data));
    socket.addEventListener('close', ({ code }) => closed.resolve(code));
    expect(await received.promise).toBe(`echo ${'x'.repeat(70_000)}`);
    socket.close(1000);
    expect(await closed.promise).toBe(1000);
  });

  test('with the path that the rule matched and an unchanged query', async () => {
    const { upstream, open } = await setUp();
    await open({ path: '/ws/%61b?x=%2e&y=a?b&z' });
    await open({ path: '/ws/1?' });
    await open({ path: '/cut/1/2' });
    expect(upstream.handshakes.map(({ url }) => url)).toEqual(['/ws/ab?x=%2e&y=a?b&z', '/ws/1?', '/1/2']);
  });

  test('to a unix socket', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-ws-'));
    cleanups.push(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'up.sock');
    const upstream = await startWebSocketUpstream({ listenOn: path });
    cleanups.push(() => upstream.close());
    const proxy = await startProxyTo(`unix:${path}`);
    const client = await openWebSocket({ port: proxy.port });
    cleanups.push(() => client.destroy());
    client.send('x');
    await until('the echo arrives', () => client.messages.includes('echo x'));
  });

  test('to an https upstream with a trusted certificate, and to no other', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-ws-'));
    cleanups.push(() => rmSync(folder, { recursive: true }));
    const [ca, otherCa] = [await createCa(), await createCa()];
    const { pem, keyPem } = await issueServer(ca);
    writeFileSync(join(folder, 'ca.pem'), ca.pem);
    writeFileSync(join(folder, 'other.pem'), otherCa.pem);
    const upstream = await startWebSocketUpstream({ tls: { cert: pem, key: keyPem } });
    cleanups.push(() => upstream.close());
    const url = `https://localhost:${upstream.port}`;
    for (const [file, status] of [
      ['ca.pem', 101],
      ['other.pem', 502],
    ] as const) {
      const proxy = await startProxyTo(url, { upstreamSettings: { ca: join(folder, file) } });
      const client = await openWebSocket({ port: proxy.port });
      cleanups.push(() => client.destroy());
      expect(client.status).toBe(status);
    }
    expect(upstream.handshakes).toHaveLength(1);
  });

  test('H25 bytes after the head reach the upstream only after its 101', async () => {
    const upstream = await startSilentUpstream();
    const proxy = await startProxyTo(upstream.url);
    const earlyData = encodeFrame(TEXT, 'GET /smuggled HTTP/1.1', true);
    const opening = openWebSocket({ port: proxy.port, earlyData });
    const request = await until('the upstream has the handshake', () => upstream.requests[0]);
    const head = upstream.bytes();
    expect(head.endsWith('\r\n\r\n')).toBe(true);
    // After a further round trip through the same proxy, any premature bytes would have been sent.
    await rawRequest(proxy.port, 'GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n');
    expect(upstream.bytes()).toBe(head);
    expect(upstream.connectionCount()).toBe(1);
    const key = request.headers.find(([name]) => name === 'sec-websocket-key')?.[1];
    upstream.writeToAll(
      `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${computeAccept(key)}\r\n\r\n`,
    );
    const client = await opening;
    cleanups.push(() => client.destroy());
    await until('the upstream has the early bytes', () => upstream.bytes().length === head.length + earlyData.length);
    expect(Buffer.from(upstream.bytes().slice(head.length), 'latin1').equals(earlyData)).toBe(true);
  });
});

describe('the handshake is authorized like any request', () => {
  test.each([
    ['no token', { token: '' }, 401],
    ['a forged token', { token: 'forged' }, 401],
    ['a token in the query', { token: '', path: '/ws/1?access_token=A' }, 400],
    ['a token in the query of a public route', { token: '', path: '/open/1?access_token=A' }, 400],
    ['no rule', { path: '/elsewhere' }, 404],
    ['a dot segment', { path: '/open/../ws/1' }, 400],
    ['H24 a route that does not allow WebSockets', { path: '/plain/1' }, 403],
    ['two tokens', { headers: ['Authorization: Bearer B'] }, 400],
    ['two hosts', { headers: ['Host: b'] }, 400],
    ['a Connection field that names the host', { headers: ['Connection: host'] }, 400],
  ])('%s is refused, and the upstream gets nothing', async (_what, request, status) => {
    const upstream = await startSilentUpstream();
    const proxy = await startProxyTo(upstream.url);
    const client = await openWebSocket({ port: proxy.port, ...request });
    expect(client.status).toBe(status);
    expect(client.head).toMatch(/connection: close/i);
    expect(JSON.parse(client.body())).toHaveProperty('error');
    await until('the connection is closed', () => client.isClosed());
    expect([upstream.connectionCount(), upstream.bytes()]).toEqual([0, '']);
  });

  const UPGRADE = ['Connection: Upgrade', 'Upgrade: websocket'];
  const KEY = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==';
  const VERSION = 'Sec-WebSocket-Version: 13';
  test.each([
    ['no key', [...UPGRADE, VERSION], 400],
    ['a malformed key', [...UPGRADE, VERSION, 'Sec-WebSocket-Key: x'], 400],
    ['two keys', [...UPGRADE, VERSION, KEY, KEY], 400],
    ['a key named in Connection', ['Connection: Upgrade, Sec-WebSocket-Key', 'Upgrade: websocket', VERSION, KEY], 400],
    ['another version', [...UPGRADE, KEY, 'Sec-WebSocket-Version: 777'], 426],
    ['no version', [...UPGRADE, KEY], 426],
    ['an additional protocol', ['Connection: Upgrade', 'Upgrade: websocket, h2c', KEY, VERSION], 403],
    ['two Upgrade fields', [...UPGRADE, 'Upgrade: h2c', KEY, VERSION], 403],
    ['no Connection: Upgrade', ['Upgrade: websocket', KEY, VERSION], 403],
    ['a body', [...UPGRADE, KEY, VERSION, 'Content-Length: 3', 'Connection: close'], 403],
  ])('a handshake with %s is refused, and the upstream gets nothing', async (_what, handshake, status) => {
    const upstream = await startSilentUpstream();
    const proxy = await startProxyTo(upstream.url);
    const client = await openWebSocket({ port: proxy.port, handshake });
    cleanups.push(() => client.destroy());
    expect(client.status).toBe(status);
    if (status === 426) expect(client.head).toMatch(/sec-websocket-version: 13/i);
    expect(upstream.bytes()).toBe('');
  });

  test('H23 an upgrade to h2c is an ordinary request on a route with WebSockets too', async () => {
    const upstream = await startRecordingUpstream();
    cleanups.push(() => upstream.close());
    const proxy = await startProxyTo(upstream.url);
    const { status } = await rawRequest(
      proxy.port,
      'GET /ws/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n',
    );
    expect(status).toBe(200);
    expect(upstream.bytes()).not.toMatch(/upgrade|h2c|http2-settings/i);
  });

  test('I01 I03 I04 only the gateway sets the identity headers', async () => {
    const { upstream, open } = await setUp();
    const client = await open({
      headers: [
        'Connection: X-Forwarded-User, X-Forwarded-Client-Id, Authorization, X-Private',
        'X-Forwarded-User: root',
        'X_Forwarded-User: root',
        'x.forwarded.user: root',
        'X-Forwarded-Client-Id: root',
        'X-Forwarded-For: 6.6.6.6',
        'X-Private: for this hop only',
        'Proxy-Authorization: Basic x',
        'X-Plain: stays',
      ],
    });
    expect(client.status).toBe(101);
    const raw = upstream.handshakes[0]?.rawHeaders ?? [];
    const getValues = (name: string) => raw.filter((_, at) => raw[at - 1]?.toLowerCase() === name && at % 2 === 1);
    expect(getValues('x-forwarded-user')).toEqual(['local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}']);
    expect(getValues('x-forwarded-client-id')).toEqual(['report-runner']);
    expect(getValues('x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(getValues('connection')).toEqual(['Upgrade']);
    expect(getValues('upgrade')).toEqual(['websocket']);
    expect(getValues('x-plain')).toEqual(['stays']);
    expect(getValues('sec-websocket-key')).toEqual([client.key]);
    expect(raw.join('\n')).not.toMatch(/root|6\.6\.6\.6|this hop only|Basic|Bearer/);
  });

  test('I01 no identity is forwarded on a public route', async () => {
    const { upstream, open } = await setUp();
    const client = await open({ path: '/open/1', token: '', headers: ['X-Forwarded-User: root'] });
    expect(client.status).toBe(101);
    expect(upstream.handshakes[0]?.rawHeaders.join('\n')).not.toMatch(/root|x-forwarded-user/i);
  });

  test('the allowed origins apply to WebSocket handshakes of browsers', async () => {
    const cors = {
      origins: new Set(['https://app.test']),
      headers: [],
      exposeHeaders: [],
      credentials: false,
      maxAge: 0,
    };
    const { open } = await setUp({}, { rules: [rule('/ws/**', 'files:read', { websocket: true, cors })] });
    expect((await open({ headers: ['Origin: https://app.test'] })).status).toBe(101);
    expect((await open()).status).toBe(101);
    expect((await open({ headers: ['Origin: https://evil.test'] })).status).toBe(403);
    expect((await open({ headers: ['Origin: null'] })).status).toBe(403);
  });
});

describe('an upstream that does not accept the handshake', () => {
  const decline = (response: string): WebSocketUpstreamOptions => ({
    respond: (_request, socket) => void socket.end(response),
  });

  test('a response other than 101 is forwarded unchanged, and is the last on the connection', async () => {
    const { open, proxy } = await setUp(
      decline('HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\nX-Forwarded-User: x\r\nKeep-Alive: 5\r\n\r\nfull'),
    );
    const client = await open({ earlyData: Buffer.from('GET /plain/x HTTP/1.1\r\nHost: a\r\n\r\n') });
    expect(client.status).toBe(409);
    await until('the connection is closed', () => client.isClosed());
    expect(client.body()).toBe('full');
    expect(client.head).toMatch(/connection: close/i);
    expect(client.head).not.toMatch(/x-forwarded-user|keep-alive/i);
    expect(proxy.notes).toHaveLength(1);
  });

  test('after a 200 no frames are forwarded', async () => {
    const { open, upstream } = await setUp(decline('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'));
    const client = await open({ earlyData: encodeFrame(TEXT, 'hidden', true) });
    expect(client.status).toBe(200);
    await until('the connection is closed', () => client.isClosed());
    expect(upstream.messages).toEqual([]);
  });

  test.each([
    ['a 101 without Sec-WebSocket-Accept', ['Connection: Upgrade', 'Upgrade: websocket']],
    [
      'a 101 with a wrong Sec-WebSocket-Accept',
      ['Connection: Upgrade', 'Upgrade: websocket', `Sec-WebSocket-Accept: ${computeAccept('x')}`],
    ],
    ['a 101 to another protocol', ['Connection: Upgrade', 'Upgrade: h2c']],
    ['a 101 without Upgrade', ['Connection: Upgrade', 'Sec-WebSocket-Accept: <accept>']],
    ['a 101 without Connection', ['Upgrade: websocket', 'Sec-WebSocket-Accept: <accept>']],
    [
      'a 101 whose Connection field does not list Upgrade',
      ['Connection: keep-alive, x-upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Accept: <accept>'],
    ],
    ['a 101 without fields', []],
  ])('%s is 502, and no frames are forwarded', async (_what, fields) => {
    const { open, upstream } = await setUp({
      respond: ({ headers }, socket) => {
        const accept = computeAccept(String(headers['sec-websocket-key']));
        const head = ['HTTP/1.1 101 Switching Protocols', ...fields].join('\r\n').replace('<accept>', accept);
        socket.write(`${head}\r\n\r\n`);
      },
    });
    const client = await open({ earlyData: encodeFrame(TEXT, 'hidden', true) });
    expect(client.status).toBe(502);
    await until('the upstream connection is closed', () => upstream.open() === 0);
    expect(upstream.messages).toEqual([]);
  });

  test.each([
    ['000 X'],
    ['001 X'],
    ['099 X'],
    ['000 X\r\nContent-Length: 2'],
    ['099 X\r\nConnection: Upgrade\r\nUpgrade: websocket'],
    ['200 OK\r\nTrailer: X-A\r\nContent-Length: 2'],
    ['999 X\r\nTrailer: X-A\r\nTransfer-Encoding: gzip'],
  ])('U07 %j as the response is no uncaught exception, and the next handshake is served', async (text) => {
    let isBroken = true;
    const { open } = await setUp({
      respond: (request, socket) => {
        if (!isBroken) return acceptUpgrade(request, socket);
        socket.end(`HTTP/1.1 ${text}\r\n\r\nok`);
      },
    });
    expect((await open()).status).toBe(text.startsWith('0') ? 502 : Number(text.slice(0, 3)));
    isBroken = false;
    expect((await open()).status).toBe(101);
  });

  test('an unreachable upstream is 502, and so is one that closes without a response', async () => {
    const proxy = await startProxyTo('http://127.0.0.1:1');
    const client = await openWebSocket({ port: proxy.port });
    expect(client.status).toBe(502);
    const { open } = await setUp({ respond: (_request, socket) => void socket.destroy() });
    expect((await open()).status).toBe(502);
  });

  test('a silent upstream is 504 after the header timeout', async () => {
    const upstream = await startSilentUpstream();
    const proxy = await startProxyTo(upstream.url, {
      upstreamSettings: { timeouts: { connect: 1, headers: 0.2, idle: 5 } },
    });
    const client = await openWebSocket({ port: proxy.port });
    expect(client.status).toBe(504);
    await until('the upstream connection is closed', () => upstream.openConnections() === 0);
  });

  test('a stalled response is aborted', async () => {
    const { open, upstream } = await setUp(
      {
        respond: (_request, socket) => void socket.write('HTTP/1.1 409 Conflict\r\nContent-Length: 400\r\n\r\nhalf'),
      },
      { upstreamSettings: { timeouts: { connect: 1, headers: 5, idle: 0.3 } } },
    );
    const client = await open();
    await until('both connections are closed', () => client.isClosed() && upstream.open() === 0);
    expect(client.body()).toBe('half');
  });

  test('an event stream may be silent for longer than timeouts.idle', async () => {
    const senders: Socket[] = [];
    const { open, upstream } = await setUp(
      {
        respond: (_request, socket) => {
          socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n');
          senders.push(socket);
        },
      },
      { upstreamSettings: { timeouts: { connect: 1, headers: 5, idle: 0.1, events: 60 } } },
    );
    const client = await open();
    expect(client.status).toBe(200);
    const begun = performance.now();
    await until('several idle timeouts have passed', () => performance.now() - begun > 500);
    senders[0]?.write('data: late\n\n');
    await until('the event arrives', () => client.body().includes('data: late'));
    expect([client.isClosed(), upstream.open()]).toEqual([false, 1]);
  });

  test('the head of a response is forwarded before its body arrives', async () => {
    const { open, upstream, proxy } = await setUp({
      respond: (_request, socket) => void socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n'),
    });
    const client = await open();
    expect(client.status).toBe(200);
    client.destroy();
    await until('the upstream connection is closed', () => upstream.open() === 0);
    // The client has closed it, not the upstream.
    expect(proxy.log.filter((line) => line.includes('upstream_aborted'))).toEqual([]);
  });

  test('an event stream that its client does not read ends after timeouts.idle', async () => {
    let isUpstreamClosed = false;
    const { proxy } = await setUp(
      {
        respond: (_request, socket) => {
          socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n');
          const event = `data: ${'x'.repeat(100_000)}\n\n`;
          const send = (): void => {
            while (socket.writable && socket.write(event));
          };
          socket.on('drain', send).on('close', () => (isUpstreamClosed = true));
          send();
        },
      },
      { upstreamSettings: { timeouts: { connect: 1, headers: 5, idle: 0.3, events: 3_600 } } },
    );
    const client = connect(proxy.port, '127.0.0.1').pause();
    cleanups.push(() => client.destroy());
    client.on('error', () => {});
    client.write(
      'GET /ws/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${Buffer.alloc(16).toString('base64')}\r\n\r\n`,
    );
    await until('the upstream connection is closed', () => isUpstreamClosed);
  });

  test('a response that is larger than all buffers is forwarded completely', async () => {
    const body = 'x'.repeat(8 * 1_048_576);
    const { open } = await setUp(decline(`HTTP/1.1 403 Forbidden\r\nContent-Length: ${body.length}\r\n\r\n${body}`));
    const client = await open();
    await until('the response has arrived', () => client.body().length >= body.length);
    expect(client.body() === body).toBe(true);
  });

  test('a truncated response is also truncated for the client', async () => {
    const { open } = await setUp(decline('HTTP/1.1 409 Conflict\r\nContent-Length: 400\r\n\r\nhalf'));
    const client = await open();
    await until('the connection is closed', () => client.isClosed());
    expect(client.head).toMatch(/content-length: 400/i);
    expect(client.body()).toBe('half');
  });
});

describe('the end of a WebSocket', () => {
  test('when either side disconnects, the other is closed', async () => {
    const { upstream, open } = await setUp();
    const first = await open();
    first.destroy();
    await until('the upstream connection is closed', () => upstream.open() === 0);
    const second = await open();
    await upstream.close();
    await until('the client connection is closed', () => second.isClosed());
  });

  test('a reset does not affect other connections', async () => {
    const { upstream, open } = await setUp();
    const [first, other] = [await open(), await open()];
    first.socket.resetAndDestroy();
    await until('one connection is left', () => upstream.open() === 1);
    other.send('still here');
    await until('the echo arrives', () => other.messages.includes('echo still here'));
  });

  test('a half-close by the client closes the whole connection', async () => {
    const { open } = await setUp({ ignoresEnd: true });
    const client = await open();
    client.socket.end();
    await until('the WebSocket is closed', () => client.isClosed());
  });

  test('an idle WebSocket is closed with a Close frame', async () => {
    const { upstream, open } = await setUp(
      {},
      { upstreamSettings: { timeouts: { connect: 1, headers: 5, idle: 5, websocket: 0.3 } } },
    );
    const client = await open();
    await until('the WebSocket is closed', () => client.isClosed() && upstream.open() === 0);
    expect(client.closed()).toMatchObject({ code: 1001, masked: false });
    expect(upstream.closes).toMatchObject([{ code: 1001, masked: true }]);
  });

  test('more WebSockets than an upstream allows are 503, until one is closed', async () => {
    const { upstream, open } = await setUp({}, { upstreamSettings: { websockets: 2 } });
    const [first] = [await open(), await open()];
    const refused = await open();
    expect(refused.status).toBe(503);
    expect(refused.head).toMatch(/retry-after: 1/i);
    first.destroy();
    await until('one WebSocket is closed', () => upstream.open() === 1);
    expect((await open()).status).toBe(101);
  });

  test('one client cannot take all WebSockets of an upstream', async () => {
    const { upstream, open } = await setUp({}, { upstreamSettings: { websockets: 16 } });
    const clients = [];
    for (let count = 0; count < 14; count += 1) clients.push(await open());
    expect(clients.map(({ status }) => status)).toEqual(Array(14).fill(101));
    expect((await open()).status).toBe(503);
    const other = await open({ path: '/open/1', token: '' });
    expect(other.status).toBe(101);
    for (const client of [...clients, other]) client.destroy();
    await until('all WebSockets are closed', () => upstream.open() === 0);
    expect((await open()).status).toBe(101);
  });

  test('a client that disconnects during the handshake leaves no upstream connection', async () => {
    const upstream = await startSilentUpstream();
    const proxy = await startProxyTo(upstream.url, {
      upstreamSettings: { timeouts: { connect: 1, headers: 1, idle: 5 } },
    });
    const socket = connect(proxy.port, '127.0.0.1');
    socket.write(
      'GET /ws/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
    );
    await until('the upstream has the handshake', () => upstream.requests.length === 1);
    socket.destroy();
    await until('the upstream connection is closed', () => upstream.openConnections() === 0);
  });

  test('closing the proxy sends a close frame', async () => {
    const upstream = await startWebSocketUpstream();
    cleanups.push(() => upstream.close());
    const proxy = await startProxyHarness({ rules: RULES, upstream: `http://127.0.0.1:${upstream.port}` });
    const client = await openWebSocket({ port: proxy.port });
    await proxy.close();
    await until('the WebSocket is closed', () => client.isClosed() && upstream.open() === 0);
  });
});
