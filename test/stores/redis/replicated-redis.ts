import { Redis } from 'ioredis';
import { expect, onTestFinished } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { until } from '../../support/serve-process.ts';
import { testGrant } from '../../support/store-fixtures.ts';

export const later = Math.floor(Date.now() / 1_000) + 3_600;

export interface ReplicatedRedis {
  readonly primary: RedisServer;
  readonly replica: RedisServer;
  /** The connection between the two. */
  readonly relay: FaultyRelay;
  readonly atPrimary: Redis;
  readonly atReplica: Redis;
}

/** Starts a primary and waits until it lists its replica as online, which is later than `master_link_status:up`. */
export async function startReplicatedRedis(): Promise<ReplicatedRedis> {
  const primary = await startRedis(['--repl-ping-replica-period', '1', '--repl-diskless-sync-delay', '0']);
  onTestFinished(() => primary.stop());
  const relay = await startFaultyRelay(primary.port);
  onTestFinished(() => relay.close());
  const replica = await startRedis(['--replicaof', '127.0.0.1', String(relay.port)]);
  onTestFinished(() => replica.stop());
  const connectTo = (port: number): Redis => {
    const redis = new Redis(port, '127.0.0.1', { retryStrategy: () => null }).on('error', () => {});
    onTestFinished(() => redis.disconnect());
    return redis;
  };
  const [atPrimary, atReplica] = [connectTo(primary.port), connectTo(replica.port)];
  await until('the replica is online', async () => /state=online/.test(await atPrimary.info('replication')), 30);
  return { primary, replica, relay, atPrimary, atReplica };
}

/** Timeouts are long; `endWaits` ends a WAIT where a test needs an unconfirmed write. */
export async function openReplicated(url: string, changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> {
  const store = await openRedisStore({
    authenticator: testAuthenticator(),
    url,
    maxStaleness: 60,
    ack: 'reachable',
    replicas: 1,
    commandTimeout: 20_000,
    ...changes,
  });
  onTestFinished(() => store.close());
  return store;
}

/** Ends every pending WAIT on this server, as if its timeout had passed. */
export async function endWaits(redis: Redis): Promise<void> {
  const clients = String(await redis.client('LIST')).split('\n');
  for (const client of clients.filter((line) => / cmd=wait(?: |$)/.test(line)))
    await redis.client('UNBLOCK', Number(/\bid=(\d+)/.exec(client)?.[1]));
}

export const revoke = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: later,
  });

/** Eight writers, then a partition, then the replica is promoted and the old primary killed. */
export async function partitionAndPromote(): Promise<void> {
  const { primary, relay, atPrimary, atReplica } = await startReplicatedRedis();
  const store = await openReplicated(primary.url);
  const grants: string[] = [];
  const revoked: string[] = [];
  let refused = 0;
  let isRunning = true;
  const writing = Array.from({ length: 8 }, async () => {
    for (;;) {
      if (!isRunning) return;
      const id = randomGrantId();
      try {
        if ((await store.grants.create(id, testGrant({ id }), later)) === 'created') grants.push(id);
        await revoke(store, id);
        revoked.push(id);
      } catch {
        refused += 1;
      }
    }
  });
  await until('50 acknowledged revocations', () => revoked.length > 50, 30);
  relay.set('black hole');
  await until(
    '20 unconfirmed writes',
    async () => {
      await endWaits(atPrimary);
      return refused > 20;
    },
    30,
  );
  await atReplica.replicaof('NO', 'ONE');
  await primary.kill();
  isRunning = false;
  await Promise.all(writing);
  const exists = await Promise.all(grants.map((id) => atReplica.exists(`gh:{${id}}:g`)));
  expect(exists.filter((count) => count === 0)).toEqual([]);
  const scores = await Promise.all(revoked.map((id) => atReplica.zscore('{gh}:rev', `g:${id}`)));
  expect(scores.filter((score) => score === null)).toEqual([]);
}
