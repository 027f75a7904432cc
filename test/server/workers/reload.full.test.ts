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
let firstClient: WorkerClient;
let secondClient: WorkerClient;
const clientsToClose: WorkerClient[] = [];

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
  replaceCertificate(await issueServer(folder.ca));
  server = await startServe(folder);
  [firstClient, secondClient] = await connectToBothWorkers(folder.alice);
});
afterAll(async () => {
  for (const client of clientsToClose) client.close();
  await folder?.remove();
});

/** Connects one client to each of the two workers. */
async function connectToBothWorkers(as: IssuedCertificate): Promise<[WorkerClient, WorkerClient]> {
  const clients = await connectToEachWorker(folder, server, as);
  clientsToClose.push(...clients);
  return clients as [WorkerClient, WorkerClient];
}

/** The workers that have logged this event since line `from`. */
const workersThatLogged = (event: string, from: number) =>
  new Set(
    server.log
      .slice(from)
      .filter((line) => line.event === event)
      .map((line) => Number(line['worker'])),
  );

/** Runs an action, and waits until both workers have logged the outcome. */
async function expectBothLog(event: 'reloaded' | 'reload_rejected', act: () => unknown): Promise<void> {
  const from = server.log.length;
  await act();
  await until(`both workers log ${event}`, () => workersThatLogged(event, from).size === 2, 30);
}

let swaps = 0;
/** Like the kubelet: writes a new folder, and renames the symbolic link that all files go through. */
function replaceCertificate(certified: IssuedCertificate): void {
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
async function readServerFingerprints(): Promise<(string | undefined)[]> {
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
const fingerprint = ({ pem }: IssuedCertificate): string => new X509Certificate(pem).fingerprint256;

const withIntegration =
  (clientId: string) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      { clientId, scope: 'files:read', access: [{ groups: ['operators'] }] },
    ],
  });

const requestGrantFor = (client: WorkerClient, clientId: string) =>
  client.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' });

test('O06 a new integration appears in both workers when the configuration file changes', async () => {
  expect((await requestGrantFor(firstClient, 'by-file')).json).toMatchObject({ Error: 'invalid_grant' });
  await expectBothLog('reloaded', () => folder.configure(withIntegration('by-file')));
  for (const client of [firstClient, secondClient]) expect((await requestGrantFor(client, 'by-file')).status).toBe(200);
});

test('SIGHUP to the supervisor reloads both workers', async () => {
  await expectBothLog('reloaded', () => server.signal('SIGHUP'));
  for (const client of [firstClient, secondClient]) expect((await requestGrantFor(client, 'by-file')).status).toBe(200);
});

test('O05 an invalid configuration is rejected by both workers with its problems, and the old one stays in use', async () => {
  const { access_token: token } = await firstClient.grant();
  const from = server.log.length;
  let good: SettingsInput | undefined;
  await expectBothLog('reload_rejected', () =>
    folder.configure((settings) => {
      good = settings;
      return { ...settings, integrations: [], routes: [{ path: '/x', requires: '!!' }] };
    }),
  );
  const rejection = server.log.slice(from).find(({ event }) => event === 'reload_rejected');
  expect(String(rejection?.['problems'])).toContain('routes[0].requires');
  for (const client of [firstClient, secondClient]) {
    expect(await client.isAccepted(token)).toBe(true);
    expect((await requestGrantFor(client, 'by-file')).status).toBe(200);
  }
  await expectBothLog('reloaded', () => folder.configure((settings) => good ?? settings));
});

test('O07 after the server certificate is replaced through a symbolic link, new connections get it and open ones stay open', async () => {
  for (const round of [1, 2]) {
    const next = await issueServer(folder.ca);
    const from = server.log.length;
    await expectBothLog('reloaded', () => replaceCertificate(next));
    expect(await readServerFingerprints(), `swap ${round}`).toEqual([fingerprint(next), fingerprint(next)]);
    expect((await firstClient.grant()).token_type).toBe('Bearer');
    expect(workersThatLogged('reload_rejected', from).size).toBe(0);
  }
});

test('O07 a new certificate is served only once its key has been written', async () => {
  const before = await readServerFingerprints();
  const next = await issueServer(folder.ca);
  await expectBothLog('reload_rejected', () => folder.write('tls/server.pem', next.pem));
  expect(await readServerFingerprints()).toEqual(before);
  await expectBothLog('reloaded', () => folder.write('tls/server-key.pem', next.keyPem));
  expect(await readServerFingerprints()).toEqual([fingerprint(next), fingerprint(next)]);
});

