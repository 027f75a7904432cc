import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { BlockList, connect, type Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { type ConnectionOptions, type TLSSocket, connect as tlsConnect } from 'node:tls';
import { afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { readBody } from '../../src/http/read-body.ts';
import type { RequestContext } from '../../src/http/request-context.ts';
import type { PeerList } from '../../src/listener/client-address.ts';
import type { PublicListener, PublicListenerOptions, RequestOutcome } from '../../src/listener/listener.ts';
import { HANDSHAKE_SECONDS } from '../../src/listener/listener-options.ts';
import { fragmentClientHello } from '../support/fragmented-client-hello.ts';
import { type RequestParams, sendRequest } from '../support/https-client.ts';
import { startTestListener } from '../support/listener.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { until } from '../support/serve-process.ts';

const LOCAL: PeerList = {
  hasEntries: true,
  includes: (address) => /^(?:::ffff:)?127\.0\.0\.1$/.test(address),
};

const createPeerList = (...networks: readonly (readonly [string, number])[]): PeerList => {
  const list = new BlockList();
  for (const [address, bits] of networks) list.addSubnet(address, bits);
  return { hasEntries: true, includes: (address) => list.check(address.replace('::ffff:', '')) };
};

const TICKET_SECRET = randomBytes(32);

let ca: IssuedCertificate;
let server: IssuedCertificate;
let alice: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
  server = await issueServer(ca);
  alice = await issue(ca);
});

const openListeners: PublicListener[] = [];
const sockets: Socket[] = [];
afterEach(async () => {
  vi.useRealTimers();
  for (const socket of sockets.splice(0)) socket.destroy();
  await Promise.all(openListeners.splice(0).map((listener) => listener.close()));
});

const createTlsMaterial = (identity: IssuedCertificate = server) => ({
  certificate: identity.pem,
  key: identity.keyPem,
  minVersion: 'TLSv1.2' as const,
  issuers: [ca.pem],
  tickets: { secret: TICKET_SECRET, scope: 'here' },
});

/** Responds with the properties of the request context. */
const describeRequest = (context: RequestContext): void => {
  context.response.end(
    JSON.stringify({
      certificate:
        context.certificate()?.equals(alice.der) === true ? 'alice' : context.certificate() && 'other',
      peer: context.peer,
      client: context.clientAddress,
      id: context.id,
    }),
  );
};

async function listen(
  options: Omit<Partial<PublicListenerOptions>, 'tls'> & {
    ask?: 'always' | 'never' | readonly string[];
    plain?: boolean;
  } = {},
): Promise<PublicListener> {
  const { ask = 'always', plain = false, ...rest } = options;
  const listener = await startTestListener({
    ...(!plain && { tls: { ...createTlsMaterial(), askCertificate: ask } }),
    onRequest: describeRequest,
    ...rest,
  });
  openListeners.push(listener);
  return listener;
}

interface ListenerReply {
  readonly status: number;
  readonly body: { certificate?: string; peer?: string; client?: string; id?: string; error?: string };
  readonly headers: IncomingMessage['headers'];
}

/** Sends one request on a new connection. */
async function call(port: number, options: Partial<RequestParams> = {}): Promise<ListenerReply> {
  const { status, json, headers } = await sendRequest({ port, path: '/', ca: ca.pem, ...options });
  return { status, body: json, headers };
}

const withAlice = () => ({ cert: alice.pem, key: alice.keyPem });

async function connectTls(
  port: number,
  options: ConnectionOptions = {},
): Promise<TLSSocket & { readonly sessions: Buffer[] }> {
  const sessions: Buffer[] = [];
  const socket = tlsConnect({ host: '127.0.0.1', port, ca: ca.pem, servername: 'localhost', ...options });
  sockets.push(socket);
  socket.on('error', () => {});
  socket.on('session', (session: Buffer) => sessions.push(session));
  await once(socket, 'secureConnect');
  return Object.assign(socket, { sessions });
}

async function connectPlain(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  sockets.push(socket);
  socket.on('error', () => {});
  await once(socket, 'connect');
  return socket;
}

