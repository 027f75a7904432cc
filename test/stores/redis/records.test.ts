import { setImmediate } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Fault } from '../../../src/ports/fault.ts';
import type { RecordStore } from '../../../src/ports/store.ts';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { createRedisRecords } from '../../../src/stores/redis/records.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { testGrant } from '../../support/store-fixtures.ts';

type Grants = RecordStore<ReturnType<typeof testGrant>>;

const LATER = Date.now() / 1_000 + 3_600;
const TIMEOUT = 250;
/** For tests that are not about the timeout, on a busy machine. */
const LONG_TIMEOUT = 1_000;

const getFaultCode = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'no fault',
    (error: Fault) => error.code,
  );
const getFaultMessage = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'no fault',
    (error: Fault) => error.message,
  );

async function connectGrants(
  url: string,
  commandTimeout = TIMEOUT,
): Promise<{ readonly client: RedisClient; readonly grants: Grants }> {
  const client = await connectRedis({ url, name: 'test', commandTimeout });
  return {
    client,
    grants: createRedisRecords({ client, prefix: 't', kind: 'grants', authenticator: testAuthenticator() }),
  };
}

/** Retries until it succeeds; fails with the last fault. */
const retryUntilSuccess = (work: () => Promise<unknown>): Promise<unknown> =>
  vi.waitFor(work, { timeout: 10_000, interval: 20 });

