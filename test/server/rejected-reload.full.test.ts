import { readdirSync, readFileSync } from 'node:fs';
import { expect, onTestFinished, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, readKeyringFile, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { startRedis } from '../support/redis-server.ts';
import { scrape } from '../support/scrape.ts';
import { connect, createServeFolder, type ServeFolder, startServe, until } from '../support/serve-process.ts';
import { startGateway, startUpstream } from '../support/test-gateway.ts';

const FILES = ['gatehouse.yaml', 'keys.json', 'server.pem', 'server-key.pem'] as const;

const withRates = (settings: SettingsInput, rates: NonNullable<SettingsInput['limits']>['rates']) => ({
  ...settings,
  limits: { ...settings.limits, rates: { ...settings.limits?.rates, ...rates } },
});

/** Requests that each rate limit allows. */
const BURST = 10;

/** A process on Redis, which shares rate limits. */
async function startProcess() {
  const redis = await startRedis();
  onTestFinished(() => redis.stop());
  const folder = await createServeFolder((settings) => ({
    ...withRates(settings, { device: `${BURST}/h`, page: `${BURST}/h` }),
    store: { type: 'redis', url: redis.url },
    keys: { file: 'keys.json' },
  }));
  onTestFinished(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const server = await startServe(folder);
  const client = connect(folder, server.port);
  onTestFinished(() => client.close());
  const original = new Map(FILES.map((name) => [name, readFileSync(folder.file(name))]));
  /** Changes files and reloads until this event is logged. All files are written before the process can read one. */
  const reload = async (event: 'reloaded' | 'reload_rejected', change: () => void) => {
    const from = server.log.length;
    change();
    server.signal('SIGHUP');
    return until(event, () => server.log.slice(from).find((line) => line.event === event));
  };
  return {
    folder,
    server,
    reload,
    restore: () => original.forEach((content, name) => folder.write(name, content.toString())),
    /** Requests that the limit of all replicas, and that of this process, still allow. */
    takeAll: async (): Promise<readonly [number, number]> => {
      let [shared, local] = [0, 0];
      const body = { client_id: 'report-runner', scope: 'files:read' };
      while ((await client.post('/Authorize/Device', body)).status === 200) shared += 1;
      while ((await client.request({ path: '/authsvc/device' })).status === 200) local += 1;
      return [shared, local];
    },
    takeOne: async (): Promise<void> => {
      const { status } = await client.post('/Authorize/Device', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      const page = await client.request({ path: '/authsvc/device' });
      expect([status, page.status]).toEqual([200, 200]);
    },
  };
}

/** Other keys, limits, routes, upstreams, issuers and revocation lists than before. */
function changeEverything(folder: ServeFolder, issuer: string): void {
  const file = folder.file('keys.json');
  const rotation = { alg: 'EdDSA', now: Date.now() / 1_000, publishBefore: 0 } as const;
  writeKeyringFile(file, rotateKeyring(readKeyringFile(file), rotation), { replace: true });
  folder.configure((settings) => ({
    ...withRates(settings, { device: '100/h', page: '100/h' }),
    certificates: { ...settings.certificates, crls: [{ url: `${issuer}/added.crl` }] },
    trustedIssuers: { added: { issuer, audience: 'files' } },
    upstreams: { ...settings.upstreams, added: { url: issuer } },
    routes: [{ path: '/added/**', public: true, upstream: 'added' }],
  }));
}

/** Writes a certificate and its key, or one of them. */
async function prepareCertificate(key: 'rsa1024' | 'p256', files: readonly ('pem' | 'keyPem')[]) {
  const issued = await issueServer(await createCa(), { key });
  const names = { pem: 'server.pem', keyPem: 'server-key.pem' };
  return (folder: ServeFolder): void => {
    for (const file of files) folder.write(names[file], issued[file]);
  };
}

/** What is wrong with the new configuration, and the problem that is reported. */
const FAULTS: readonly (readonly [string, RegExp, () => Promise<(folder: ServeFolder) => void>])[] = [
  ['a certificate that OpenSSL refuses', /^listen\.tls: /, () => prepareCertificate('rsa1024', ['pem', 'keyPem'])],
  ['a private key of another certificate', /server-key\.pem/, () => prepareCertificate('p256', ['pem'])],
  [
    'a key file without the keys of the store',
    /lacks the key/,
    async () => (folder) => writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: true }),
  ],
  ['an unreadable key file', /^keys\.file: /, async () => (folder) => void folder.write('keys.json', 'being written')],
];

test('O05 a rejected reload changes nothing: limits, keys, metrics and peers stay the same', async () => {
  const requests: string[] = [];
  const peer = await startUpstream((request, response) => {
    requests.push(String(request.url));
    response.writeHead(503).end();
  });
  onTestFinished(() => peer.close());
  const { folder, server, reload, restore, takeOne, takeAll } = await startProcess();
  const listSamples = async () => [...(await scrape(server.adminPort)).samples.keys()];
  for (const [name, problem, prepare] of FAULTS) {
    const breakFiles = await prepare();
    await takeOne();
    const { problems } = await reload('reload_rejected', () => {
      changeEverything(folder, `http://127.0.0.1:${peer.port}`);
      breakFiles(folder);
    });
    expect(problems, name).toContainEqual(expect.stringMatching(problem));
    await takeOne();
    expect((await listSamples()).filter((sample) => /added|127\.0\.0\.1/.test(sample))).toEqual([]);
    expect(requests).toEqual([]);
    // With the original keys, too.
    await reload('reloaded', restore);
  }
  const left = BURST - 2 * FAULTS.length;
  expect(await takeAll()).toEqual([left, left]);
});

const RELOADS = 20;

/** Adds a peer of each kind; a number makes them others than those of an earlier reload. */
const withPeers =
  (port: number, reload: number) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    certificates: { ...settings.certificates, crls: [{ url: `http://127.0.0.1:${port}/${reload}.crl` }] },
    trustedIssuers: {
      [`corp-${reload}`]: {
        issuer: `http://127.0.0.1:${port}/${reload}`,
        audience: 'files',
        introspection: {
          url: `http://127.0.0.1:${port}/introspect`,
          clientId: 'a',
          clientSecret: 'a secret',
        },
      },
    },
    upstreams: {
      ...settings.upstreams,
      [`checked-${reload}`]: {
        url: `http://127.0.0.1:${port}`,
        health: { path: '/', interval: '1s', timeout: '30s' },
      },
    },
  });