/** Reads from a connection until it is closed or the text matches. */
async function readUntil(socket: Socket, until?: RegExp): Promise<string> {
  let text = '';
  return new Promise((resolve) => {
    const done = (): void => {
      socket.off('data', onData);
      resolve(text);
    };
    const onData = (part: Buffer): void => {
      text += part.toString('latin1');
      if (until?.test(text) === true) done();
    };
    socket.on('data', onData).once('close', done);
  });
}

const GET = 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n';

describe('the certificate of a connection', () => {
  test('C01 is the one whose key the client has proved to possess', async () => {
    const { port } = await listen();
    expect((await call(port, withAlice())).body.certificate).toBe('alice');
  });

  test('C01 is accepted from any issuer; it is verified for each request', async () => {
    const { port } = await listen();
    const outsider = await issue(await createCa({ name: 'CN=Stranger' }));
    expect((await call(port, { cert: outsider.pem, key: outsider.keyPem })).body.certificate).toBe('other');
  });

  test.each(['TLSv1.2', 'TLSv1.3'] as const)(
    'C02 is absent if the client has none, also on a resumed %s session; a resumed session keeps its certificate',
    async (version) => {
      const { port } = await listen();
      for (const [presented, expected] of [
        [{}, undefined],
        [withAlice(), 'alice'],
      ] as const) {
        const options = { ...presented, minVersion: version, maxVersion: version };
        const first = await connectTls(port, options);
        first.write(GET);
        const reply = await readUntil(first, /\}$/);
        const resumed = await connectTls(port, {
          minVersion: version,
          maxVersion: version,
          session: first.sessions.at(-1),
        });
        resumed.write(GET);
        const resumedReply = await readUntil(resumed, /\}$/);
        expect(resumed.isSessionReused()).toBe(true);
        for (const response of [reply, resumedReply])
          expect(JSON.parse(response.slice(response.indexOf('{')))['certificate']).toBe(expected);
      }
    },
  );

  test('C02 is not requested when disabled', async () => {
    const { port } = await listen({ ask: 'never' });
    expect((await call(port, withAlice())).body.certificate).toBeUndefined();
  });
});

describe('C18 a certificate is requested for some names', () => {
  const strict = ['strict.example.test'];
  const withNames = (servername: string, host: string) => ({ ...withAlice(), servername, headers: { host } });

  test('C18 it is requested for these names and not for others', async () => {
    const { port } = await listen({ ask: strict });
    const request = await call(port, withNames('STRICT.example.test', 'strict.example.test'));
    const withoutRequest = await call(port, withNames('open.example.test', 'open.example.test'));
    expect(request.body.certificate).toBe('alice');
    expect(withoutRequest.status).toBe(200);
    expect(withoutRequest.body.certificate).toBeUndefined();
  });

  test.each(['strict.example.test', 'Strict.Example.Test.', 'strict.example.test:8443'])(
    'C18 a connection opened for another name is misdirected for %s',
    async (host) => {
      const { port } = await listen({ ask: strict });
      const reply = await call(port, withNames('open.example.test', host));
      expect(reply.status).toBe(421);
      expect(reply.body.error).toBe('misdirected_request');
    },
  );

  test('C18 the strict name hidden in a second Host or in the target is found too', async () => {
    const { port } = await listen({ ask: strict });
    for (const head of [
      'GET / HTTP/1.1\r\nHost: open.example.test\r\nHost: strict.example.test\r\n\r\n',
      'GET https://strict.example.test/ HTTP/1.1\r\nHost: open.example.test\r\n\r\n',
    ]) {
      const socket = await connectTls(port, { servername: 'open.example.test' });
      socket.write(head);
      expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 421 /);
    }
  });

  test('C18 a client without SNI is asked for a certificate', async () => {
    const { port } = await listen({ ask: strict });
    const reply = await call(port, { ...withAlice(), servername: '' });
    expect(reply.body.certificate).toBe('alice');
  });

  test('C18 a ClientHello in one-byte records is parsed like any other', async () => {
    const { port } = await listen({ ask: strict });
    for (const [servername, expected] of [
      ['strict.example.test', 'alice'],
      ['open.example.test', undefined],
    ] as const) {
      const wire = await connectPlain(port);
      const socket = await connectTls(port, {
        ...withAlice(),
        socket: fragmentClientHello(wire),
        servername,
      });
      socket.write(GET.replace('localhost', servername));
      const response = await readUntil(socket, /\}$/);
      expect(JSON.parse(response.slice(response.indexOf('{')))['certificate']).toBe(expected);
    }
  });

  test('C18 a connection that does not start with a ClientHello is closed', async () => {
    const { port } = await listen({ ask: strict });
    const socket = await connectPlain(port);
    socket.write(GET);
    expect(await readUntil(socket)).not.toContain('200');
  });

  test('C18 a connection whose ClientHello does not arrive in time is closed', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const listener = await listen({ ask: strict });
    const slow = await connectPlain(listener.port);
    slow.write(Buffer.from([22, 3, 1]));
    while (listener.countConnections() === 0) await setImmediate();
    vi.advanceTimersByTime(HANDSHAKE_SECONDS * 1_000 - 1);
    await call(listener.port);
    expect(slow.readableEnded).toBe(false);
    vi.advanceTimersByTime(1);
    await readUntil(slow);
  });
});

