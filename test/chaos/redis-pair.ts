import { Redis } from 'ioredis';
import { type FaultyRelay, startFaultyRelay } from '../support/faulty-relay.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

interface Member {
  readonly server: RedisServer;
  /** The way by which the other one follows this one. */
  readonly relay: FaultyRelay;
  readonly admin: Redis;
}

/** A primary and its replica, with a way between them that can be cut; they change roles as often as told. */
export interface RedisPair {
  readonly primary: RedisServer;
  readonly replica: RedisServer;
  /** A connection to whoever is the primary now. */
  readonly admin: Redis;
  /** Nothing passes between the two from now on; both stay up. */
  partition(): void;
  /** The replica becomes the primary; callers of the old one are led to `ways`' new end in the same moment. */
  promote(relays: readonly FaultyRelay[]): Promise<void>;
  /** The old primary becomes a replica of the new one, and forgets what only it had. */
  rejoin(): Promise<void>;
  close(): Promise<void>;
}

const SETTINGS = [
  '--repl-ping-replica-period',
  '1',
  '--repl-diskless-sync',
  'yes',
  '--repl-diskless-sync-delay',
  '0',
];

async function member(): Promise<Member> {
  const server = await startRedis(SETTINGS);
  const relay = await startFaultyRelay(server.port);
  const admin = new Redis(server.port, { commandTimeout: 10_000 });
  admin.on('error', () => {});
  return { server, relay, admin };
}

async function isFollowing(primary: Member, replica: Member): Promise<void> {
  primary.relay.set('pass');
  await replica.admin.replicaof('127.0.0.1', primary.relay.port);
  await until(
    'the replica follows its primary',
    async () => (await replica.admin.info('replication')).includes('master_link_status:up'),
    30,
  );
  await until(
    'the primary knows that',
    async () => {
      await primary.admin.incr('pair-check');
      return (await primary.admin.wait(1, 200)) === 1;
    },
    30,
  );
}

export async function redisPair(): Promise<RedisPair> {
  let [primary, replica] = await Promise.all([member(), member()]);
  await isFollowing(primary, replica);
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
    rejoin: () => isFollowing(primary, replica),
    async close() {
      for (const { server, relay, admin } of [primary, replica]) {
        admin.disconnect();
        await relay.close();
        await server.stop();
      }
    },
  };
}
