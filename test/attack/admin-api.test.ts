import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { openAdminListener } from '../../src/admin/listener.ts';
import { Fault } from '../../src/ports/fault.ts';
import { ensureAdminToken } from '../../src/server/admin-endpoint.ts';
import { sendRequest } from '../support/https-client.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';

let ca: IssuedCertificate;
let server: IssuedCertificate;
/** Paths of the admin requests that were handled. */
let handledPaths: string[] = [];
let storeFails = false;
let admin: Awaited<ReturnType<typeof openAdminListener>>;
const tls = () => ({ certificate: server.pem, key: server.keyPem });
beforeAll(async () => {
  ca = await createCa();
  server = await issueServer(ca);
  admin = await openAdminListener({
    host: '127.0.0.1',
    port: 0,
    checks: [],
    tokenFile: '/nowhere',
    tls: { ...tls(), clientCa: ca.pem },
    handleAdminRequest: async ({ path }) => {
      if (storeFails) throw new Fault('store_unavailable', 'unreachable');
      handledPaths.push(path);
      return { status: 200, body: {} };
    },
  });
});
afterAll(() => admin.close());

test('H22 a method in lower case is refused by the admin listener', async () => {
  const socket = connect({ port: admin.port, host: '127.0.0.1', ca: ca.pem, servername: 'localhost' });
  onTestFinished(() => void socket.destroy());
  const text = await new Promise<string>((resolve, reject) => {
    let received = '';
    socket.on('data', (part: Buffer) => void (received += part.toString('latin1')));
    socket.once('error', reject).once('close', () => resolve(received));
    socket.write('delete /admin/v1/grants HTTP/1.1\r\nHost: localhost\r\n\r\n');
  });
  expect(text).toMatch(/^HTTP\/1\.1 400 /);
  expect(handledPaths).toEqual([]);
});

test('a web page cannot call the admin API, even in the browser of an operator with a certificate', async () => {
  const operator = await issue(ca, { commonName: 'operator' });
  const identity = { ca: ca.pem, cert: operator.pem, key: operator.keyPem };
  const path = '/admin/v1/grants/abc/revoke';
  const post = async (headers: Record<string, string>): Promise<number> =>
    (await sendRequest({ port: admin.port, path, method: 'POST', headers, ...identity })).status;
  onTestFinished(() => {
    handledPaths = [];
    storeFails = false;
  });
  expect(await post({ origin: 'https://elsewhere.example', 'sec-fetch-site': 'cross-site' })).toBe(403);
  expect(await post({ origin: 'null' })).toBe(403);
  expect(await post({ 'sec-fetch-site': 'same-site' })).toBe(403);
  expect(handledPaths).toEqual([]);
  expect(await post({})).toBe(200);
  expect(handledPaths).toHaveLength(1);
  storeFails = true;
  expect(await post({})).toBe(503);
});

/** Sends one request on a new TLS connection, resuming `session` if given. */
async function requestGrants(
  maxVersion: 'TLSv1.2' | 'TLSv1.3',
  presented: { readonly cert?: string; readonly key?: string },
  session?: Buffer,
): Promise<{ readonly head: string; readonly session: Buffer | undefined; readonly reused: boolean }> {
  let ticket = session;
  let head = '';
  let reused = false;
  const socket = connect({
    host: 'localhost',
    port: admin.port,
    ca: ca.pem,
    maxVersion,
    ...presented,
    ...(session && { session }),
  });
  socket.on('session', (next: Buffer) => {
    ticket = next;
  });
  socket.on('secureConnect', () => {
    reused = socket.isSessionReused();
    socket.write('GET /admin/v1/grants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
  });
  try {
    for await (const part of socket) head += String(part);
    return { head, session: ticket, reused };
  } finally {
    socket.destroy();
  }
}

test('a client certificate of another CA, or none, is refused on every connection, and no session is resumed', async () => {
  const other = await issue(await createCa({ name: 'CN=Another CA' }), { commonName: 'operator' });
  for (const version of ['TLSv1.2', 'TLSv1.3'] as const)
    for (const presented of [{ cert: other.pem, key: other.keyPem }, {}]) {
      const first = await requestGrants(version, presented);
      expect(first.head).toMatch(/^HTTP\/1\.1 401 /);
      const second = await requestGrants(version, presented, first.session);
      // The admin listener issues no session tickets: each connection authenticates anew.
      expect(second.reused).toBe(false);
      expect(second.head).toMatch(/^HTTP\/1\.1 401 /);
    }
  expect(handledPaths).toEqual([]);
});

test('a reload cannot remove the client CA of the admin listener: it applies until the restart', () => {
  expect(() => admin.setTls(tls())).toThrow('needs a restart');
  admin.setTls({ ...tls(), clientCa: ca.pem });
});

test('an empty admin token, left by a start on a full disk, is replaced', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-admin-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'admin-token');
  writeFileSync(file, '', { mode: 0o600 });
  ensureAdminToken(file);
  const token = readFileSync(file, 'utf8');
  expect(token).toMatch(/^[A-Za-z0-9_-]{43}\n$/);
  ensureAdminToken(file);
  expect(readFileSync(file, 'utf8')).toBe(token);
});