describe('C19 abusive handshakes', () => {
  test('C19 a chain of four hundred certificates closes only its connection', async () => {
    const { port } = await listen();
    const chain = Array.from({ length: 400 }, () => alice.pem).join('');
    const socket = tlsConnect({
      host: '127.0.0.1',
      port,
      ca: ca.pem,
      servername: 'localhost',
      cert: chain,
      key: alice.keyPem,
    });
    sockets.push(socket);
    socket.on('error', () => {}).write(GET);
    expect(await readUntil(socket)).not.toContain('200 OK');
    expect((await call(port, withAlice())).body.certificate).toBe('alice');
  });

  test('C19 renegotiation is refused', async () => {
    const { port } = await listen();
    const socket = await connectTls(port, { maxVersion: 'TLSv1.2', ...withAlice() });
    const refused = await new Promise<boolean>((resolve) => {
      socket.on('close', () => resolve(true)).on('error', () => resolve(true));
      socket.renegotiate({ rejectUnauthorized: false }, (error) => resolve(error !== null));
    });
    expect(refused).toBe(true);
  });
});

describe('the server certificate', () => {
  test('changes for new connections without closing the port, with the new minimum TLS version', async () => {
    const listener = await listen();
    const next = await issueServer(ca, { commonName: 'next' });
    const before = await connectTls(listener.port);
    listener.setSecureContext({ ...createTlsMaterial(next), minVersion: 'TLSv1.3' });
    const after = await connectTls(listener.port);
    expect(before.getPeerX509Certificate()?.serialNumber.toLowerCase()).toBe(server.serial);
    expect(after.getPeerX509Certificate()?.serialNumber.toLowerCase()).toBe(next.serial);
    await expect(call(listener.port, { maxVersion: 'TLSv1.2' })).rejects.toThrow();
    before.write(GET);
    expect(await readUntil(before, /\}$/)).toContain('200 OK');
  });

  test('is kept if the new one cannot be used', async () => {
    const listener = await listen({ ask: ['strict.example.test'] });
    expect(() => listener.setSecureContext({ ...createTlsMaterial(), key: alice.keyPem })).toThrow();
    expect((await call(listener.port)).status).toBe(200);
  });
});

describe('the client address and request id', () => {
  test('X-Forwarded-For and X-Request-Id of an untrusted client are ignored', async () => {
    const { port } = await listen({ plain: true });
    const { body } = await call(port, {
      plain: true,
      headers: { 'x-forwarded-for': '203.0.113.9', 'x-request-id': 'abcdefgh12345678' },
    });
    expect(body.client).toBe('127.0.0.1');
    expect(body.id).not.toBe('abcdefgh12345678');
  });

  test.each([
    ['203.0.113.9', '203.0.113.9'],
    ['198.51.100.7, 203.0.113.9', '203.0.113.9'],
    ['198.51.100.7, 203.0.113.9, 10.0.0.3', '203.0.113.9'],
    ['10.0.0.4, 10.0.0.3', '10.0.0.4'],
    ['evil, 10.0.0.3', '10.0.0.3'],
    ['evil', '127.0.0.1'],
    ['[2001:db8::1]:4711', '2001:db8::1'],
    ['203.0.113.9:80', '203.0.113.9'],
  ])('behind listed proxies X-Forwarded-For %j means %s', async (forwarded, client) => {
    const trustedProxies = createPeerList(['127.0.0.0', 8], ['10.0.0.0', 8]);
    const { port } = await listen({ plain: true, trustedProxies });
    const { body } = await call(port, { plain: true, headers: { 'x-forwarded-for': forwarded } });
    expect(body).toMatchObject({ peer: '127.0.0.1', client });
  });

  test('a listed proxy’s request id is kept if it is well-formed', async () => {
    const { port } = await listen({ plain: true, trustedProxies: LOCAL });
    const getIdFor = async (id: string) =>
      (await call(port, { plain: true, headers: { 'x-request-id': id } })).body.id;
    expect(await getIdFor('abcdefgh12345678')).toBe('abcdefgh12345678');
    expect(await getIdFor('a"b{}<script>xx')).toMatch(/^[A-Za-z0-9_-]{16}$/);
  });
});

