import { once } from 'node:events';
import { chmodSync, statSync, writeFileSync } from 'node:fs';
import { createServer as createSecureServer } from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { limitConnections } from '../../src/admin/connection-limit.ts';
import { type AdminListener, openAdminListener } from '../../src/admin/listener.ts';
import { ensureAdminToken } from '../../src/server/admin-endpoint.ts';
import { createCa, issueServer } from '../support/pki.ts';
import {
  connectRaw,
  connectRawTls,
  parseRawResponse,
  type RawClient,
  type RawResponse,
  rawRequest,
} from '../support/raw-client.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';

const TOKEN = 'an-admin-token-for-tests';
let folder: TempFolder;
let tokenFile: string;
let admin: AdminListener;
let isReady = true;
let request: string[] = [];
const logged: string[] = [];
const warned: object[] = [];

const options = () => ({
  host: '127.0.0.1',
  port: 0,
  tokenFile,
  checks: [
    {
      name: 'store',
      check: async () => {
        if (!isReady) throw new Error('a detail of the store');
      },
    },
  ],
  hostNames: ['Gatehouse.Internal.example'],
  metrics: async () => 'gatehouse_ready 1\n',
  handleAdminRequest: async ({ path, query }: { readonly path: string; readonly query: URLSearchParams }) => {
    request.push(`${path}?${query.toString()}`);
    return { status: 200, body: {} };
  },
  log: {
    error: (event: string) => void logged.push(event),
    warn: (event: string, fields: object = {}) => void warned.push({ event, ...fields }),
  },
});

beforeAll(async () => {
  folder = tempFolder('admin');
  tokenFile = `${folder.path}/admin-token`;
  writeFileSync(tokenFile, TOKEN, { mode: 0o600 });
  admin = await openAdminListener(options());
});
afterEach(() => {
  request = [];
  isReady = true;
});
afterAll(async () => {
  await admin.close();
  folder.remove();
});

const get = (path: string, headers: readonly string[] = [], host = 'localhost'): Promise<RawResponse> =>
  rawRequest(
    admin.port,
    [`GET ${path} HTTP/1.1`, ...(host === '' ? [] : [`Host: ${host}`]), 'Connection: close', ...headers, '', ''].join(
      '\r\n',
    ),
  );
const bearer = `Authorization: Bearer ${TOKEN}`;