describe('when the connection to Redis fails', () => {
  let server: RedisServer;
  let relay: FaultyRelay;
  let client: RedisClient;
  let grants: Grants;
  beforeAll(async () => {
    server = await startRedis();
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    relay = await startFaultyRelay(server.port);
    ({ client, grants } = await connectGrants(`redis://127.0.0.1:${relay.port}`, LONG_TIMEOUT));
    await client.execute((redis) => redis.flushall());
    // Load the scripts now, so that the reply lost below is not a NOSCRIPT error.
    await grants.create('warm', testGrant(), LATER);
    const warm = await grants.read('warm');
    if (warm !== undefined) await grants.replace('warm', warm.version, testGrant(), LATER);
  });
  afterEach(async () => {
    vi.useRealTimers();
    client.close();
    await relay.close();
  });

  test('S14 a create whose reply was lost is sent again and reports that it created the record', async () => {
    relay.set('drop response');
    expect(await grants.create('a', testGrant(), LATER)).toBe('created');
    expect(relay.lostResponses()).toBe(1);
    expect(await grants.create('a', testGrant(), LATER)).toBe('taken');
  });

  test('S14 a replace whose reply was lost is sent again, happens once, and reports it', async () => {
    await grants.create('a', testGrant(), LATER);
    const found = await grants.read('a');
    if (found === undefined) throw new Error('grant not found');
    relay.set('drop response');
    expect(await grants.replace('a', found.version, testGrant({ generation: 2 }), LATER)).toBe('replaced');
    expect(relay.lostResponses()).toBe(1);
    expect(await grants.replace('a', found.version, testGrant({ generation: 3 }), LATER)).toBe('stale');
    expect((await grants.read('a'))?.record.generation).toBe(2);
  });

  test('S14 of fifty concurrent writers of one version, while replies are lost, at most one wins, and its write is stored', async () => {
    for (let attempt = 0; attempt < 10; attempt += 1) {
      await retryUntilSuccess(() => grants.create(`w${attempt}`, testGrant(), LATER));
      const found = await grants.read(`w${attempt}`);
      if (found === undefined) throw new Error('grant not found');
      relay.set('drop response');
      const outcomes = await Promise.allSettled(
        Array.from({ length: 50 }, (_, index) =>
          grants.replace(`w${attempt}`, found.version, testGrant({ generation: 100 + index }), LATER),
        ),
      );
      const winners = outcomes.flatMap((outcome, index) =>
        outcome.status === 'fulfilled' && outcome.value === 'replaced' ? [100 + index] : [],
      );
      expect(winners.length).toBeLessThanOrEqual(1);
      await retryUntilSuccess(() => grants.read(`w${attempt}`));
      const { generation } = (await grants.read(`w${attempt}`))?.record ?? testGrant();
      if (winners.length === 1) expect(generation).toBe(winners[0]);
    }
  });

  test('S02 while Redis is unreachable every operation fails and is never "not found"; afterwards it recovers', async () => {
    await grants.create('a', testGrant(), LATER);
    relay.set('refuse');
    await retryUntilSuccess(async () => expect(await getFaultCode(grants.read('a'))).toBe('store_unavailable'));
    expect(await getFaultCode(grants.read('nobody'))).toBe('store_unavailable');
    expect(await getFaultCode(grants.create('b', testGrant(), LATER))).toBe('store_unavailable');
    relay.set('pass');
    await retryUntilSuccess(() => grants.read('a'));
    expect((await grants.read('a'))?.record).toEqual(testGrant());
  });

  test('S03 a command without a reply fails after its timeout, and the connection is discarded', async () => {
    const written = vi.spyOn(client.redis.stream, 'write');
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    relay.set('black hole');
    let message = '';
    const reading = getFaultMessage(grants.read('a')).then((text) => (message = text));
    while (written.mock.calls.length === 0) await setImmediate();
    vi.advanceTimersByTime(LONG_TIMEOUT - 1);
    await setImmediate();
    expect(message).toBe('');
    vi.advanceTimersByTime(1);
    expect(await reading).toMatch(/did not respond in time/);
    vi.advanceTimersByTime(3 * LONG_TIMEOUT);
    vi.useRealTimers();
    // Without a connection commands fail at once.
    await retryUntilSuccess(async () => expect(await getFaultMessage(grants.read('a'))).toMatch(/connection is down/));
    relay.set('pass');
    await retryUntilSuccess(() => grants.read('a'));
  });

  test('S05 scripts are loaded again after the server has lost them', async () => {
    await grants.create('a', testGrant(), LATER);
    await client.execute((redis) => redis.script('FLUSH'));
    expect((await grants.read('a'))?.record).toEqual(testGrant());
  });

  test('a record of a newer format is an error, not a missing record', async () => {
    await client.execute((redis) => redis.set('t:{a}:g', `v1 0 ${JSON.stringify({ v: 2, r: {} })}`));
    expect(await getFaultCode(grants.read('a'))).toBe('store_record_unreadable');
    expect(await grants.create('a', testGrant(), LATER)).toBe('taken');
  });

  test('a gatehouse key that is not a string is an error, not a missing record; other records are read', async () => {
    await grants.create('sound', testGrant(), LATER);
    await client.execute((redis) => redis.rpush('t:{list}:g', 'x'));
    await client.execute((redis) => redis.hset('t:{hash}:g', 'x', 'y'));
    const [list, hash, sound, none] = await Promise.all([
      getFaultCode(grants.read('list')),
      getFaultCode(grants.read('hash')),
      grants.read('sound'),
      grants.read('none'),
    ]);
    expect([list, hash]).toEqual(['store_record_unreadable', 'store_record_unreadable']);
    expect([sound?.record, none]).toEqual([testGrant(), undefined]);
    expect(await getFaultCode(grants.create('list', testGrant(), LATER))).toBe('store_unavailable');
  });

  test('the server removes a record at its expiry', async () => {
    await grants.create('a', testGrant(), LATER);
    const ttl = await client.execute((redis) => redis.pttl('t:{a}:g'));
    expect(Math.abs(ttl - 3_600_000)).toBeLessThan(120_000);
  });
});

