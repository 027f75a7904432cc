import { X509Certificate } from 'node:crypto';
import { mkdirSync, renameSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { readKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { runCommand } from '../../support/command-in-process.ts';
import { runGatehouse } from '../../support/command-line.ts';
import { connectToEachWorker } from '../../support/connect-to-each-worker.ts';
import { createCrl, type IssuedCertificate, issue, issueServer } from '../../support/pki.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
  type WorkerClient,
} from '../../support/serve-process.ts';

let folder: ServeFolder;
let server: ServeProcess;
let here: WorkerClient;
let there: WorkerClient;
const opened: WorkerClient[] = [];

beforeAll(async () => {
  folder = await createServeFolder((settings) => ({
    ...settings,
    listen: {
      ...settings.listen,
      workers: 2,
      tls: { certificate: 'tls/server.pem', key: 'tls/server-key.pem' },
    },
    log: { level: 'info' },
  }));
  swap(await issueServer(folder.ca));
  server = await startServe(folder);
  [here, there] = await pair(folder.alice);
});
afterAll(async () => {
  for (const client of opened) client.close();
  await folder?.remove();
});

/** One client at each of the two workers. */
async function pair(as: IssuedCertificate): Promise<[WorkerClient, WorkerClient]> {
  const clients = await connectToEachWorker(folder, server, as);
  opened.push(...clients);
  return clients as [WorkerClient, WorkerClient];
}

/** How often each worker has said this since a line of the log. */
const saidBy = (event: string, from: number) =>
  new Set(
    server.log
      .slice(from)
      .filter((line) => line.event === event)
      .map((line) => Number(line['worker'])),
  );

/** Does something, and waits until both workers have logged the outcome. */
async function expectBothLog(event: 'reloaded' | 'reload_rejected', act: () => unknown): Promise<void> {
  const from = server.log.length;
  await act();
  await until(`both workers log ${event}`, () => saidBy(event, from).size === 2, 30);
}

let swaps = 0;
/** As the kubelet does it: a new folder beside the old, and one rename of the link that all files go through. */
function swap(certified: IssuedCertificate): void {
  swaps += 1;
  const version = `..2026_${swaps}`;
  folder.write(`tls/${version}/server.pem`, certified.pem);
  folder.write(`tls/${version}/server-key.pem`, certified.keyPem);
  symlinkSync(version, folder.file('tls/..data_tmp'));
  renameSync(folder.file('tls/..data_tmp'), folder.file('tls/..data'));
  if (swaps > 1) return;
  mkdirSync(folder.file('tls'), { recursive: true });
  for (const name of ['server.pem', 'server-key.pem'])
    symlinkSync(join('..data', name), join(folder.file('tls'), name));
}

/** The certificate that each worker presents on a new connection. */
async function shown(): Promise<(string | undefined)[]> {
  const clients = await connectToEachWorker(folder, server);
  return Promise.all(
    clients.map(async (client) => {
      const { socket: connection } = await client.request({ path: '/health' });
      const certificate = connection.getPeerX509Certificate();
      client.close();
      return certificate?.fingerprint256;
    }),
  );
}
const fingerprint = (one: IssuedCertificate): string => new X509Certificate(one.pem).fingerprint256;

const withIntegration =
  (clientId: string) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      { clientId, scope: 'files:read', access: [{ groups: ['operators'] }] },
    ],
  });

const grantFor = (client: WorkerClient, clientId: string) =>
  client.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' });

test('O06 a new integration appears in both workers when the configuration file changes', async () => {
  expect((await grantFor(here, 'by-file')).json).toMatchObject({ Error: 'invalid_grant' });
  await expectBothLog('reloaded', () => folder.configure(withIntegration('by-file')));
  for (const client of [here, there]) expect((await grantFor(client, 'by-file')).status).toBe(200);
});

test('SIGHUP to the program reaches both workers', async () => {
  await expectBothLog('reloaded', () => server.signal('SIGHUP'));
  for (const client of [here, there]) expect((await grantFor(client, 'by-file')).status).toBe(200);
});

test('O05 a bad configuration is refused by both workers with its problems, and the old one stays', async () => {
  const { access_token: token } = await here.grant();
  const from = server.log.length;
  let good: SettingsInput | undefined;
  await expectBothLog('reload_rejected', () =>
    folder.configure((settings) => {
      good = settings;
      return { ...settings, integrations: [], routes: [{ path: '/x', requires: '!!' }] };
    }),
  );
  const refusal = server.log.slice(from).find(({ event }) => event === 'reload_rejected');
  expect(String(refusal?.['problems'])).toContain('routes[0].requires');
  for (const client of [here, there]) {
    expect(await client.isAccepted(token)).toBe(true);
    expect((await grantFor(client, 'by-file')).status).toBe(200);
  }
  await expectBothLog('reloaded', () => folder.configure((settings) => good ?? settings));
});

test('O07 the server certificate is replaced through a symbolic link, twice: new connections get it, open ones remain', async () => {
  for (const round of [1, 2]) {
    const next = await issueServer(folder.ca);
    const from = server.log.length;
    await expectBothLog('reloaded', () => swap(next));
    expect(await shown(), `swap ${round}`).toEqual([fingerprint(next), fingerprint(next)]);
    expect((await here.grant()).token_type).toBe('Bearer');
    expect(saidBy('reload_rejected', from).size).toBe(0);
  }
});

