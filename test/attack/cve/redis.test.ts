import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import {
  findKnownVulnerabilities,
  type RedisVersion,
  readRedisVersion,
  UnsuitableRedisError,
} from '../../../src/stores/redis/startup-checks.ts';
import { openRedisStore, type RedisStore } from '../../../src/stores/redis/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { testGrant } from '../../support/store-fixtures.ts';

/**
 * Vulnerabilities of Redis itself: memory errors that a user who may run commands can exploit. gatehouse reports a
 * vulnerable server, uses a user with minimal permissions, and never puts input into a script.
 */
const PAGE = readFileSync(join(import.meta.dirname, '../../../docs/storage.md'), 'utf8');
const [, RULES = ''] = /^ACL SETUSER gatehouse (on .*)$/m.exec(PAGE) ?? [];
const later = Math.floor(Date.now() / 1_000) + 3_600;

let server: RedisServer;
let admin: Redis;
/** A client with the stolen password of the documented user. */
let attacker: Redis;
const stores: RedisStore[] = [];

const open = async (user = 'gatehouse'): Promise<RedisStore> => {
  const url = `redis://${user}:PASSWORD@127.0.0.1:${server.port}`;
  const store = await openRedisStore({
    url,
    authenticator: testAuthenticator(),
    maxStaleness: 60,
    ack: 'reachable',
  });
  stores.push(store);
  return store;
};
const useStore = async (store: RedisStore): Promise<void> => {
  const id = randomGrantId();
  expect(await store.grants.create(id, testGrant(), later)).toBe('created');
  const found = await store.grants.read(id);
  if (found === undefined) throw new Error('grant not found');
  expect(await store.grants.replace(id, found.version, testGrant(), later)).toBe('replaced');
  await store.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later });
  await store.probe();
};

beforeAll(async () => {
  server = await startRedis();
  admin = new Redis(server.url);
  await admin.call('ACL', 'SETUSER', 'gatehouse', ...RULES.split(' '));
  await admin.call('ACL', 'SETUSER', 'no-eval', ...RULES.split(' '), '-eval');
  await admin.set('other:secret', 'of another application');
  attacker = new Redis({ port: server.port, username: 'gatehouse', password: 'PASSWORD' });
});
afterAll(async () => {
  await Promise.allSettled(stores.map((store) => store.close()));
  attacker.disconnect();
  admin.disconnect();
  await server.stop();
});

