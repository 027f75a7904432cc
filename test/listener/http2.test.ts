import { type ClientHttp2Session, connect as connectHttp2, type OutgoingHttpHeaders } from 'node:http2';
import { connect as connectNet } from 'node:net';
import { type ConnectionOptions, connect as connectTls, type TLSSocket } from 'node:tls';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type IssuedCertificate } from '../support/pki.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gatehouse: TestGateway;
beforeAll(async () => {
  gatehouse = await startGateway();
});
afterAll(() => gatehouse.close());

const openClients: { destroy(): void }[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
});

interface Http2Response {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly text: string;
}

function openSession(at: TestGateway, options: ConnectionOptions = {}, as?: IssuedCertificate): ClientHttp2Session {
  const session = connectHttp2('https://localhost', {
    // For the client, which buffers its request bodies.
    maxSessionMemory: 200,
    createConnection: () =>
      connectTls({
        port: at.port,
        host: '127.0.0.1',
        servername: 'localhost',
        ca: at.ca.pem,
        ALPNProtocols: ['h2'],
        ...(as !== undefined && { cert: as.pem, key: as.keyPem }),
        ...options,
      }),
  });
  session.on('error', () => {});
  openClients.push(session);
  return session;
}

const send = (session: ClientHttp2Session, fields: OutgoingHttpHeaders, body?: string): Promise<Http2Response> =>
  new Promise((resolve, reject) => {
    const stream = session.request({ ':authority': 'localhost:8443', ...fields }, { endStream: body === undefined });
    let headers: Record<string, unknown> = {};
    let text = '';
    stream.setEncoding('utf8');
    stream.on('response', (given) => {
      headers = { ...given };
    });
    stream.on('data', (part: string) => {
      text += part;
    });
    stream.on('error', reject).on('end', () => resolve({ status: Number(headers[':status']), headers, text }));
    if (body !== undefined) stream.end(body);
  });

async function withGateway<T>(change: SettingsChange, run: (other: TestGateway) => Promise<T>): Promise<T> {
  const other = await startGateway(change);
  try {
    return await run(other);
  } finally {
    for (const client of openClients.splice(0)) client.destroy();
    await other.close();
  }
}

const negotiate = (at: TestGateway, protocols: string[]): Promise<string | false | null> =>
  new Promise((resolve, reject) => {
    const socket: TLSSocket = connectTls(
      {
        port: at.port,
        host: '127.0.0.1',
        servername: 'localhost',
        ca: at.ca.pem,
        ALPNProtocols: protocols,
      },
      () => resolve(socket.alpnProtocol),
    );
    openClients.push(socket);
    socket.on('error', reject);
  });

test('a client gets HTTP/2 if it offers it, otherwise HTTP/1.1, and no connection if it offers neither', async () => {
  expect(await negotiate(gatehouse, ['h2', 'http/1.1'])).toBe('h2');
  expect(await negotiate(gatehouse, ['http/1.1'])).toBe('http/1.1');
  await expect(negotiate(gatehouse, ['spdy/3'])).rejects.toThrow();
});

test('when disabled, HTTP/2 is not offered; without TLS the HTTP/2 preface is refused', async () => {
  await withGateway(
    (settings) => ({ ...settings, listen: { ...settings.listen, http2: false } }),
    async (other) => {
      expect(await negotiate(other, ['h2', 'http/1.1'])).toBe('http/1.1');
    },
  );
  await withGateway(
    (settings) => ({ ...settings, listen: { port: 0, behindTls: true } }),
    async (other) => {
      const socket = connectNet(other.port, '127.0.0.1');
      openClients.push(socket);
      let text = '';
      socket.setEncoding('latin1').on('data', (part: string) => {
        text += part;
      });
      socket.on('error', () => {});
      socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
      await expect.poll(() => socket.destroyed || text !== '', { timeout: 5_000 }).toBe(true);
      expect(text === '' || /^HTTP\/1\.1 (?:400|405|505) /.test(text)).toBe(true);
    },
  );
});

