import { execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterEach, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { issue, issueServer, makeCa } from '../support/pki.ts';
import {
  type Client,
  connect,
  makeServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { type SteadyLoad, steadyLoad } from '../support/steady-load.ts';

let folder: ServeFolder;
let load: SteadyLoad | undefined;
let second: Server | undefined;
const opened: Client[] = [];

afterEach(async () => {
  await load?.stop();
  load = undefined;
  for (const client of opened.splice(0)) client.close();
  second?.closeAllConnections();
  second?.close();
  second = undefined;
  await folder?.remove();
});

async function start(change: (settings: SettingsInput) => SettingsInput = (s) => s): Promise<ServeProcess> {
  folder = await makeServeFolder(
    (settings) => change({ ...settings, log: { level: 'info', access: { enabled: false } } }),
    tellHeaders,
  );
  return startServe(folder);
}

const tellHeaders: Parameters<typeof makeServeFolder>[1] = (request, response) => {
  request.resume().on('end', () => response.end(JSON.stringify({ api: 'first', headers: request.headers })));
};

function client(server: ServeProcess, as = folder.alice): Client {
  const made = connect(folder, server.port, as);
  opened.push(made);
  return made;
}

const count = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.event === event).length;

/** Changes something, asks for a reload, and waits for what it came to. */
async function reload(server: ServeProcess, change: () => void, outcome: 'reloaded' | 'reload_refused') {
  const before = count(server, outcome);
  change();
  server.signal('SIGHUP');
  await until(`${outcome} number ${before + 1}`, () => count(server, outcome) > before);
}

test('O06 a hundred reloads under load, half of them bad: no request fails, and each sees one configuration', async () => {
  second = createServer((request, response) => {
    request
      .resume()
      .on('end', () => response.end(JSON.stringify({ api: 'second', headers: request.headers })));
  });
  await new Promise<void>((resolve) => second?.listen(0, '127.0.0.1', resolve));
  const { port: secondPort } = second.address() as AddressInfo;
  const server = await start();
  const { access_token: token } = await client(server).grant();

  // Each configuration names another upstream and another header: together they are right, mixed they are not.
  const sound = (which: 'first' | 'second') => (): void =>
    folder.configure((settings) => ({
      ...settings,
      upstreams: {
        default: { url: `http://127.0.0.1:${which === 'first' ? folder.upstream.port : secondPort}` },
      },
      headers: { user: which === 'first' ? 'X-First-User' : 'X-Second-User' },
    }));
  const bad: readonly (() => void)[] = [
    () => folder.write('gatehouse.yaml', 'listen: [this is: not sound'),
    () => folder.write('gatehouse.yaml', 'liste: {}\n'),
    () =>
      folder.write(
        'gatehouse.yaml',
        'listen: { behindTls: true }\ncertificates: { issuers: [nowhere.pem], directory: x }\n',
      ),
    () =>
      folder.write(
        'gatehouse.yaml',
        'listen: { behindTls: true }\nroutes: [{ path: "/a/../b", public: true }]\n',
      ),
    () => folder.write('gatehouse.yaml', ''),
  ];
  await reload(server, sound('first'), 'reloaded');
  load = steadyLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/files/1',
    token,
    judge({ status, body }) {
      if (status !== 200) return `status ${status}: ${body.slice(0, 100)}`;
      const told = JSON.parse(body) as { api: string; headers: Record<string, string> };
      const [mine, other] =
        told.api === 'first' ? ['x-first-user', 'x-second-user'] : ['x-second-user', 'x-first-user'];
      return told.headers[mine] !== undefined && told.headers[other] === undefined
        ? undefined
        : `the ${told.api} API got ${Object.keys(told.headers).join()}`;
    },
  });
  await load.more(50);
  for (let round = 0; round < 50; round += 1) {
    await reload(server, bad[round % bad.length] ?? (() => {}), 'reload_refused');
    await reload(server, sound(round % 2 === 0 ? 'second' : 'first'), 'reloaded');
  }
  await load.more(50);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(load.answered()).toBeGreaterThan(200);
  expect(await server.stop()).toBe(0);
});

test('O07 fifty server certificates one after the other, half-written ones between them, and no handshake fails', async () => {
  const server = await start();
  const certificates = await Promise.all(Array.from({ length: 50 }, () => issueServer(folder.ca)));
  load = steadyLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/health',
    fresh: true,
    http1: 3,
    http2: 1,
  });
  await load.more(20);
  for (const [index, next] of certificates.entries()) {
    if (index % 2 === 0) await reload(server, () => folder.write('server.pem', next.pem), 'reload_refused');
    await reload(
      server,
      () => {
        folder.write('server.pem', next.pem);
        folder.write('server-key.pem', next.keyPem);
      },
      'reloaded',
    );
    expect(await shownBy(server)).toBe(new X509Certificate(next.pem).fingerprint256);
  }
  await load.more(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(await server.stop()).toBe(0);
});

function shownBy(server: ServeProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connectTls(
      { port: server.port, host: '127.0.0.1', servername: 'localhost', ca: folder.ca.pem },
      () => {
        resolve(socket.getPeerX509Certificate()?.fingerprint256 ?? '');
        socket.destroy();
      },
    );
    socket.on('error', reject);
  });
}

test('O08 a new signing key is published before it signs, and no token is refused over it', async () => {
  const server = await start();
  const one = client(server);
  const { access_token: token } = await one.grant();
  load = steadyLoad({ port: server.port, ca: folder.ca.pem, path: '/files/1', token, http1: 2, http2: 1 });
  await load.more(20);
  const rotate = (): void =>
    void execFileSync(process.execPath, [
      join(import.meta.dirname, '../../src/main.ts'),
      'keys',
      'rotate',
      folder.file('data/keys.json'),
      '--publish-before',
      '2s',
    ]);
  await reload(server, rotate, 'reloaded');
  const kidOf = (text: string): string =>
    (JSON.parse(Buffer.from(text.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;
  // Published, and not used yet.
  const fresh = await one.grant();
  const signed = new Set([kidOf(token), kidOf(fresh.access_token)]);
  await until('the new key signs', async () => {
    const { access_token: next } = await one.grant();
    expect(await one.accepted(next)).toBe(true);
    signed.add(kidOf(next));
    return kidOf(next) !== kidOf(token);
  });
  expect(signed.size).toBe(2);
  expect(await one.accepted(token)).toBe(true);
  await load.more(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(await server.stop()).toBe(0);
});

test('O09 an issuer that is taken away or put in counts for connections that are open already', async () => {
  const server = await start();
  const other = await makeCa({ name: 'CN=Other CA, O=Example' });
  const stranger = client(server, await issue(other, { commonName: 'alice' }));
  const known = client(server);
  const grant = (one: Client) =>
    one.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' });
  expect([(await grant(known)).status, (await grant(stranger)).status]).toEqual([200, 401]);
  const trust = (pem: string) => (): void => void folder.write('ca.pem', pem);
  await reload(server, trust(other.pem), 'reloaded');
  expect([(await grant(known)).status, (await grant(stranger)).status]).toEqual([401, 200]);
  await reload(server, trust(folder.ca.pem), 'reloaded');
  expect([(await grant(known)).status, (await grant(stranger)).status]).toEqual([200, 401]);
  expect(await server.stop()).toBe(0);
});