test('O07 a certificate whose key has not been written yet is not served, and is once the key is there', async () => {
  const before = await shown();
  const next = await issueServer(folder.ca);
  await expectBothLog('reload_rejected', () => folder.write('tls/server.pem', next.pem));
  expect(await shown()).toEqual(before);
  await expectBothLog('reloaded', () => folder.write('tls/server-key.pem', next.keyPem));
  expect(await shown()).toEqual([fingerprint(next), fingerprint(next)]);
});

test('C07 O09 a revocation list that is loaded at run time applies to connections that are already open', async () => {
  const formerUser = await issue(folder.ca, { commonName: 'alice' });
  const kept = await pair(formerUser);
  for (const client of kept) expect((await grantFor(client, 'by-file')).status).toBe(200);

  folder.write('ca.crl', (await createCrl(folder.ca, { revoked: [formerUser] })).pem);
  await expectBothLog('reloaded', () =>
    folder.configure((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, crls: ['ca.crl'] },
    })),
  );
  for (const client of kept) {
    const refused = await grantFor(client, 'by-file');
    expect(refused.status).toBe(401);
    expect(refused.json).toMatchObject({ Error: 'invalid_client' });
  }
  for (const client of [here, there]) expect((await grantFor(client, 'by-file')).status).toBe(200);

  // And a newer list, under the same name.
  const next = await issue(folder.ca, { commonName: 'alice' });
  const [one, two] = await pair(next);
  expect((await grantFor(one, 'by-file')).status).toBe(200);
  const newer = await createCrl(folder.ca, { revoked: [formerUser, next] });
  await expectBothLog('reloaded', () => folder.write('ca.crl', newer.pem));
  for (const client of [one, two]) expect((await grantFor(client, 'by-file')).status).toBe(401);
});

test('O08 keys rotated on the command line are published first and sign later, and no token is rejected meanwhile', async () => {
  const file = folder.file('data/keys.json');
  const old = await here.grant();
  const kidOf = (token: string): string =>
    (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;
  let printed = '';
  await expectBothLog('reloaded', async () => {
    const rotated = await runGatehouse([
      'keys',
      'rotate',
      file,
      '--publish-before',
      '1h',
      '--output',
      'json',
    ]);
    expect(rotated).toMatchObject({ code: 0, stderr: '' });
    printed = rotated.stdout;
  });
  const { keys } = JSON.parse(printed) as { keys: { kid: string; use: string; state: string }[] };
  const next = keys.find(({ use, state }) => use === 'signing' && state === 'published');
  expect(keys.find(({ kid }) => kid === kidOf(old.access_token))?.state).toBe('active');

  /** Both workers sign with this key, and both accept what either has signed. */
  const bothSignWith = async (kid: string | undefined): Promise<void> => {
    for (const client of [here, there]) {
      const { access_token: token } = await client.grant();
      expect(kidOf(token)).toBe(kid);
      for (const other of [here, there]) expect(await other.isAccepted(token)).toBe(true);
    }
  };
  await bothSignWith(kidOf(old.access_token));
  // The hour of publication is over.
  const now = Math.floor(Date.now() / 1_000);
  const { signing, sealing, ...rest } = readKeyringFile(file);
  const active = <K extends { activeFrom: number }>(key: K): K => ({
    ...key,
    activeFrom: Math.min(key.activeFrom, now),
  });
  await expectBothLog('reloaded', () =>
    writeKeyringFile(
      file,
      { ...rest, signing: signing.map(active), sealing: sealing.map(active) },
      { replace: true },
    ),
  );
  await bothSignWith(next?.kid);
  for (const client of [here, there]) expect(await client.isAccepted(old.access_token)).toBe(true);
  const refreshed = await there.refresh(old.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
  expect(kidOf(String(refreshed.json['access_token']))).toBe(next?.kid);

  // The supervisor reads and writes records too: it has the new keys soon after its workers.
  const [, id = ''] = old.refresh_token.split('.');
  const admin = [
    '--url',
    `http://127.0.0.1:${server.adminPort}`,
    '--token-file',
    folder.file('data/admin-token'),
  ];
  await until(
    'the administration ends the grant',
    async () => (await runCommand(['grants', 'revoke', id, ...admin])).code === 0,
  );
  expect((await here.refresh(String(refreshed.json['refresh_token']))).json['Error']).toBe('invalid_grant');
});

test('what the supervisor reads at start stays reported after the workers were replaced', async () => {
  await expectBothLog('reloaded', () =>
    folder.configure((settings) => ({
      ...settings,
      admin: { ...settings.admin, hostNames: ['metrics.example.test'] },
    })),
  );
  const replaced = server.log.length;
  server.signal('SIGUSR2');
  await until('the workers are replaced', () =>
    server.log.slice(replaced).some(({ event }) => event === 'workers_restarted'),
  );
  const from = server.log.length;
  await expectBothLog('reloaded', () => server.signal('SIGHUP'));
  const waiting = () => server.log.slice(from).filter(({ event }) => event === 'restart_needed');
  await until('the supervisor reports it', () => waiting().length > 0);
  expect(waiting()[0]).toMatchObject({ setting: 'admin.hostNames' });
  expect(waiting()[0]).not.toHaveProperty('worker');
});

test('after these reloads clients are still served, and no error was logged', async () => {
  const last = connect(folder, server.port, folder.alice);
  expect((await last.grant()).token_type).toBe('Bearer');
  last.close();
  const bad = ['internal_error', 'reload_failed', 'worker_exited', 'uncaught_exception'];
  expect(server.log.filter(({ event }) => bad.includes(event))).toEqual([]);
  expect(await server.stop()).toBe(0);
});
