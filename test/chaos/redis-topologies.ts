import { expect, onTestFinished, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { startRedisSentinels } from '../support/redis-sentinels.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../support/redis-server.ts';
import { createResharding } from '../support/resharding.ts';
import { createAcknowledgedWrites } from './acknowledged-writes.ts';
import { startFleet } from './fleet.ts';
import { randomFrom, SEED, withRetryWindow } from './support.ts';

export interface TopologyChanges {
  readonly rounds: number;
  readonly clients: number;
  /** Operations that are acknowledged before and after each change, while the clients work. */
  readonly operations: number;
}

/** Every second round the primary is killed first. */
export function testSentinelFailovers({ rounds, clients, operations }: TopologyChanges): void {
  test(`S08 ${rounds} failovers by Sentinels, \`durability: replicated\`: no acknowledged write is lost, no restart is needed`, async () => {
    const servers = new Map<number, RedisServer>();
    onTestFinished(async () => {
      for (const server of servers.values()) await server.stop();
    });
    const start = async (settings: readonly string[], port?: number): Promise<RedisServer> => {
      const server = await startRedis(['--repl-diskless-sync-delay', '0', ...settings], {
        ...(port !== undefined && { port }),
      });
      servers.set(server.port, server);
      return server;
    };
    let primary = await start([]);
    const replicate = (from: RedisServer): string[] => ['--replicaof', '127.0.0.1', String(from.port)];
    await start(replicate(primary));
    await start(replicate(primary));
    const sentinels = await startRedisSentinels(primary, { replicas: 2 });
    onTestFinished(() => sentinels.stop());
    await sentinels.untilReplicas(2);
    const fleet = await startFleet({
      redis: primary.port,
      url: sentinels.url,
      size: 2,
      // Sentinels may promote either replica.
      store: { maxStaleness: '60s', durability: 'replicated', replicas: 2 },
      change: withRetryWindow,
    });
    onTestFinished(() => fleet.close());

    const writes = createAcknowledgedWrites(fleet, { clients, random: randomFrom(SEED) });
    let kills = 0;
    for (let round = 0; round < rounds; round += 1) {
      const states = await writes.during(async () => {
        await writes.untilMore(operations);
        const before = primary;
        const isKilled = round % 2 === 1;
        if (isKilled) await before.kill();
        const port = await sentinels.failover();
        primary = servers.get(port) as RedisServer;
        if (isKilled) {
          kills += 1;
          await before.stop();
          await start(replicate(primary), before.port);
        }
        await writes.untilMore(operations);
      });
      await sentinels.untilReplicas(2);
      await fleet.allReady();
      await writes.check(states, `round ${round}`);
    }
    await writes.checkRevoked();
    recordFigures('sentinel-failovers', {
      seed: SEED,
      failovers: rounds,
      'of these after a kill of the primary': kills,
      ...writes.describe(),
    });
  }, 1_800_000);
}

/** Each round moves slots with redis-cli from the node that owns the slot of the revocations to another one. */
export function testReshardings({ rounds, clients, operations }: TopologyChanges): void {
  test(`S08 ${rounds} reshardings of a Cluster: no acknowledged write is lost, no restart is needed`, async () => {
    const cluster = await startRedisCluster();
    onTestFinished(() => cluster.stop());
    const [first] = cluster.nodes as [RedisServer];
    const fleet = await startFleet({
      redis: first.port,
      url: cluster.url,
      size: 2,
      store: { maxStaleness: '60s' },
      change: withRetryWindow,
    });
    onTestFinished(() => fleet.close());
    const resharding = await createResharding(cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port })));
    onTestFinished(() => resharding.close());

    const writes = createAcknowledgedWrites(fleet, { clients, random: randomFrom(SEED) });
    let movedSlots = 0;
    for (let round = 0; round < rounds; round += 1) {
      const states = await writes.during(async () => {
        await writes.untilMore(operations);
        movedSlots += await resharding.move(round);
        await writes.untilMore(operations);
      });
      await fleet.allReady();
      await writes.check(states, `round ${round}`);
    }
    await writes.checkRevoked();
    expect(movedSlots).toBeGreaterThan(0);
    recordFigures('reshardings', {
      seed: SEED,
      reshardings: rounds,
      'slots moved': movedSlots,
      ...writes.describe(),
    });
  }, 1_800_000);
}