test('C01 a certificate presented in the handshake applies to every request of the connection', async () => {
  const { alice } = gatehouse.users;
  const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
  const fields = {
    ':method': 'POST',
    ':path': '/authsvc/Authorize/Certificate',
    'content-type': 'application/json',
  };
  const aliceSession = openSession(gatehouse, {}, alice);
  const granted = await Promise.all([send(aliceSession, fields, body), send(aliceSession, fields, body)]);
  expect(granted.map(({ status }) => status)).toEqual([200, 200]);
  const { access_token: token } = JSON.parse(granted[0]?.text ?? '{}') as { access_token: string };
  expect((await send(openSession(gatehouse), fields, body)).status).toBe(401);

  const served = await send(aliceSession, { ':path': '/files/1', authorization: `Bearer ${token}` });
  expect([served.status, served.headers['connection']]).toEqual([200, undefined]);
  expect((await send(aliceSession, { ':path': '/files/1' })).headers['www-authenticate']).toBe(
    'Bearer realm="gatehouse", resource_metadata="https://localhost:8443/.well-known/oauth-protected-resource/files/1"',
  );
});

test('D11 the pages work over HTTP/2', async () => {
  const page = await send(openSession(gatehouse), { ':path': '/authsvc/device' });
  expect([page.status, page.headers['x-frame-options']]).toEqual([200, 'DENY']);
  expect(page.text).toContain('<form method="post"');
});

test('forward-auth works over HTTP/2', async () => {
  await withGateway(
    (settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }),
    async (other) => {
      const { access_token: token } = await other.grant();
      const body = {
        ':path': '/authsvc/check',
        'x-forwarded-method': 'GET',
        'x-forwarded-uri': '/files/1',
        'x-forwarded-proto': 'https',
        'x-forwarded-host': 'localhost:8443',
      };
      const gateway = openSession(other);
      expect((await send(gateway, body)).status).toBe(401);
      const allowed = await send(gateway, { ...body, authorization: `Bearer ${token}` });
      expect([allowed.status, allowed.headers['x-forwarded-client-id']]).toEqual([200, 'report-runner']);
    },
  );
});

test('C18 a connection opened for another name, without a certificate request, is not used for the strict name', async () => {
  await withGateway(
    ({ listen, ...settings }) => ({
      ...settings,
      listen: {
        ...listen,
        tls: { certificate: 'server.pem', key: 'server-key.pem', askCertificate: ['strict.test'] },
      },
      routes: [{ path: '/health', host: 'strict.test', public: true }, ...(settings.routes ?? [])],
    }),
    async (other) => {
      const laxSession = openSession(other, { servername: 'localhost' });
      expect((await send(laxSession, { ':path': '/health' })).status).toBe(200);
      const strict = await send(laxSession, { ':path': '/health', ':authority': 'strict.test' });
      expect(strict.status).toBe(421);
      // Other requests on the connection are still served.
      expect((await send(laxSession, { ':path': '/health' })).status).toBe(200);
    },
  );
});

test('the PROXY protocol provides the client address over HTTP/2, too', async () => {
  await withGateway(
    (settings) => ({ ...settings, listen: { ...settings.listen, proxyProtocol: ['127.0.0.1'] } }),
    async (other) => {
      const raw = connectNet(other.port, '127.0.0.1');
      openClients.push(raw);
      raw.write('PROXY TCP4 203.0.113.7 127.0.0.1 4711 443\r\n');
      const proxiedSession = openSession(other, { socket: raw });
      const { status, text } = await send(proxiedSession, { ':path': '/health' });
      expect(status).toBe(200);
      const { headers } = JSON.parse(text) as { headers: Record<string, string> };
      expect(headers['x-forwarded-for']).toBe('203.0.113.7');
    },
  );
});

test('large bodies are uploaded concurrently on one connection', async () => {
  const session = openSession(gatehouse);
  const body = 'x'.repeat(3_000_000);
  const responses = await Promise.all(
    Array.from({ length: 8 }, () => send(session, { ':method': 'POST', ':path': '/health' }, body)),
  );
  expect(responses.map(({ status }) => status)).toEqual(responses.map(() => 200));
});

test('completed requests with a body do not count as resets, neither in the log nor for the reset limit', async () => {
  const session = openSession(gatehouse);
  const logLength = gatehouse.log.length;
  const body = JSON.stringify({ client_id: 'report-runner', refresh_token: 'ghr_none' });
  const fields = {
    ':method': 'POST',
    ':path': '/authsvc/Authorize/Token',
    'content-type': 'application/json',
  };
  // More than the reset limit allows (100, and 20 per second), however long the test takes.
  for (let done = 0; done < 12; done += 1)
    await Promise.all(Array.from({ length: 50 }, () => send(session, fields, body)));
  expect(session.closed || session.destroyed).toBe(false);
  const lines = gatehouse.log.slice(logLength).filter(({ event }) => event === 'request');
  expect(lines.length).toBe(600);
  expect(lines.filter((line) => line['aborted'] !== undefined)).toEqual([]);
});