/** The rows of the table in docs/storage.md: CVE names and fixed releases. */
const ROWS = [...PAGE.matchAll(/^\| (CVE-[^|]*?) \([^|]*\| ([^|]*) \| ([^|]*) \|$/gm)].map(
  ([, names = '', redis = '', valkey = '']) => ({
    names: names.split(', '),
    releases: [
      ...(redis.match(/[\d.]+/g) ?? []).map((version): RedisVersion => ({ server: 'Redis', version })),
      ...(valkey.match(/[\d.]+/g) ?? []).map((version): RedisVersion => ({ server: 'Valkey', version })),
    ],
  }),
);
const listVulnerabilities = (version: RedisVersion): string => findKnownVulnerabilities(version).join('\n');

describe.each([
  ['CVE-2025-49844', '7.0.15', '7.2.11'],
  ['CVE-2025-46817', '8.2.1', '8.2.2'],
  ['CVE-2025-46818', '6.2.6', '6.2.20'],
  ['CVE-2026-23479', '8.0.9', '8.2.6'],
])('%s Redis: a vulnerable server', (name, version, fixedIn) => {
  test('is reported with the next fixed release', () => {
    const line = findKnownVulnerabilities({ server: 'Redis', version }).find((notice) => notice.includes(name));
    expect(line).toContain(`Redis ${version} has `);
    expect(line).toContain(`it is fixed in ${fixedIn}`);
    expect(line).toContain('unless your distribution has backported the fix');
  });

  test('is distinguished from a fixed one in every branch, as documented', () => {
    const row = ROWS.find(({ names }) => names.includes(name));
    expect(row?.releases.length).toBeGreaterThan(7);
    for (const release of row?.releases ?? []) {
      expect(listVulnerabilities(release)).not.toContain(name);
      const [major, minor, patch] = release.version.split('.').map(Number);
      expect(listVulnerabilities({ ...release, version: `${major}.${minor}.${Number(patch) - 1}` })).toContain(name);
      expect(listVulnerabilities({ ...release, version: `${major}.${minor}.${Number(patch) + 10}` })).not.toContain(
        name,
      );
    }
    for (const release of ['Redis 8.8.0', 'Redis 10.0.0', 'Valkey 9.1.0'].map((text) => text.split(' ')))
      expect(listVulnerabilities({ server: release[0] as RedisVersion['server'], version: release[1] ?? '' })).toBe('');
  });
});

test('CVE-2025-49844 Redis: the version of the running server is checked, for Valkey that of Valkey', async () => {
  const [, version = ''] = /redis_version:(\S+)/.exec(await admin.info('server')) ?? [];
  const { notices } = await open();
  expect(notices.filter((notice) => notice.includes('CVE'))).toEqual(
    findKnownVulnerabilities({ server: 'Redis', version }),
  );
  const valkey: Readonly<Record<string, string>> = { redis_version: '7.2.4', valkey_version: '9.1.1' };
  expect(readRedisVersion((name) => valkey[name])).toEqual({ server: 'Valkey', version: '9.1.1' });
});

test('CVE-2025-49844 Redis: without EVAL the store works while its scripts are loaded, and reports the missing permission when they are not', async () => {
  await useStore(await open());
  const store = await open('no-eval');
  await useStore(store);
  await admin.script('FLUSH');
  await expect(store.grants.create(randomGrantId(), testGrant(), later)).rejects.toThrow(
    /the Redis user lacks permission for this command/,
  );
  const refusal = await open('no-eval').catch((error: unknown) => error);
  expect(refusal).toBeInstanceOf(UnsuitableRedisError);
  expect((refusal as UnsuitableRedisError).problems.join()).toMatch(/may not run EVAL on the keys of gatehouse/);
});

test('CVE-2025-46817 Redis: no input becomes part of a script', async () => {
  const store = await open();
  const scripts = async (): Promise<string | undefined> =>
    /number_of_cached_scripts:(\d+)/.exec(await admin.info('memory'))?.[1];
  const storeText = async (args: string): Promise<void> => {
    const grant = { ...testGrant(), identity: args, clientId: args };
    const id = randomGrantId();
    expect(await store.grants.create(id, grant, later)).toBe('created');
    expect((await store.grants.read(id))?.record).toEqual(grant);
    expect((await store.grantIndex.list({ identity: args, limit: 10 })).grants).toHaveLength(1);
    await store.revocations.announce({ of: 'client', clientId: args, notBefore: 1, keepUntil: later });
    await store.revocations.announce({ of: 'identity', identity: args, notBefore: 1, keepUntil: later });
  };
  await storeText('a name');
  const before = await scripts();
  expect(Number(before)).toBeGreaterThan(3);
  for (const input of ['"]] return unpack({}, 0, 2147483647) --', "' .. redis.call('FLUSHALL') .. '", '\0\r\n$9'])
    await storeText(input);
  expect(await scripts()).toBe(before);
  expect(await admin.get('other:secret')).toBe('of another application');
});

test('CVE-2025-46818 Redis: a stolen password gives access to the keys of gatehouse only, also in scripts, and cannot install code', async () => {
  const tries: readonly (readonly [string, ...string[]])[] = [
    ['GET', 'other:secret'],
    ['EVAL', "return redis.call('GET', KEYS[1])", '1', 'other:secret'],
    ['EVAL', "return redis.call('GET', 'other:secret')", '0'],
    ['EVAL', "return redis.call('FLUSHALL')", '0'],
    ['FUNCTION', 'LOAD', "#!lua name=x\nredis.register_function('f', function() return 1 end)"],
    ['SCRIPT', 'FLUSH'],
    ['CONFIG', 'SET', 'dir', '/tmp'],
    ['ACL', 'SETUSER', 'gatehouse', '+@all'],
    ['REPLICAOF', '127.0.0.1', '1'],
    ['RESTORE', 'gh:x', '0', 'x'],
    ['MONITOR'],
    ['FLUSHALL'],
  ];
  for (const [command, ...args] of tries)
    await expect(attacker.call(command, ...args), [command, ...args].join(' ')).rejects.toThrow(
      /NOPERM|user executing the script can't/,
    );
});

test('CVE-2026-23479 Redis: a stolen password cannot close, unblock or evict connections of other clients', async () => {
  const store = await open();
  for (const words of [['UNBLOCK', '1'], ['KILL', 'TYPE', 'normal'], ['PAUSE', '1'], ['NO-EVICT', 'on'], ['LIST']])
    await expect(attacker.call('CLIENT', ...words)).rejects.toThrow(/NOPERM/);
  await expect(attacker.call('CONFIG', 'SET', 'maxmemory-clients', '1')).rejects.toThrow(/NOPERM/);
  await expect(attacker.call('BLPOP', 'gh:x', '1')).rejects.toThrow(/NOPERM/);
  expect(await admin.call('CLIENT', 'LIST')).toMatch(/name=gatehouse-reader/);
  await useStore(store);
});
