import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterEach, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { parseRedisUrl } from '../../../src/stores/redis/url.ts';
import { everyGrant } from '../../contract/grant-index.ts';
import { createCa, issue, issueServer } from '../../support/pki.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../../support/redis-server.ts';
import { testGrant } from '../../support/store-fixtures.ts';

const later = Math.floor(Date.now() / 1_000) + 3_600;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});
const serve = async (...settings: string[]): Promise<RedisServer> => {
  const server = await startRedis(settings);
  cleanups.push(() => server.stop());
  return server;
};
const at = async (server: RedisServer): Promise<RedisClient> => {
  const client = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  cleanups.push(() => client.close());
  return client;
};
const open = async (url: string, changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
  // What is tested here is where it connects to, not how quickly a busy machine answers.
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
const end = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: later,
  });
const refuses = (store: RedisStore, grantId: string): boolean =>
  store.revocations.isRevoked({ grantId, generation: 1, clientId: 'c', identity: 'i', issuedAt: later });
const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 50 });

test('a cluster of three: records are on all of its nodes, revocations apply on every replica', async () => {
  const cluster = await startRedisCluster();
  cleanups.push(() => cluster.stop());
  const { url, nodes } = cluster;
  const clients = await Promise.all(nodes.map(at));
  const [one, two] = [await open(url), await open(url)];
  const ids = Array.from({ length: 120 }, randomGrantId);
  expect(
    new Set(await Promise.all(ids.map((id) => one.grants.create(id, testGrant({ id }), later)))),
  ).toEqual(new Set(['created']));
  expect(await two.grants.create(ids[0] ?? '', testGrant(), later)).toBe('taken');
  for (const id of ids) {
    const found = await two.grants.read(id);
    if (found === undefined) throw new Error('gone');
    expect(await two.grants.replace(id, found.version, testGrant({ id, generation: 2 }), later)).toBe(
      'replaced',
    );
  }
  const held = { identity: testGrant().identity, limit: 50 };
  expect((await everyGrant(two.grantIndex, held)).map(({ id }) => id)).toEqual(ids.toSorted());
  expect(await everyGrant(two.grantIndex, { clientId: testGrant().clientId, limit: 50 })).toHaveLength(120);
  for (const client of clients) expect(await client.execute((redis) => redis.dbsize())).toBeGreaterThan(10);
  for (const id of ids.slice(0, 30)) {
    await end(one, id);
    expect(refuses(two, id)).toBe(true);
  }
  expect(refuses(two, ids[100] ?? '')).toBe(false);
});

test('Sentinels name the primary, and the next one after a failover; nothing confirmed is lost, nothing is restarted', async () => {
  const primary = await serve('--repl-diskless-sync-delay', '0');
  const replica = await serve('--replicaof', '127.0.0.1', String(primary.port));
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-sentinel-'));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const atReplica = await at(replica);
  const atPrimary = await at(primary);
  await soon(async () =>
    expect(await atPrimary.execute((redis) => redis.info('replication'))).toMatch(/state=online/),
  );
  const sentinels: RedisServer[] = [];
  for (let number = 0; number < 3; number += 1) {
    const file = join(folder, `sentinel-${number}.conf`);
    writeFileSync(
      file,
      [
        `sentinel monitor house 127.0.0.1 ${primary.port} 2`,
        // A slow machine must not look like a dead primary: the failover is started below.
        'sentinel down-after-milliseconds house 60000',
        'sentinel failover-timeout house 5000',
        '',
      ].join('\n'),
    );
    const sentinel = await startRedis(['--sentinel'], { file: [file] });
    cleanups.push(() => sentinel.stop());
    sentinels.push(sentinel);
  }
  const clients = sentinels.map(({ port }) => new Redis(port, '127.0.0.1', { enableReadyCheck: false }));
  cleanups.push(() => clients.forEach((client) => client.disconnect()));
  // They find each other sooner, and a pause of this machine neither suspends a Sentinel (TILT) nor rules out the replica.
  for (const client of clients)
    await client.call('SENTINEL', 'DEBUG', 'PUBLISH-PERIOD', '200', 'TILT-TRIGGER', '60000');
  await soon(async () => {
    for (const client of clients) expect(await client.info('sentinel')).toMatch(/slaves=1,sentinels=3/);
  });
  const url = `redis+sentinel://${sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',')}/house`;
  const store = await open(url, { replicas: 1 });
  const [kept, revoked] = [randomGrantId(), randomGrantId()];
  expect(await store.grants.create(kept, testGrant({ id: kept }), later)).toBe('created');
  await end(store, revoked);
  await primary.kill();
  await clients[0]?.call('SENTINEL', 'FAILOVER', 'house');
  await soon(async () => expect((await store.grants.read(kept))?.record.id).toBe(kept));
  expect(await atReplica.execute((redis) => redis.info('replication'))).toMatch(/role:master/);
  expect(refuses(store, revoked)).toBe(true);
  // There is no replica left to hold a write, and so none is confirmed. Writes have a connection of their own, which
  // finds the new primary in its own time: that of reading says nothing about it.
  await soon(() =>
    expect(store.grants.create(randomGrantId(), testGrant(), later)).rejects.toThrow(/0 of 1 replicas/),
  );
  const another = await soon(() => open(url));
  expect(refuses(another, revoked)).toBe(true);
});

test('S12 TLS with a client certificate; without one, or to a server of another authority, it is unavailable', async () => {
  const [ca, outsider] = [await createCa(), await createCa()];
  const [own, client] = [await issueServer(ca), await issue(ca, { commonName: 'gatehouse' })];
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-redis-tls-'));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const file = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text);
    return join(folder, name);
  };
  const server = await startRedis(
    [
      '--tls-cert-file',
      file('server.pem', own.pem),
      '--tls-key-file',
      file('server-key.pem', own.keyPem),
      '--tls-ca-cert-file',
      file('ca.pem', ca.pem),
    ],
    { tls: true },
  );
  cleanups.push(() => server.stop());
  const url = `rediss://127.0.0.1:${server.port}`;
  const tls = { ca: ca.pem, cert: client.pem, key: client.keyPem, servername: 'localhost' };
  const store = await open(url, { connection: { tls } });
  expect(await store.grants.create('a', testGrant(), later)).toBe('created');
  await expect(open(url, { connection: { tls: { ca: ca.pem, servername: 'localhost' } } })).rejects.toThrow(
    /^Redis:/,
  );
  await expect(open(url, { connection: { tls: { ...tls, ca: outsider.pem } } })).rejects.toThrow(/^Redis:/);
  await expect(open(url, { connection: { tls: { ...tls, servername: 'other.test' } } })).rejects.toThrow(
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
])('the URL %s is parsed as intended', (url, place) => {
  expect(parseRedisUrl(url)).toEqual(place);
});