describe('the PROXY protocol', () => {
  const V2 = Buffer.from('0d0a0d0a000d0a515549540a', 'hex');
  const v2 = (command: number, family: number, rest: Buffer): Buffer => {
    const head = Buffer.from([command, family, 0, 0]);
    head.writeUInt16BE(rest.length, 2);
    return Buffer.concat([V2, head, rest]);
  };
  const ipv4 = Buffer.from([203, 0, 113, 9, 10, 0, 0, 1, 0x10, 0x00, 0x01, 0xbb]);
  const cases: readonly (readonly [string, Buffer, string])[] = [
    ['version 1', Buffer.from('PROXY TCP4 203.0.113.9 10.0.0.1 4096 443\r\n'), '203.0.113.9'],
    ['version 1, IPv6', Buffer.from('PROXY TCP6 2001:db8::1 ::1 4096 443\r\n'), '2001:db8::1'],
    ['version 1, unknown', Buffer.from('PROXY UNKNOWN\r\n'), '127.0.0.1'],
    ['version 2', v2(0x21, 0x11, ipv4), '203.0.113.9'],
    [
      'version 2 with extras',
      v2(0x21, 0x11, Buffer.concat([ipv4, Buffer.from([4, 0, 1, 0])])),
      '203.0.113.9',
    ],
    [
      'version 2, IPv6',
      v2(0x21, 0x21, Buffer.from(`20010db8${'00'.repeat(11)}01${'00'.repeat(20)}`, 'hex')),
      '2001:db8::1',
    ],
    ['version 2, local', v2(0x20, 0x00, Buffer.alloc(0)), '127.0.0.1'],
  ];

  test.each(cases)(
    '%s from a listed peer provides the client address, over TLS and plain',
    async (_name, header, peer) => {
      const secure = await listen({ proxyProtocol: LOCAL });
      const rawSocket = await connectPlain(secure.port);
      rawSocket.write(header);
      const socket = await connectTls(secure.port, { socket: rawSocket, ...withAlice() });
      socket.write(GET);
      const response = await readUntil(socket, /\}$/);
      expect(JSON.parse(response.slice(response.indexOf('{')))).toMatchObject({ peer, certificate: 'alice' });

      const plain = await listen({ proxyProtocol: LOCAL, plain: true });
      const direct = await connectPlain(plain.port);
      // In two pieces, split inside the header.
      direct.write(header.subarray(0, 9));
      await setImmediate();
      direct.write(Buffer.concat([header.subarray(9), Buffer.from(GET)]));
      expect(await readUntil(direct, /\}$/)).toContain(`"peer":"${peer}"`);
    },
  );

  test.each([
    ['no header', Buffer.from(GET)],
    ['an invalid address', Buffer.from(`PROXY TCP4 999.0.113.9 10.0.0.1 4096 443\r\n${GET}`)],
    ['an endless header', Buffer.from(`PROXY TCP4 ${'1'.repeat(200)}`)],
    ['a version 2 header that is too long', Buffer.concat([V2, Buffer.from([0x21, 0x11, 0xff, 0xff])])],
    [
      'a version 2 header that is too short',
      Buffer.concat([V2, Buffer.from([0x21, 0x11, 0, 4, 1, 2, 3, 4])]),
    ],
  ])('the connection of a listed peer that sends %s is closed without a response', async (_name, bytes) => {
    const { port } = await listen({ proxyProtocol: LOCAL, plain: true });
    const socket = await connectPlain(port);
    socket.write(bytes);
    expect(await readUntil(socket)).toBe('');
  });

  test('from any other peer it is an invalid request', async () => {
    const { port } = await listen({ proxyProtocol: createPeerList(['10.0.0.0', 8]), plain: true });
    const socket = await connectPlain(port);
    socket.write(`PROXY TCP4 203.0.113.9 10.0.0.1 4096 443\r\n${GET}`);
    expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 400 /);
  });
});