test('C07 O09 a CRL that is loaded at run time also applies to open connections', async () => {
  const formerUser = await issue(folder.ca, { commonName: 'alice' });
  const kept = await connectToBothWorkers(formerUser);
  for (const client of kept) expect((await requestGrantFor(client, 'by-file')).status).toBe(200);

  folder.write('ca.crl', (await createCrl(folder.ca, { revoked: [formerUser] })).pem);
  await expectBothLog('reloaded', () =>
    folder.configure((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, crls: ['ca.crl'] },
    })),
  );
  for (const client of kept) {
    const rejected = await requestGrantFor(client, 'by-file');
    expect(rejected.status).toBe(401);
    expect(rejected.json).toMatchObject({ Error: 'invalid_client' });
  }
  for (const client of [firstClient, secondClient]) expect((await requestGrantFor(client, 'by-file')).status).toBe(200);

  // A newer CRL replaces the file.
  const next = await issue(folder.ca, { commonName: 'alice' });
  const newClients = await connectToBothWorkers(next);
  expect((await requestGrantFor(newClients[0], 'by-file')).status).toBe(200);
  const newer = await createCrl(folder.ca, { revoked: [formerUser, next] });
  await expectBothLog('reloaded', () => folder.write('ca.crl', newer.pem));
  for (const client of newClients) expect((await requestGrantFor(client, 'by-file')).status).toBe(401);
});

test('O08 keys rotated on the command line are published first and sign later, and no token is rejected meanwhile', async () => {
  const file = folder.file('data/keys.json');
  const old = await firstClient.grant();
  const readKid = (token: string): string =>
    (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;
  let printed = '';
  await expectBothLog('reloaded', async () => {
    const rotated = await runGatehouse(['keys', 'rotate', file, '--publish-before', '1h', '--output', 'json']);
    expect(rotated).toMatchObject({ code: 0, stderr: '' });
    printed = rotated.stdout;
  });
  const { keys } = JSON.parse(printed) as { keys: { kid: string; use: string; state: string }[] };
  const next = keys.find(({ use, state }) => use === 'signing' && state === 'published');
  expect(keys.find(({ kid }) => kid === readKid(old.access_token))?.state).toBe('active');

  /** Both workers sign with this key and accept each other's tokens. */
  const expectBothSignWith = async (kid: string | undefined): Promise<void> => {
    for (const client of [firstClient, secondClient]) {
      const { access_token: token } = await client.grant();
      expect(readKid(token)).toBe(kid);
      for (const other of [firstClient, secondClient]) expect(await other.isAccepted(token)).toBe(true);
    }
  };
  await expectBothSignWith(readKid(old.access_token));
  // End the publication time.
  const now = Math.floor(Date.now() / 1_000);
  const { signing, sealing, ...rest } = readKeyringFile(file);
  const activate = <K extends { activeFrom: number }>(key: K): K => ({
    ...key,
    activeFrom: Math.min(key.activeFrom, now),
  });
  await expectBothLog('reloaded', () =>
    writeKeyringFile(
      file,
      { ...rest, signing: signing.map(activate), sealing: sealing.map(activate) },
      { replace: true },
    ),
  );
  await expectBothSignWith(next?.kid);
  for (const client of [firstClient, secondClient]) expect(await client.isAccepted(old.access_token)).toBe(true);
  const refreshed = await secondClient.refresh(old.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
  expect(readKid(String(refreshed.json['access_token']))).toBe(next?.kid);

  // The supervisor also reads and writes records, and loads the new keys soon after its workers.
  const [, id = ''] = old.refresh_token.split('.');
  const admin = ['--url', `http://127.0.0.1:${server.adminPort}`, '--token-file', folder.file('data/admin-token')];
  await until(
    'the grant is revoked through the admin API',
    async () => (await runCommand(['grants', 'revoke', id, ...admin])).code === 0,
  );
  expect((await firstClient.refresh(String(refreshed.json['refresh_token']))).json['Error']).toBe('invalid_grant');
});

test('a setting that the supervisor reads at start is still reported as restart_needed after the workers were replaced', async () => {
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
  const restartNeeded = () => server.log.slice(from).filter(({ event }) => event === 'restart_needed');
  await until('the supervisor reports it', () => restartNeeded().length > 0);
  expect(restartNeeded()[0]).toMatchObject({ setting: 'admin.hostNames' });
  expect(restartNeeded()[0]).not.toHaveProperty('worker');
});

test('after these reloads, clients are still served and no error is logged', async () => {
  const last = connect(folder, server.port, folder.alice);
  expect((await last.grant()).token_type).toBe('Bearer');
  last.close();
  const errors = ['internal_error', 'reload_failed', 'worker_exited', 'uncaught_exception'];
  expect(server.log.filter(({ event }) => errors.includes(event))).toEqual([]);
  expect(await server.stop()).toBe(0);
});
