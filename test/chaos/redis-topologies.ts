import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { expect, onTestFinished, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { startRedisSentinels } from '../support/redis-sentinels.ts';
import { type RedisServer, startRedis, startRedisCluster } from '../support/redis-server.ts';
import { until } from '../support/until.ts';
import { createAcknowledgedWrites } from './acknowledged-writes.ts';
import { startFleet } from './fleet.ts';
import { randomFrom, SEED } from './support.ts';

const run = promisify(execFile);

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
    const admins = cluster.nodes.map(({ port }) => new Redis(port, '127.0.0.1'));
    onTestFinished(() => admins.forEach((admin) => admin.disconnect()));
    const ids = await Promise.all(admins.map((admin) => admin.cluster('MYID')));
    const [first] = cluster.nodes as [RedisServer];
    const fleet = await startFleet({
      redis: first.port,
      url: cluster.url,
      size: 2,
      store: { maxStaleness: '60s' },
    });
    onTestFinished(() => fleet.close());
    const slot = Number(await admins[0]?.cluster('KEYSLOT', '{gh}:rev'));

    interface SlotRange {
      readonly from: number;
      readonly to: number;
      readonly owner: string;
    }
    const readRanges = async (admin: Redis): Promise<readonly SlotRange[]> =>
      (await admin.cluster('SLOTS')).map(([from, to, node]) => ({ from, to, owner: node?.[2] ?? '' }));
    const countSlots = (ranges: readonly SlotRange[], id: string): number =>
      ranges.filter(({ owner }) => owner === id).reduce((sum, { from, to }) => sum + to - from + 1, 0);
    const findOwner = (ranges: readonly SlotRange[]): string =>
      ranges.find(({ from, to }) => from <= slot && slot <= to)?.owner ?? '';
    /** Moves the slots of the owner of the revocations. Returns their number. */
    const reshard = async (round: number): Promise<number> => {
      const ranges = await readRanges(admins[0] as Redis);
      const from = findOwner(ranges);
      const to = ids.filter((id) => id !== from)[round % 2] as string;
      // A node without slots would become a replica.
      const slots = countSlots(ranges, from) - 10;
      const target = `127.0.0.1:${first.port}`;
      const args = ['--cluster-from', from, '--cluster-to', to, '--cluster-slots', String(slots)];
      await run('redis-cli', ['--cluster', 'reshard', target, ...args, '--cluster-yes'], {
        maxBuffer: 64 * 1_024 * 1_024,
      }).catch((error: Error & { readonly stdout: string }) => {
        throw new Error(`redis-cli: ${error.stdout.slice(-500)}`);
      });
      await until('every node knows the new owner', async () =>
        (await Promise.all(admins.map(readRanges))).every((found) => findOwner(found) === to),
      );
      return slots;
    };

    const writes = createAcknowledgedWrites(fleet, { clients, random: randomFrom(SEED) });
    let movedSlots = 0;
    for (let round = 0; round < rounds; round += 1) {
      const states = await writes.during(async () => {
        await writes.untilMore(operations);
        movedSlots += await reshard(round);
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