describe('when Redis itself fails', () => {
  test('S03 while the server hangs every command fails, and none is queued', async () => {
    const server = await startRedis();
    const { client, grants } = await connectGrants(server.url);
    try {
      await grants.create('a', testGrant(), LATER);
      server.pause();
      const codes = await Promise.all(Array.from({ length: 500 }, () => getFaultCode(grants.read('a'))));
      expect(new Set(codes)).toEqual(new Set(['store_unavailable']));
      await retryUntilSuccess(async () =>
        expect(await getFaultMessage(grants.read('a'))).toMatch(/connection is down/),
      );
      server.resume();
      await retryUntilSuccess(() => grants.read('a'));
    } finally {
      client.close();
      await server.stop();
    }
  });

  test('a reply that arrived in time is read, however long the event loop was blocked meanwhile', async () => {
    const server = await startRedis();
    const { client, grants } = await connectGrants(server.url);
    try {
      await grants.create('a', testGrant(), LATER);
      const { stream } = client.redis;
      const write = stream.write.bind(stream);
      const blocked = vi.spyOn(stream, 'write').mockImplementationOnce((...written) => {
        const done = write(...written);
        for (const end = performance.now() + 2 * TIMEOUT; performance.now() < end; );
        return done;
      });
      expect((await grants.read('a'))?.record).toEqual(testGrant());
      expect(blocked).toHaveBeenCalled();
    } finally {
      client.close();
      await server.stop();
    }
  });

  test('S04 a client whose connection was discarded opens a new one', async () => {
    const server = await startRedis();
    const { client, grants } = await connectGrants(server.url);
    try {
      await grants.create('a', testGrant(), LATER);
      // As the library does when it learns of a failover while it connects.
      client.redis.disconnect();
      await retryUntilSuccess(() => grants.read('a'));
      client.close();
      await retryUntilSuccess(async () => expect(client.redis.status).toBe('end'));
      expect(await getFaultCode(grants.read('a'))).toBe('store_unavailable');
    } finally {
      client.close();
      await server.stop();
    }
  });

  test('S06 a full server refuses new records; existing ones are read', async () => {
    const server = await startRedis(['--maxmemory-policy', 'noeviction']);
    const { client, grants } = await connectGrants(server.url);
    try {
      await grants.create('a', testGrant(), LATER);
      await client.execute((redis) => redis.config('SET', 'maxmemory', '1'));
      expect(await getFaultCode(grants.create('b', testGrant(), LATER))).toBe('store_full');
      expect((await grants.read('a'))?.record).toEqual(testGrant());
    } finally {
      client.close();
      await server.stop();
    }
  });

  test('S07 a server without its primary, without replicas or read-only is unavailable, and the error names the reason', async () => {
    const server = await startRedis(['--replica-serve-stale-data', 'no']);
    const { client, grants } = await connectGrants(server.url);
    try {
      await grants.create('a', testGrant(), LATER);
      await client.execute((redis) => redis.config('SET', 'min-replicas-to-write', '1'));
      expect(await getFaultMessage(grants.create('b', testGrant(), LATER))).toMatch(/too few replicas/);
      await client.execute((redis) => redis.config('SET', 'min-replicas-to-write', '0'));
      // Port 1 refuses connections, so this is a replica that has lost its primary.
      await client.execute((redis) => redis.replicaof('127.0.0.1', 1));
      expect(await getFaultMessage(grants.read('a'))).toMatch(/primary is down/);
      expect(await getFaultCode(grants.read('nobody'))).toBe('store_unavailable');
      await client.execute((redis) => redis.config('SET', 'replica-serve-stale-data', 'yes'));
      expect(await getFaultCode(grants.create('c', testGrant(), LATER))).toBe('store_unavailable');
      await retryUntilSuccess(() => client.execute((redis) => redis.replicaof('NO', 'ONE')));
      expect(await grants.create('c', testGrant(), LATER)).toBe('created');
    } finally {
      client.close();
      await server.stop();
    }
  });

  test('S01 an unreachable server or a wrong password is reported clearly and without the password', async () => {
    expect(await getFaultMessage(connectGrants('redis://127.0.0.1:1'))).toMatch(/connection refused/);
    const server = await startRedis(['--requirepass', 'right-horse']);
    try {
      const { client } = await connectGrants(`redis://:right-horse@127.0.0.1:${server.port}`);
      client.close();
      const refused = await connectGrants(`redis://:wrong-horse@127.0.0.1:${server.port}`).catch(
        (error: unknown) => error,
      );
      expect((refused as Fault).message).toMatch(/rejected the user name or password/);
      expect(
        JSON.stringify(refused, Object.getOwnPropertyNames(refused)) + String((refused as Fault).cause),
      ).not.toMatch(/horse/);
    } finally {
      await server.stop();
    }
  });
});
