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

const opened: { destroy(): void }[] = [];
afterEach(() => {
  for (const one of opened.splice(0)) one.destroy();
});

interface Http2Response {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly text: string;
}

function session(
  at: TestGateway,
  options: ConnectionOptions = {},
  as?: IssuedCertificate,
): ClientHttp2Session {
  const made = connectHttp2('https://localhost', {
    // Of the client: its bodies wait in memory.
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
  made.on('error', () => {});
  opened.push(made);
  return made;
}

const ask = (on: ClientHttp2Session, fields: OutgoingHttpHeaders, body?: string): Promise<Http2Response> =>
  new Promise((resolve, reject) => {
    const stream = on.request(
      { ':authority': 'localhost:8443', ...fields },
      { endStream: body === undefined },
    );
    let headers: Record<string, unknown> = {};
    let text = '';
    stream.setEncoding('utf8');
    stream.on('response', (given) => {
      headers = { ...given };
    });
    stream.on('data', (part: string) => {
      text += part;
    });
    stream
      .on('error', reject)
      .on('end', () => resolve({ status: Number(headers[':status']), headers, text }));
    if (body !== undefined) stream.end(body);
  });

async function withGateway<T>(change: SettingsChange, run: (other: TestGateway) => Promise<T>): Promise<T> {
  const other = await startGateway(change);
  try {
    return await run(other);
  } finally {
    for (const one of opened.splice(0)) one.destroy();
    await other.close();
  }
}

const offered = (at: TestGateway, protocols: string[]): Promise<string | false | null> =>
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
    opened.push(socket);
    socket.on('error', reject);
  });

test('a client gets HTTP/2 when it offers it, HTTP/1.1 when it does not, and nothing when it offers neither', async () => {
  expect(await offered(gatehouse, ['h2', 'http/1.1'])).toBe('h2');
  expect(await offered(gatehouse, ['http/1.1'])).toBe('http/1.1');
  await expect(offered(gatehouse, ['spdy/3'])).rejects.toThrow();
});

test('switched off, HTTP/2 is not offered; without TLS a client that begins with it is refused', async () => {
  await withGateway(
    (settings) => ({ ...settings, listen: { ...settings.listen, http2: false } }),
    async (other) => {
      expect(await offered(other, ['h2', 'http/1.1'])).toBe('http/1.1');
    },
  );
  await withGateway(
    (settings) => ({ ...settings, listen: { port: 0, behindTls: true } }),
    async (other) => {
      const socket = connectNet(other.port, '127.0.0.1');
      opened.push(socket);
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
  const known = session(gatehouse, {}, alice);
  const granted = await Promise.all([ask(known, fields, body), ask(known, fields, body)]);
  expect(granted.map(({ status }) => status)).toEqual([200, 200]);
  const { access_token: token } = JSON.parse(granted[0]?.text ?? '{}') as { access_token: string };
  expect((await ask(session(gatehouse), fields, body)).status).toBe(401);

  const served = await ask(known, { ':path': '/files/1', authorization: `Bearer ${token}` });
  expect([served.status, served.headers['connection']]).toEqual([200, undefined]);
  expect((await ask(known, { ':path': '/files/1' })).headers['www-authenticate']).toBe(
    'Bearer realm="gatehouse"',
  );
});

test('D11 the pages work over HTTP/2', async () => {
  const page = await ask(session(gatehouse), { ':path': '/authsvc/device' });
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
      const gateway = session(other);
      expect((await ask(gateway, body)).status).toBe(401);
      const allowed = await ask(gateway, { ...body, authorization: `Bearer ${token}` });
      expect([allowed.status, allowed.headers['x-forwarded-client-id']]).toEqual([200, 'report-runner']);
    },
  );
});

test('C18 a connection opened under another name, without a certificate request, is not used for the strict one', async () => {
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
      const open = session(other, { servername: 'localhost' });
      expect((await ask(open, { ':path': '/health' })).status).toBe(200);
      const strict = await ask(open, { ':path': '/health', ':authority': 'strict.test' });
      expect(strict.status).toBe(421);
      // The others of the connection go on.
      expect((await ask(open, { ':path': '/health' })).status).toBe(200);
    },
  );
});

test('the PROXY protocol provides the client address over HTTP/2, too', async () => {
  await withGateway(
    (settings) => ({ ...settings, listen: { ...settings.listen, proxyProtocol: ['127.0.0.1'] } }),
    async (other) => {
      const raw = connectNet(other.port, '127.0.0.1');
      opened.push(raw);
      raw.write('PROXY TCP4 203.0.113.7 127.0.0.1 4711 443\r\n');
      const through = session(other, { socket: raw });
      const { status, text } = await ask(through, { ':path': '/health' });
      expect(status).toBe(200);
      const { headers } = JSON.parse(text) as { headers: Record<string, string> };
      expect(headers['x-forwarded-for']).toBe('203.0.113.7');
    },
  );
});

test('large bodies go up side by side on one connection', async () => {
  const on = session(gatehouse);
  const body = 'x'.repeat(3_000_000);
  const responses = await Promise.all(
    Array.from({ length: 8 }, () => ask(on, { ':method': 'POST', ':path': '/health' }, body)),
  );
  expect(responses.map(({ status }) => status)).toEqual(responses.map(() => 200));
});

test('completed requests with a body are not resets: neither in the log nor for the reset limit', async () => {
  const on = session(gatehouse);
  const begun = gatehouse.log.length;
  const body = JSON.stringify({ client_id: 'report-runner', refresh_token: 'ghr_none' });
  const fields = {
    ':method': 'POST',
    ':path': '/authsvc/Authorize/Token',
    'content-type': 'application/json',
  };
  // More than an allowance of resets lets through, however long it takes here: 100, and 20 a second.
  for (let done = 0; done < 12; done += 1)
    await Promise.all(Array.from({ length: 50 }, () => ask(on, fields, body)));
  expect(on.closed || on.destroyed).toBe(false);
  const lines = gatehouse.log.slice(begun).filter(({ event }) => event === 'request');
  expect(lines.length).toBe(600);
  expect(lines.filter((line) => line['aborted'] !== undefined)).toEqual([]);
});
