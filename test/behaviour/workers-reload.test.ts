import { execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { mkdirSync, renameSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type Certified, issue, issueServer, makeCrl } from '../support/pki.ts';
import {
  byWorker,
  connect,
  connectMany,
  makeServeFolder,
  type PlacedClient,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

let folder: ServeFolder;
let server: ServeProcess;
let here: PlacedClient;
let there: PlacedClient;
const opened: PlacedClient[] = [];

beforeAll(async () => {
  folder = await makeServeFolder((settings) => ({
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
async function pair(as: Certified): Promise<[PlacedClient, PlacedClient]> {
  const clients = await connectMany(folder, server, 8, as);
  opened.push(...clients);
  return [...byWorker(clients).values()].map(([first]) => first) as [PlacedClient, PlacedClient];
}

/** How often each worker has said this since a line of the log. */
const saidBy = (event: string, from: number) =>
  new Set(
    server.log
      .slice(from)
      .filter((line) => line.event === event)
      .map((line) => Number(line['worker'])),
  );

/** Does something, and waits until both workers have said what they made of it. */
async function andBothSay(event: 'reloaded' | 'reload_refused', act: () => void): Promise<void> {
  const from = server.log.length;
  act();
  await until(`both workers say ${event}`, () => saidBy(event, from).size === 2);
}

let swaps = 0;
/** As the kubelet does it: a new folder beside the old, and one rename of the link that all files go through. */
function swap(certified: Certified): void {
  swaps += 1;
  const room = `..2026_${swaps}`;
  folder.write(`tls/${room}/server.pem`, certified.pem);
  folder.write(`tls/${room}/server-key.pem`, certified.keyPem);
  symlinkSync(room, folder.file('tls/..data_tmp'));
  renameSync(folder.file('tls/..data_tmp'), folder.file('tls/..data'));
  if (swaps > 1) return;
  mkdirSync(folder.file('tls'), { recursive: true });
  for (const name of ['server.pem', 'server-key.pem'])
    symlinkSync(join('..data', name), join(folder.file('tls'), name));
}

/** What each worker shows to a new connection. */
async function shown(): Promise<Map<number, string | undefined>> {
  const fresh = await connectMany(folder, server, 8);
  const certificates = new Map<number, string | undefined>();
  for (const client of fresh) {
    const { socket: connection } = await client.ask({ path: '/health' });
    certificates.set(client.worker, connection.getPeerX509Certificate()?.fingerprint256);
    client.close();
  }
  return certificates;
}
const fingerprint = (one: Certified): string => new X509Certificate(one.pem).fingerprint256;

const withIntegration =
  (clientId: string) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      { clientId, scope: 'files:read', access: [{ groups: ['operators'] }] },
    ],
  });

const grantFor = (client: PlacedClient, clientId: string) =>
  client.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' });

test('O06 a new integration appears in both workers when the configuration file changes', async () => {
  expect((await grantFor(here, 'by-file')).json).toMatchObject({ Error: 'invalid_grant' });
  await andBothSay('reloaded', () => folder.configure(withIntegration('by-file')));
  for (const client of [here, there]) expect((await grantFor(client, 'by-file')).status).toBe(200);
});

test('SIGHUP to the program reaches both workers', async () => {
  await andBothSay('reloaded', () => server.signal('SIGHUP'));
  for (const client of [here, there]) expect((await grantFor(client, 'by-file')).status).toBe(200);
});

test('O05 a bad configuration is refused by both workers with its problems, and the old one stays', async () => {
  const { access_token: token } = await here.grant();
  const from = server.log.length;
  let good: SettingsInput | undefined;
  await andBothSay('reload_refused', () =>
    folder.configure((settings) => {
      good = settings;
      return { ...settings, integrations: [], routes: [{ path: '/x', requires: '!!' }] };
    }),
  );
  const refusal = server.log.slice(from).find(({ event }) => event === 'reload_refused');
  expect(String(refusal?.['problems'])).toContain('routes[0].requires');
  for (const client of [here, there]) {
    expect(await client.accepted(token)).toBe(true);
    expect((await grantFor(client, 'by-file')).status).toBe(200);
  }
  await andBothSay('reloaded', () => folder.configure((settings) => good ?? settings));
});

test('O07 the server certificate is swapped behind a link, twice; new connections get it, old ones go on', async () => {
  for (const round of [1, 2]) {
    const next = await issueServer(folder.ca);
    const from = server.log.length;
    await andBothSay('reloaded', () => swap(next));
    expect([...(await shown()).values()], `swap ${round}`).toEqual([fingerprint(next), fingerprint(next)]);
    expect((await here.grant()).token_type).toBe('Bearer');
    expect(saidBy('reload_refused', from).size).toBe(0);
  }
});

test('O07 a certificate whose key has not been written yet is not served, and is once the key is there', async () => {
  const before = [...(await shown()).values()];
  const next = await issueServer(folder.ca);
  await andBothSay('reload_refused', () => folder.write('tls/server.pem', next.pem));
  expect([...(await shown()).values()]).toEqual(before);
  await andBothSay('reloaded', () => folder.write('tls/server-key.pem', next.keyPem));
  expect([...(await shown()).values()]).toEqual([fingerprint(next), fingerprint(next)]);
});

test('C07 O09 a revocation list that comes at run time counts on connections that are open already', async () => {
  const leaver = await issue(folder.ca, { commonName: 'alice' });
  const kept = await pair(leaver);
  for (const client of kept) expect((await grantFor(client, 'by-file')).status).toBe(200);

  folder.write('ca.crl', (await makeCrl(folder.ca, { revoked: [leaver] })).pem);
  await andBothSay('reloaded', () =>
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
  const newer = await makeCrl(folder.ca, { revoked: [leaver, next] });
  await andBothSay('reloaded', () => folder.write('ca.crl', newer.pem));
  for (const client of [one, two]) expect((await grantFor(client, 'by-file')).status).toBe(401);
});

test('O08 keys rotated on the command line are published first and sign later, and no token is lost over it', async () => {
  const old = await here.grant();
  const kidOf = (token: string): string =>
    (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;
  const publishSeconds = 4;
  const rotate = () =>
    execFileSync(
      process.execPath,
      [
        join(import.meta.dirname, '../../src/main.ts'),
        'keys',
        'rotate',
        folder.file('data/keys.json'),
        '--publish-before',
        `${publishSeconds}s`,
        '--output',
        'json',
      ],
      { encoding: 'utf8' },
    );
  let told = '';
  await andBothSay('reloaded', () => {
    told = rotate();
  });
  const { keys } = JSON.parse(told) as {
    keys: { kid: string; use: string; state: string; activeFrom: number }[];
  };
  const next = keys.find(({ use, state }) => use === 'signing' && state === 'published');
  if (next === undefined) throw new Error(`no new key: ${told}`);
  expect(keys.find(({ kid }) => kid === kidOf(old.access_token))?.state).toBe('active');

  const seen = new Set<string>();
  const isNew = async (client: PlacedClient): Promise<boolean> => {
    const asked = Date.now() / 1_000;
    const { access_token: token } = await client.grant();
    const answered = Date.now() / 1_000;
    const kid = kidOf(token);
    seen.add(`${client.worker} ${kid}`);
    if (kid === next.kid) expect(answered).toBeGreaterThanOrEqual(next.activeFrom);
    else expect(asked).toBeLessThanOrEqual(next.activeFrom);
    // Whichever key it is: both workers know it, from the first token on.
    for (const other of [here, there]) expect(await other.accepted(token)).toBe(true);
    return kid === next.kid;
  };
  await until('both workers sign with the new key', async () => {
    const both = [await isNew(here), await isNew(there)];
    return both.every(Boolean);
  });
  expect(seen.size).toBe(4);
  for (const client of [here, there]) expect(await client.accepted(old.access_token)).toBe(true);
  const refreshed = await there.refresh(old.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
  expect(kidOf(String(refreshed.json['access_token']))).toBe(next.kid);
});

test('after all of this every client is still served, and nothing failed on the way', async () => {
  const last = connect(folder, server.port, folder.alice);
  expect((await last.grant()).token_type).toBe('Bearer');
  last.close();
  const bad = ['unexpected_error', 'reload_failed', 'worker_ended', 'uncaught_exception'];
  expect(server.log.filter(({ event }) => bad.includes(event))).toEqual([]);
  expect(await server.stop()).toBe(0);
});