describe('limits', () => {
  const limits = { headers: 16_384, headerTimeout: 10, connections: 3 };
  const variants = [
    ['directly', {}],
    ['behind the PROXY protocol', { proxyProtocol: createPeerList(['10.0.0.0', 8]) }],
  ] as const;

  test.each(variants)(
    '%s: a malformed request gets an error, and its connection is closed',
    async (_name, variant) => {
      const { port } = await listen({ plain: true, limits, ...variant });
      for (const [bytes, status] of [
        ['GET / HTTP/1.1\r\nBad Header: x\r\n\r\n', 400],
        [`GET / HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(17_000)}\r\n\r\n`, 431],
        ['GET / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\n\r\n', 417],
        ['GET / HTTP/1.1\r\nHost: a\r\nExpect: foo\r\n\r\n', 417],
        ['CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n', 405],
      ] as const) {
        const socket = await connectPlain(port);
        socket.write(bytes);
        expect(await readUntil(socket)).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
      }
    },
  );

  test('a head that does not arrive in time is 408, directly and behind the PROXY protocol', async () => {
    await Promise.all(
      variants.map(async ([, variant]) => {
        const { port } = await listen({ plain: true, limits: { ...limits, headerTimeout: 0.1 }, ...variant });
        const socket = await connectPlain(port);
        socket.write('GET / HTTP/1.1\r\nHost:');
        expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 408 /);
      }),
    );
  });

  test.each(variants)(
    '%s: connections beyond the limit are closed, those within it stay open',
    async (_name, variant) => {
      const listener = await listen({ plain: true, limits, ...variant });
      const openSockets: Socket[] = [];
      for (let count = 0; count < 3; count += 1) {
        const socket = await connectPlain(listener.port);
        socket.write(GET);
        await readUntil(socket, /\}$/);
        openSockets.push(socket);
      }
      expect(listener.countConnections()).toBe(3);
      const late = await connectPlain(listener.port);
      expect(await readUntil(late)).toBe('');
      openSockets[0]?.write(GET);
      expect(await readUntil(openSockets[0] as Socket, /\}$/)).toContain('200 OK');
    },
  );

  test('an upgrade other than WebSocket is an ordinary request; a WebSocket request has its socket', async () => {
    const { port } = await listen({
      plain: true,
      onRequest: ({ upgrade, response, peer }) => {
        if (upgrade === undefined) response.end('{}');
        else upgrade.socket.end(`HTTP/1.1 101 Switching Protocols\r\n\r\n${peer}`);
      },
    });
    const upgradeRequest = (protocol: string) =>
      `GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: ${protocol}\r\n\r\n`;
    const [h2c, ws] = [await connectPlain(port), await connectPlain(port)];
    h2c.write(upgradeRequest('h2c'));
    ws.write(upgradeRequest('websocket'));
    expect(await readUntil(h2c, /\}$/)).toContain('200 OK');
    expect(await readUntil(ws)).toMatch(/^HTTP\/1\.1 101 .*127\.0\.0\.1$/s);
  });

  test('a WebSocket requested after a request still in progress closes the connection', async () => {
    const paths: (string | undefined)[] = [];
    const { port } = await listen({ plain: true, onRequest: ({ request }) => void paths.push(request.url) });
    const socket = await connectPlain(port);
    socket.write('GET /slow HTTP/1.1\r\nHost: a\r\n\r\n');
    socket.write('GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
    expect(await readUntil(socket)).toBe('');
    expect(paths).toEqual(['/slow']);
  });

  test('100 Continue is sent when the body is read, and not if the response does not read it', async () => {
    let readsBody = true;
    const { port } = await listen({
      plain: true,
      onRequest: ({ request, response }) => {
        if (!readsBody) return void response.writeHead(401, { connection: 'close' }).end();
        request
          .on('data', () => {})
          .on('end', () => response.writeHead(200, { connection: 'close' }).end('done'));
      },
    });
    const request = 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n';
    const first = await connectPlain(port);
    first.write(request);
    expect(await readUntil(first, /\r\n\r\n/)).toBe('HTTP/1.1 100 Continue\r\n\r\n');
    first.write('ok');
    expect(await readUntil(first)).toMatch(/^HTTP\/1\.1 200 OK/);
    readsBody = false;
    const second = await connectPlain(port);
    second.write(request);
    expect(await readUntil(second)).toMatch(/^HTTP\/1\.1 401 /);
  });
});

