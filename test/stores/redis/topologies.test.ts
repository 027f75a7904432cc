import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { parseRedisUrl } from '../../../src/stores/redis/url.ts';
import { everyGrant } from '../../contract/grant-index.ts';
import { createCa, issue, issueServer } from '../../support/pki.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { startRedisSentinels } from '../../support/redis-sentinels.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../../support/redis-server.ts';
import { testGrant } from '../../support/store-fixtures.ts';

const later = Math.floor(Date.now() / 1_000) + 3_600;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});
const startServer = async (...settings: string[]): Promise<RedisServer> => {
  const server = await startRedis(settings);
  cleanups.push(() => server.stop());
  return server;
};
const connectTo = async (server: RedisServer): Promise<RedisClient> => {
  const client = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  cleanups.push(() => client.close());
  return client;
};
const openStore = async (url: string, changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
  // A long timeout: these tests are not about slow responses.
  const store = await openRedisStore({
    url,
    authenticator: testAuthenticator(),
    maxStaleness: 60,
    ack: 'reachable',
    commandTimeout: 2_000,
    ...changes,
  });
  cleanups.push(() => store.close());
  return store;
};
const revoke = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: later,
  });
const isRefused = (store: RedisStore, grantId: string): boolean =>
  store.revocations.isRevoked({ grantId, generation: 1, clientId: 'c', identity: 'i', issuedAt: later });
const eventually = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 50 });

test('on a cluster of three nodes, records are on all nodes and revocations apply on every replica', async () => {
  const cluster = await startRedisCluster();
  cleanups.push(() => cluster.stop());
  const { url, nodes } = cluster;
  const clients = await Promise.all(nodes.map(connectTo));
  const [first, second] = [await openStore(url), await openStore(url)];
  const ids = Array.from({ length: 120 }, randomGrantId);
  expect(new Set(await Promise.all(ids.map((id) => first.grants.create(id, testGrant({ id }), later))))).toEqual(
    new Set(['created']),
  );
  expect(await second.grants.create(ids[0] ?? '', testGrant(), later)).toBe('taken');
  for (const id of ids) {
    const found = await second.grants.read(id);
    if (found === undefined) throw new Error('grant not found');
    expect(await second.grants.replace(id, found.version, testGrant({ id, generation: 2 }), later)).toBe('replaced');
  }
  const query = { identity: testGrant().identity, limit: 50 };
  expect((await everyGrant(second.grantIndex, query)).map(({ id }) => id)).toEqual(ids.toSorted());
  expect(await everyGrant(second.grantIndex, { clientId: testGrant().clientId, limit: 50 })).toHaveLength(120);
  for (const client of clients) expect(await client.execute((redis) => redis.dbsize())).toBeGreaterThan(10);
  for (const id of ids.slice(0, 30)) {
    await revoke(first, id);
    expect(isRefused(second, id)).toBe(true);
  }
  expect(isRefused(second, ids[100] ?? '')).toBe(false);
});

test('Sentinels report the primary, also after a failover; no confirmed write is lost, and no restart is needed', async () => {
  const primary = await startServer('--repl-diskless-sync-delay', '0');
  const replica = await startServer('--replicaof', '127.0.0.1', String(primary.port));
  const atReplica = await connectTo(replica);
  const atPrimary = await connectTo(primary);
  await eventually(async () =>
    expect(await atPrimary.execute((redis) => redis.info('replication'))).toMatch(/state=online/),
  );
  const sentinels = await startRedisSentinels(primary, { replicas: 1 });
  cleanups.push(() => sentinels.stop());
  const { url } = sentinels;
  const store = await openStore(url, { replicas: 1 });
  const [grantId, revoked] = [randomGrantId(), randomGrantId()];
  expect(await store.grants.create(grantId, testGrant({ id: grantId }), later)).toBe('created');
  await revoke(store, revoked);
  await primary.kill();
  await sentinels.failover();
  await eventually(async () => expect((await store.grants.read(grantId))?.record.id).toBe(grantId));
  expect(await atReplica.execute((redis) => redis.info('replication'))).toMatch(/role:master/);
  expect(isRefused(store, revoked)).toBe(true);
  // Without a replica no write is confirmed. Writes use a separate connection, which may find the new primary later
  // than the connection for reads.
  await eventually(() =>
    expect(store.grants.create(randomGrantId(), testGrant(), later)).rejects.toThrow(/0 of 1 replicas/),
  );
  const another = await eventually(() => openStore(url));
  expect(isRefused(another, revoked)).toBe(true);
});

test('S12 TLS with a client certificate works; without one, or with a server of another CA, the store is unavailable', async () => {
  const [ca, otherCa] = [await createCa(), await createCa()];
  const [serverCertificate, client] = [await issueServer(ca), await issue(ca, { commonName: 'gatehouse' })];
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-redis-tls-'));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const writePem = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text);
    return join(folder, name);
  };
  const server = await startRedis(
    [
      '--tls-cert-file',
      writePem('server.pem', serverCertificate.pem),
      '--tls-key-file',
      writePem('server-key.pem', serverCertificate.keyPem),
      '--tls-ca-cert-file',
      writePem('ca.pem', ca.pem),
    ],
    { tls: true },
  );
  cleanups.push(() => server.stop());
  const url = `rediss://127.0.0.1:${server.port}`;
  const tls = { ca: ca.pem, cert: client.pem, key: client.keyPem, servername: 'localhost' };
  const store = await openStore(url, { connection: { tls } });
  expect(await store.grants.create('a', testGrant(), later)).toBe('created');
  await expect(openStore(url, { connection: { tls: { ca: ca.pem, servername: 'localhost' } } })).rejects.toThrow(
    /^Redis:/,
  );
  await expect(openStore(url, { connection: { tls: { ...tls, ca: otherCa.pem } } })).rejects.toThrow(/^Redis:/);
  await expect(openStore(url, { connection: { tls: { ...tls, servername: 'other.test' } } })).rejects.toThrow(
    /^Redis:/,
  );
});

test.each([
  ['redis://h', { kind: 'single', hosts: [{ host: 'h', port: 6379 }], tls: false, database: 0 }],
  [
    'rediss://me:p%40ss@h:1/2',
    {
      kind: 'single',
      hosts: [{ host: 'h', port: 1 }],
      tls: true,
      database: 2,
      username: 'me',
      password: 'p@ss',
    },
  ],
  [
    'redis://:pw@[::1]:7',
    { kind: 'single', hosts: [{ host: '::1', port: 7 }], tls: false, database: 0, password: 'pw' },
  ],
  [
    'redis+sentinel://a,b:5/house/3',
    {
      kind: 'sentinel',
      hosts: [
        { host: 'a', port: 26_379 },
        { host: 'b', port: 5 },
      ],
      tls: false,
      database: 3,
      name: 'house',
    },
  ],
  ['redis+cluster://a', { kind: 'cluster', hosts: [{ host: 'a', port: 6379 }], tls: false, database: 0 }],
  ['redis+sentinel://a', undefined],
  ['redis+cluster://a/1', undefined],
  ['redis://a,b', undefined],
  ['redis://h:0', undefined],
  ['redis://h:99999', undefined],
  ['redis://h/x', undefined],
  ['redis://%zz@h', undefined],
  ['http://h', undefined],
  ['redis://', undefined],
])('the URL %s is parsed', (url, expected) => {
  expect(parseRedisUrl(url)).toEqual(expected);
});