test('X01 many concurrent probes query the store once', async () => {
  const store = Promise.withResolvers<void>();
  let checks = 0;
  const check = (): Promise<void> => {
    checks += 1;
    return store.promise;
  };
  const listener = await openAdminListener({ ...options(), checks: [{ name: 'store', check }] });
  const client = await connectRaw(listener.port);
  try {
    client.send('GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(50));
    await until('the probes have arrived', () => checks > 0);
    for (let iterations = 0; iterations < 20; iterations += 1) await new Promise(setImmediate);
    store.resolve();
    await client.until((text) => text.split('HTTP/1.1 200').length > 50);
    expect(checks).toBeLessThan(5);
  } finally {
    client.destroy();
    await listener.close();
  }
});

test('X01 probes get responses while more slow connections are open than allowed', async () => {
  const sockets: Socket[] = [];
  try {
    for (let count = 0; count < 300; count += 1) {
      const socket = connect(admin.port, '127.0.0.1');
      socket.on('error', () => {});
      sockets.push(socket);
      await once(socket, 'connect');
      socket.write('GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: ');
    }
    for (const path of ['/livez', '/readyz', '/metrics']) expect([path, (await get(path)).status]).toEqual([path, 200]);
    // The oldest connections are closed to make room for new ones.
    await until('the excess is closed', () => sockets.filter(({ closed }) => closed).length >= 300 - 256);
    expect(sockets.at(-1)?.closed).toBe(false);
  } finally {
    for (const socket of sockets) socket.destroy();
  }
});

test('over TLS only open connections count towards the limit, and unfinished handshakes are closed first', async () => {
  const ca = await createCa();
  const { pem: cert, keyPem: key } = await issueServer(ca);
  const server = createSecureServer({ cert, key }, (_request, response) => void response.end('here'));
  limitConnections(server, 4);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const openClients: { destroy(): void }[] = [];
  try {
    const openClient = async (more = ''): Promise<RawClient> => {
      const client = await connectRawTls(port, ca.pem);
      openClients.push(client);
      client.send(`GET / HTTP/1.1\r\nHost: localhost\r\n${more}\r\n`);
      await client.until((text) => text.includes('here'));
      return client;
    };
    const idleClient = await openClient();
    for (let count = 0; count < 8; count += 1) await (await openClient('Connection: close\r\n')).closed();
    expect(idleClient.closeKind()).toBeUndefined();
    const raw = Array.from({ length: 6 }, () => connect(port, '127.0.0.1').on('error', () => {}));
    openClients.push(...raw);
    await until('the excess is closed', () => raw.filter(({ closed }) => closed).length >= 2);
    await openClient();
  } finally {
    for (const client of openClients) client.destroy();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

test('a connection with an unread response can still be closed to make room for a probe', async () => {
  const sockets: Socket[] = [];
  try {
    for (let count = 0; count < 300; count += 1) {
      const socket = connect(admin.port, '127.0.0.1');
      socket.on('error', () => {}).pause();
      sockets.push(socket);
      await once(socket, 'connect');
      socket.write('GET /readyz?verbose HTTP/1.1\r\nHost: a\r\n\r\n');
    }
    expect((await get('/livez')).status).toBe(200);
  } finally {
    for (const socket of sockets) socket.destroy();
  }
});

test.each([
  ['attacker.example', 421],
  ['attacker.example:9443', 421],
  ['localhost.attacker.example', 421],
  ['127.0.0.1.attacker.example', 421],
  ['[::1].attacker.example', 421],
  ['127.0.0.1@attacker.example', 421],
  ['', 400],
  ['localhost', 200],
  ['LOCALHOST:9443', 200],
  ['127.0.0.1:9443', 200],
  ['10.244.1.17:9443', 200],
  ['[::1]:9443', 200],
  ['[fd00::17]', 200],
  ['gatehouse.internal.example:9443', 200],
  ['gatehouse.internal.example.', 200],
])('/metrics and the admin API with the Host "%s": %i', async (host, status) => {
  expect((await get('/metrics', [], host)).status).toBe(status);
  expect((await get('/admin/v1/grants', [bearer], host)).status).toBe(status);
  expect(request).toHaveLength(status === 200 ? 1 : 0);
});

test('a rejected host name is logged once, with rate-limited log lines, and the response states the remedy', async () => {
  const listener = await openAdminListener(options());
  warned.length = 0;
  const requestWithHost = (host: string) =>
    rawRequest(listener.port, `GET /metrics HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
  try {
    const { status, body } = await requestWithHost('Prometheus.example:9443');
    expect([status, body]).toEqual([
      421,
      expect.stringContaining('add the name to admin.hostNames and restart gatehouse'),
    ]);
    await requestWithHost('prometheus.example:9443');
    expect(warned).toEqual([
      {
        event: 'admin_host_refused',
        host: 'prometheus.example:9443',
        peer: '127.0.0.1',
        setting: 'admin.hostNames',
      },
    ]);
    for (let count = 0; count < 30; count += 1) await requestWithHost(`name-${count}.example`);
    expect(warned.length).toBeLessThan(20);
  } finally {
    await listener.close();
  }
});

test('two Host fields are refused; HTTP/1.0 without one is served', async () => {
  expect((await get('/metrics', ['Host: attacker.example'])).status).toBeGreaterThanOrEqual(400);
  expect((await rawRequest(admin.port, 'GET /metrics HTTP/1.0\r\n\r\n').catch(() => undefined))?.status).toBe(200);
});

test('over TLS the names of the certificate are accepted too', async () => {
  const ca = await createCa();
  const server = await issueServer(ca);
  const secure = await openAdminListener({
    ...options(),
    tls: { certificate: server.pem, key: server.keyPem },
  });
  try {
    for (const [host, status] of [
      ['localhost', 200],
      ['attacker.example', 421],
    ] as const) {
      const client = await connectRawTls(secure.port, ca.pem);
      client.send(`GET /metrics HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
      expect(parseRawResponse(await client.closed()).status).toBe(status);
    }
  } finally {
    await secure.close();
  }
});

test('requests sent by web pages are refused, for /metrics and the admin API', async () => {
  for (const header of ['Origin: https://attacker.example', 'Origin: null', 'Sec-Fetch-Site: cross-site'])
    for (const path of ['/metrics', '/admin/v1/grants'])
      expect([header, path, (await get(path, [header, bearer])).status]).toEqual([header, path, 403]);
  expect(request).toEqual([]);
  // A browser sends `none` for an address typed by the user.
  expect((await get('/metrics', ['Sec-Fetch-Site: none'])).status).toBe(200);
});

test('probes respond to any Host, and give details only if the Host is known', async () => {
  isReady = false;
  for (const host of ['attacker.example', 'localhost'])
    for (const path of ['/readyz', '/readyz?verbose']) {
      const { status, body } = await get(path, [], host);
      expect([host, status, body.includes('a detail')]).toEqual([host, 503, host === 'localhost']);
    }
  expect((await get('/livez', [], 'attacker.example')).status).toBe(200);
});

test.each([
  '/admin/v1/../v1/grants',
  '/admin/v1//grants',
  '/admin/v1/%67rants/../revoke',
  '/admin/v1%2fgrants',
  '/admin/v1\\grants',
  '/ADMIN/v1/grants',
  '/admin/v1;x/grants',
  '/livez/../admin/v1/grants',
  '/metrics/../admin/v1/grants',
  '//admin/v1/grants',
  'http://localhost/admin/v1/grants',
])('the path %s is not normalised: without the token it gives no access', async (path) => {
  const { status } = await get(path);
  expect([401, 404]).toContain(status);
  expect(request).toEqual([]);
});

test('a question mark within the query is part of the query', async () => {
  expect((await get('/admin/v1/grants?identity=local:a?b&state=all', [bearer])).status).toBe(200);
  expect(request).toEqual(['/grants?identity=local%3Aa%3Fb&state=all']);
});

test('a token file that other users can read is refused: at start, and while running', async () => {
  for (const mode of [0o644, 0o604, 0o666]) {
    chmodSync(tokenFile, mode);
    expect(() => ensureAdminToken(tokenFile)).toThrow(`(mode ${mode.toString(8)}); run chmod 600`);
    expect(statSync(tokenFile).mode & 0o777).toBe(mode);
    expect((await get('/admin/v1/grants', [bearer])).status).toBe(401);
  }
  // Logged once, not for every request.
  expect(logged).toEqual(['admin_token_refused']);
  // The mode that a kubelet sets when it applies fsGroup to a volume.
  chmodSync(tokenFile, 0o660);
  expect((await get('/admin/v1/grants', [bearer])).status).toBe(401);
  ensureAdminToken(tokenFile, { warn: (event) => void logged.push(event) });
  expect([logged.at(-1), statSync(tokenFile).mode & 0o777]).toEqual(['admin_token_restricted', 0o600]);
  expect((await get('/admin/v1/grants', [bearer])).status).toBe(200);
});
