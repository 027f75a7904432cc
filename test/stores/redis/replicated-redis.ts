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
  /** The network between the two. */
  readonly relay: FaultyRelay;
  readonly atPrimary: Redis;
  readonly atReplica: Redis;
}

/** A primary that counts its replica as online. `master_link_status:up` on the replica alone comes before that. */
export async function replicatedRedis(): Promise<ReplicatedRedis> {
  const primary = await startRedis(['--repl-ping-replica-period', '1', '--repl-diskless-sync-delay', '0']);
  onTestFinished(() => primary.stop());
  const relay = await startFaultyRelay(primary.port);
  onTestFinished(() => relay.close());
  const replica = await startRedis(['--replicaof', '127.0.0.1', String(relay.port)]);
  onTestFinished(() => replica.stop());
  const at = (port: number): Redis => {
    const redis = new Redis(port, '127.0.0.1', { retryStrategy: () => null }).on('error', () => {});
    onTestFinished(() => redis.disconnect());
    return redis;
  };
  const [atPrimary, atReplica] = [at(primary.port), at(replica.port)];
  await until(
    'the primary knows its replica',
    async () => /state=online/.test(await atPrimary.info('replication')),
    30,
  );
  return { primary, replica, relay, atPrimary, atReplica };
}

/** Time-outs are generous: `endWaits` ends a WAIT where a test needs one to end unconfirmed. */
export async function openReplicated(
  url: string,
  changes: Partial<RedisStoreOptions> = {},
): Promise<RedisStore> {
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

/** Ends every WAIT that blocks at this server, as if its time-out had passed. */
export async function endWaits(redis: Redis): Promise<void> {
  const clients = String(await redis.client('LIST')).split('\n');
  for (const client of clients.filter((line) => / cmd=wait(?: |$)/.test(line)))
    await redis.client('UNBLOCK', Number(/\bid=(\d+)/.exec(client)?.[1]));
}

export const end = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: later,
  });

/** Eight writers, then a partition, then the replica is promoted and the old primary killed. */
export async function partitionAndPromote(): Promise<void> {
  const { primary, relay, atPrimary, atReplica } = await replicatedRedis();
  const store = await openReplicated(primary.url);
  const grants: string[] = [];
  const revoked: string[] = [];
  let refused = 0;
  let going = true;
  const writing = Array.from({ length: 8 }, async () => {
    for (;;) {
      if (!going) return;
      const id = randomGrantId();
      try {
        if ((await store.grants.create(id, testGrant({ id }), later)) === 'created') grants.push(id);
        await end(store, id);
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
  going = false;
  await Promise.all(writing);
  const isThere = await Promise.all(grants.map((id) => atReplica.exists(`gh:{${id}}:g`)));
  expect(isThere.filter((there) => there === 0)).toEqual([]);
  const scores = await Promise.all(revoked.map((id) => atReplica.zscore('{gh}:rev', `g:${id}`)));
  expect(scores.filter((score) => score === null)).toEqual([]);
}
