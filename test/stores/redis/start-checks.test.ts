import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, onTestFinished, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { createLogger } from '../../../src/observability/logger.ts';
import { openStore } from '../../../src/server/open-store.ts';
import { connectRedis } from '../../../src/stores/redis/client.ts';
import { UnsuitableRedisError } from '../../../src/stores/redis/startup-checks.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { storeTempFolder, testGrant } from '../../support/store-fixtures.ts';
import { baseSettings, writeAndLoadSettings } from '../../support/test-gateway.ts';

const servers: RedisServer[] = [];
const stores: RedisStore[] = [];
afterEach(async () => {
  await Promise.all(stores.splice(0).map((store) => store.close()));
  await Promise.all(servers.splice(0).map((server) => server.stop()));
});

const startServer = async (...settings: string[]): Promise<RedisServer> => {
  const server = await startRedis(settings);
  servers.push(server);
  return server;
};
const openTestStore = async (url: string, changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
  const store = await openRedisStore({
    url,
    authenticator: testAuthenticator(),
    maxStaleness: 60,
    ack: 'reachable',
    ...changes,
  });
  stores.push(store);
  return store;
};
const getProblems = async (opening: Promise<unknown>): Promise<string> => {
  try {
    await opening;
  } catch (error) {
    if (error instanceof UnsuitableRedisError) return error.problems.join('\n');
    throw error;
  }
  return 'none';
};

/** Exactly the permissions that docs/storage.md documents. */
const PAGE = readFileSync(join(import.meta.dirname, '../../../docs/storage.md'), 'utf8');
const [, ALLOWED = ''] = /^ACL SETUSER gatehouse on >PASSWORD ~gh:\* ~\{gh\}:\* (-@all .*)$/m.exec(PAGE) ?? [];
const setUser = async (server: RedisServer, rules: string): Promise<string> => {
  const admin = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  await admin.execute((redis) => redis.acl('SETUSER', 'gh', 'on', '>pw', '~gh:*', '~{gh}:*', ...rules.split(' ')));
  admin.close();
  return `redis://gh:pw@127.0.0.1:${server.port}`;
};

test('S06 a server that may evict records is rejected, and the message names the setting', async () => {
  const server = await startServer('--maxmemory-policy', 'allkeys-lru');
  expect(await getProblems(openTestStore(server.url))).toMatch(/maxmemory-policy is allkeys-lru.*set it to noeviction/);
});

test('S11 a user without permission for some commands is refused, and the message names each of them', async () => {
  const server = await startServer();
  const url = await setUser(server, `${ALLOWED} -xread -xadd -zadd`);
  const problems = await getProblems(openTestStore(url));
  expect(problems).toMatch(/may not run XREAD/);
  expect(problems).toMatch(/may not run XADD/);
  expect(problems).toMatch(/may not run ZADD/);
  expect(problems).not.toMatch(/may not run (?:GET|SET|HSET|EVALSHA)\b/);
  expect(await getProblems(openTestStore(await setUser(server, `${ALLOWED} -evalsha`)))).toMatch(/may not run EVALSHA/);
});

test('S11 the documented commands suffice for all operations of a store', async () => {
  const store = await openTestStore(await setUser(await startServer(), ALLOWED));
  const id = randomGrantId();
  const later = Math.floor(Date.now() / 1_000) + 60;
  expect(await store.grants.create(id, testGrant(), later)).toBe('created');
  const found = await store.grants.read(id);
  if (found === undefined) throw new Error('grant not found');
  expect(await store.grants.replace(id, found.version, testGrant(), later)).toBe('replaced');
  await store.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later });
  expect(await store.isEmpty()).toBe(false);
  await store.probe();
});

test('S15 differing clocks are reported, and rejected when the difference is large', async () => {
  const { url } = await startServer();
  const createShiftedClock = (seconds: number) => () => Date.now() / 1_000 + seconds;
  expect((await openTestStore(url, { wallTime: createShiftedClock(0) })).notices.join()).not.toMatch(/clock/);
  expect((await openTestStore(url, { wallTime: createShiftedClock(-5) })).notices.join()).toMatch(
    /clocks of Redis and this host differ by [45]/,
  );
  for (const hour of [3_600, -3_600])
    expect(await getProblems(openTestStore(url, { wallTime: createShiftedClock(hour) }))).toMatch(
      /clocks of Redis and this host differ by 3[56]\d\d s/,
    );
  let step = 0;
  const store = await openTestStore(url, { wallTime: () => Date.now() / 1_000 + step });
  expect(store.findClockProblem?.()).toBeUndefined();
  step = 3_600;
  expect(store.findClockProblem?.()).toMatch(/differ by 3600 s/);
  // The store itself can be used.
  await store.probe();
});

test('S01 a wrong password or an unsupported URL is refused at once, and the message does not contain the password', async () => {
  const server = await startServer('--requirepass', 'right-horse');
  const problems = await getProblems(openTestStore(`redis://:wrong-horse@127.0.0.1:${server.port}`));
  expect(problems).toMatch(/rejected the user name or password/);
  expect(problems).not.toMatch(/horse/);
  expect(await getProblems(openTestStore('redis+sentinel://secret-horse@127.0.0.1'))).toMatch(/unsupported URL format/);
});

test('S06 a start whose connection is lost waits for Redis, like one that never connected', async () => {
  const { port } = await startServer();
  let isDisconnected = false;
  const relay = await startFaultyRelay(port, (bytes) => {
    // The migration note is read last.
    if (isDisconnected || !bytes.includes('{migration}')) return;
    isDisconnected = true;
    relay.set('refuse');
  });
  onTestFinished(() => relay.close());
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  const reportedCodes: string[] = [];
  const store = await openStore({
    settings: writeAndLoadSettings(folder.path, {
      ...baseSettings(1),
      store: { type: 'redis', url: `redis://127.0.0.1:${relay.port}/0` },
      keys: { file: 'keys.json' },
    }),
    log: createLogger({ level: 'info', format: 'json', write() {} }),
    now: () => Date.now() / 1_000,
    authenticator: testAuthenticator(),
    role: 'standalone',
    async onUnreachable({ code }) {
      reportedCodes.push(code);
      relay.set('pass');
    },
  });
  onTestFinished(() => store.close());
  expect(reportedCodes).toEqual(['store_unavailable']);
  expect(await store.isEmpty()).toBe(true);
});
