import { Redis } from 'ioredis';
import { type FaultyRelay, startFaultyRelay } from '../support/faulty-relay.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

interface Member {
  readonly server: RedisServer;
  /** The relay through which the other server replicates from this one. */
  readonly relay: FaultyRelay;
  readonly admin: Redis;
}

/** A primary and its replica with a relay between them that can be interrupted; they can swap roles. */
export interface RedisPair {
  readonly primary: RedisServer;
  readonly replica: RedisServer;
  /** A connection to the current primary. */
  readonly admin: Redis;
  /** Stops all traffic between the two; both stay up. */
  partition(): void;
  /** Makes the replica the primary, and redirects the relays of the clients to it at the same time. */
  promote(relays: readonly FaultyRelay[]): Promise<void>;
  /** Makes the old primary a replica of the new one, which discards its own unreplicated writes. */
  rejoin(): Promise<void>;
  close(): Promise<void>;
}

const SETTINGS = ['--repl-ping-replica-period', '1', '--repl-diskless-sync', 'yes', '--repl-diskless-sync-delay', '0'];

async function startMember(): Promise<Member> {
  const server = await startRedis(SETTINGS);
  const relay = await startFaultyRelay(server.port);
  const admin = new Redis(server.port, { commandTimeout: 10_000 });
  admin.on('error', () => {});
  return { server, relay, admin };
}

async function startReplication(primary: Member, replica: Member): Promise<void> {
  primary.relay.set('pass');
  await replica.admin.replicaof('127.0.0.1', primary.relay.port);
  await until(
    'the replica follows its primary',
    async () => (await replica.admin.info('replication')).includes('master_link_status:up'),
    30,
  );
  await until(
    'the primary has an acknowledging replica',
    async () => {
      await primary.admin.incr('pair-check');
      return (await primary.admin.wait(1, 200)) === 1;
    },
    30,
  );
}

export async function startRedisPair(): Promise<RedisPair> {
  let [primary, replica] = await Promise.all([startMember(), startMember()]);
  await startReplication(primary, replica);
  return {
    get primary() {
      return primary.server;
    },
    get replica() {
      return replica.server;
    },
    get admin() {
      return primary.admin;
    },
    partition: () => primary.relay.set('black hole'),
    async promote(relays) {
      await replica.admin.replicaof('NO', 'ONE');
      for (const relay of relays) relay.redirect(replica.server.port);
      [primary, replica] = [replica, primary];
    },
    rejoin: () => startReplication(primary, replica),
    async close() {
      for (const { server, relay, admin } of [primary, replica]) {
        admin.disconnect();
        await relay.close();
        await server.stop();
      }
    },
  };
}