describe('stopping', () => {
  const variants = [
    ['plain', { plain: true }],
    ['TLS', {}],
    ['TLS with parsed ClientHello', { ask: ['strict.example.test'] }],
  ] as const;

  test.each(variants)(
    '%s: a drain lets requests in progress end with `Connection: close`, and closes idle connections',
    async (_name, variant) => {
      const running: RequestContext[] = [];
      const outcomes: RequestOutcome[] = [];
      const listener = await listen({
        ...variant,
        onRequest: (context) =>
          context.request.url === '/slow' ? void running.push(context) : describeRequest(context),
        onRequestEnd: (_call, end) => outcomes.push(end),
      });
      const connectTo = (): Promise<Socket> =>
        'plain' in variant ? connectPlain(listener.port) : connectTls(listener.port, withAlice());
      const idle = await connectTo();
      idle.write(GET);
      await readUntil(idle, /\}$/);
      const busy = await connectTo();
      busy.write(GET.replace('/', '/slow'));
      await until('the request has arrived', () => running.length === 1);
      expect(listener.countConnections()).toBe(2);

      const idleEnded = readUntil(idle);
      const drained = listener.drain(60);
      await idleEnded;
      const response = readUntil(busy);
      running[0]?.response.end('at last');
      expect(await response).toMatch(/connection: close.*at last/is);
      expect(await drained).toBe(true);
      expect(listener.countConnections()).toBe(0);
      expect(outcomes).toHaveLength(2);
      expect(outcomes[1]).toMatchObject({ status: 200, aborted: false });
      await expect(call(listener.port, { plain: 'plain' in variant })).rejects.toThrow();
    },
  );

  test.each(variants)(
    '%s: a request that does not end in time is cut off, and the drain reports it',
    async (_name, variant) => {
      const running: RequestContext[] = [];
      const listener = await listen({ ...variant, onRequest: (context) => void running.push(context) });
      const socket = 'plain' in variant ? await connectPlain(listener.port) : await connectTls(listener.port);
      socket.write(GET);
      await until('the request has arrived', () => running.length === 1);
      const closed = readUntil(socket);
      expect(await listener.drain(0.2)).toBe(false);
      await closed;
      await until('no connection is open', () => listener.countConnections() === 0);
    },
  );
});

describe('a request without a length and without chunks', () => {
  const sendRaw = async (port: number, text: string, end: RegExp): Promise<string> => {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    let received = '';
    await new Promise<void>((resolve, reject) => {
      socket.on('error', reject).on('close', () => resolve());
      socket.setEncoding('latin1').on('data', (part: string) => {
        received += part;
        if (end.test(received)) resolve();
      });
      socket.write(text);
    });
    return received;
  };

  test('has an empty body, and the connection stays open', async () => {
    const listener = await listen({
      plain: true,
      onRequest: ({ request, response }) =>
        void readBody(request, 100, 30).then((body) =>
          response.end(`<${body.kind === 'complete' ? body.bytes.toString() : body.kind}>`),
        ),
    });
    const head = 'POST / HTTP/1.1\r\nHost: a\r\n';
    const text = await sendRaw(
      listener.port,
      `${head}\r\n${head}Content-Length: 2\r\n\r\nab${head}\r\n`,
      /<>[^]*<ab>[^]*<>/,
    );
    expect(text.match(/<[^>]*>/g)).toEqual(['<>', '<ab>', '<>']);
  });
});
