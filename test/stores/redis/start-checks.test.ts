import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, onTestFinished, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { createLogger } from '../../../src/observability/logger.ts';
import { openStore } from '../../../src/server/open-store.ts';
import { UnsuitableRedisError } from '../../../src/stores/redis/checks.ts';
import { connectRedis } from '../../../src/stores/redis/client.ts';
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

const serve = async (...settings: string[]): Promise<RedisServer> => {
  const server = await startRedis(settings);
  servers.push(server);
  return server;
};
const open = async (url: string, changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
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
const problemsOf = async (opening: Promise<unknown>): Promise<string> => {
  try {
    await opening;
  } catch (error) {
    if (error instanceof UnsuitableRedisError) return error.problems.join('\n');
    throw error;
  }
  return 'none';
};

/** What docs/storage.md tells operators to allow, to the letter and no more. */
const PAGE = readFileSync(join(import.meta.dirname, '../../../docs/storage.md'), 'utf8');
const [, ALLOWED = ''] =
  /^ACL SETUSER gatehouse on >PASSWORD ~gh:\* ~\{gh\}:\* (-@all .*)$/m.exec(PAGE) ?? [];
const setUser = async (server: RedisServer, rules: string): Promise<string> => {
  const admin = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  await admin.execute((redis) =>
    redis.acl('SETUSER', 'gh', 'on', '>pw', '~gh:*', '~{gh}:*', ...rules.split(' ')),
  );
  admin.close();
  return `redis://gh:pw@127.0.0.1:${server.port}`;
};

test('S06 a server that may evict records is rejected, with the name of the setting', async () => {
  const server = await serve('--maxmemory-policy', 'allkeys-lru');
  expect(await problemsOf(open(server.url))).toMatch(/maxmemory-policy is allkeys-lru.*set it to noeviction/);
});

test('S11 a user that lacks commands is refused, and every one of them is named', async () => {
  const server = await serve();
  const url = await setUser(server, `${ALLOWED} -xread -xadd -zadd`);
  const problems = await problemsOf(open(url));
  expect(problems).toMatch(/may not run XREAD/);
  expect(problems).toMatch(/may not run XADD/);
  expect(problems).toMatch(/may not run ZADD/);
  expect(problems).not.toMatch(/may not run (?:GET|SET|HSET|EVALSHA)\b/);
  expect(await problemsOf(open(await setUser(server, `${ALLOWED} -evalsha`)))).toMatch(/may not run EVALSHA/);
});

test('S11 the commands we name are enough for everything a store does', async () => {
  const store = await open(await setUser(await serve(), ALLOWED));
  const id = randomGrantId();
  const later = Math.floor(Date.now() / 1_000) + 60;
  expect(await store.grants.create(id, testGrant(), later)).toBe('created');
  const found = await store.grants.read(id);
  if (found === undefined) throw new Error('gone');
  expect(await store.grants.replace(id, found.version, testGrant(), later)).toBe('replaced');
  await store.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later });
  expect(await store.isEmpty()).toBe(false);
  await store.probe();
});

test('S15 differing clocks are reported, and rejected when the difference is large', async () => {
  const { url } = await serve();
  const shifted = (seconds: number) => () => Date.now() / 1_000 + seconds;
  expect((await open(url, { wallTime: shifted(0) })).notices.join()).not.toMatch(/clock/);
  expect((await open(url, { wallTime: shifted(-5) })).notices.join()).toMatch(
    /clocks of Redis and this host differ by [45]/,
  );
  for (const hour of [3_600, -3_600])
    expect(await problemsOf(open(url, { wallTime: shifted(hour) }))).toMatch(
      /clocks of Redis and this host differ by 3[56]\d\d s/,
    );
  let step = 0;
  const store = await open(url, { wallTime: () => Date.now() / 1_000 + step });
  await store.probe();
  step = 3_600;
  await expect(store.probe()).rejects.toThrow(/differ/);
});

test('S01 a wrong password, or a URL of no known form, is refused at once and without the password', async () => {
  const server = await serve('--requirepass', 'right-horse');
  const problems = await problemsOf(open(`redis://:wrong-horse@127.0.0.1:${server.port}`));
  expect(problems).toMatch(/rejected the user name or password/);
  expect(problems).not.toMatch(/horse/);
  expect(await problemsOf(open('redis+sentinel://secret-horse@127.0.0.1'))).toMatch(/unsupported URL format/);
});

test('S06 a connection lost in the middle of the start is waited for, as one that was never made', async () => {
  const { port } = await serve();
  let isCut = false;
  const relay = await startFaultyRelay(port, (bytes) => {
    // The note on a move is read last.
    if (isCut || !bytes.includes('{move}')) return;
    isCut = true;
    relay.set('refuse');
  });
  onTestFinished(() => relay.close());
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  const waitingFor: string[] = [];
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
      waitingFor.push(code);
      relay.set('pass');
    },
  });
  onTestFinished(() => store.close());
  expect(waitingFor).toEqual(['store_unavailable']);
  expect(await store.isEmpty()).toBe(true);
});