test('rejected reloads leave no file, socket or thread open', async () => {
  // It never responds: a check that goes on keeps its connection.
  const peer = await startUpstream(() => {});
  onTestFinished(() => peer.close());
  const { folder, server, reload } = await startProcess();
  const count = (): readonly number[] =>
    ['fd', 'task'].map((kind) => readdirSync(`/proc/${server.pid}/${kind}`).length);
  const reject = (index: number) =>
    reload('reload_rejected', () => {
      folder.configure((settings) => ({ ...settings, ...withPeers(peer.port, index)(settings) }));
      writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: true });
    });
  await reject(0);
  const before = count();
  for (let index = 1; index <= RELOADS; index += 1) await reject(index);
  // The process itself may open a connection or start a thread meanwhile, but not one for each reload.
  await until('everything is closed', () => count().every((open, kind) => open - (before[kind] ?? 0) < RELOADS / 4));
});

test('rejected reloads leave no resource of the event loop behind', async () => {
  // It never responds: a check that goes on keeps its connection.
  const peer = await startUpstream(() => {});
  onTestFinished(() => peer.close());
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  writeKeyringFile(gateway.server.settings().keys.file, createKeyringFile('EdDSA'), { replace: true });
  const reject = (index: number) =>
    expect(gateway.reload(withPeers(peer.port, index))).rejects.toThrow('lacks the key');
  await reject(0);
  const count = (): number => process.getActiveResourcesInfo().length;
  const before = count();
  for (let index = 1; index <= 50; index += 1) await reject(index);
  await until('everything is closed', () => count() - before < RELOADS / 4);
});
