import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isTemporary, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';
import { createCloser, pick, randomFrom } from './support.ts';

/** Seconds in which a lost response can be requested again. */
const WINDOW = 30;

export interface RedisKills {
  readonly kills: number;
  readonly clients: number;
  readonly seed: number;
  readonly size: number;
}

/** One client, which always presents the newest token it has received. */
interface Client {
  readonly home: Replica;
  /** After a lost response it waits for its replica to restart; the others use another replica at once. */
  readonly waits: boolean;
  token: string;
  refreshes: number;
  lost: number;
  /** Token presented → every token returned for it. */
  readonly successors: Map<string, Set<string>>;
}

export function testKillNineRedis({ kills, clients: clientCount, seed, size }: RedisKills): void {
  let server: RedisServer;
  let fleet: Fleet;
  const random = randomFrom(seed);
  /** Called with the bytes that a replica sends to Redis. */
  const onBytes = new Map<number, (bytes: Buffer) => void>();
  const closer = createCloser();
  beforeAll(async () => {
    server = await startRedis();
    closer.add(() => server.stop());
    fleet = await startFleet({
      redis: server.port,
      size,
      tap: (replica) => (bytes) => onBytes.get(replica)?.(bytes),
      change: (settings) => ({ ...settings, tokens: { refresh: { retryWindow: `${WINDOW}s` } } }),
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  test(`R13 kill -9 of one of ${size} replicas during a refresh, ${kills} times: no grant is lost, no token has two successors, and no retry is treated as reuse`, async () => {
    const refusals: string[] = [];
    const halt = new AbortController();
    const clients: Client[] = [];
    for (let index = 0; index < clientCount; index += 1) {
      const home = fleet.replicas[index % size] as Replica;
      const { refresh_token: token } = await home.caller.grant();
      clients.push({ home, waits: index % 2 === 0, token, refreshes: 0, lost: 0, successors: new Map() });
    }
    const chooseReplica = ({ home, waits }: Client): Replica => {
      const running = fleet.replicas.filter((replica) => replica.isUp);
      return waits || home.isUp || running.length === 0 ? home : pick(random, running);
    };
    const run = async (client: Client): Promise<void> => {
      while (!halt.signal.aborted) {
        const target = chooseReplica(client);
        const presented = client.token;
        if (!target.isUp) {
          await pause(5);
          continue;
        }
        const response = await target.caller.refresh(presented).catch(() => undefined);
        if (response === undefined) {
          client.lost += 1;
          continue;
        }
        if (isTemporary(response)) continue;
        if (response.status !== 200) {
          refusals.push(
            `${response.status} ${JSON.stringify(response.json)} by ${target.name}.${target.startCount}, ${client.waits ? 'after waiting' : 'at once'}`,
          );
          return;
        }
        const next = String(response.json['refresh_token']);
        client.successors.set(presented, (client.successors.get(presented) ?? new Set()).add(next));
        client.token = next;
        client.refreshes += 1;
        await pause(random() * 12);
      }
    };
    const running = clients.map(run);
    const countLost = (): number => clients.reduce((sum, client) => sum + client.lost, 0);
    /** Kills a replica when it has sent a refreshed grant to Redis, so that the grant is stored but the reply is lost. */
    const killDuringRefresh = (victim: Replica): Promise<void> =>
      new Promise((resolve, reject) => {
        onBytes.set(victim.name, (bytes) => {
          if (!bytes.includes('"generation":')) return;
          onBytes.delete(victim.name);
          victim.kill().then(resolve, reject);
        });
      });
    try {
      // Then Redis has cached the scripts, and the next write is a single command.
      await until('every client has refreshed', () => clients.every(({ refreshes }) => refreshes > 0), 60);
      for (let kill = 0; kill < kills; kill += 1) {
        const victim = pick(random, fleet.replicas);
        await killDuringRefresh(victim);
        const stopped = [victim];
        // An outage of all replicas does not count towards the retry window, so a later retry is still valid.
        if (kill % 40 === 9) {
          const others = fleet.replicas.filter((replica) => replica !== victim);
          await Promise.all(others.map((replica) => replica.kill()));
          stopped.push(...others);
          await pause(WINDOW * 1_000 + 200);
        }
        await Promise.all(stopped.map((replica) => replica.start()));
        const seen = new Map(clients.map((client) => [client, client.refreshes]));
        await until(
          `every client continues after kill ${kill + 1}`,
          () => refusals.length > 0 || clients.every((client) => client.refreshes > (seen.get(client) ?? 0)),
          60,
        );
        expect(refusals).toEqual([]);
        if (kill % 25 === 24) console.info(`${kill + 1} kills, no client refused`);
      }
    } finally {
      halt.abort();
      await Promise.all(running);
    }
    expect(refusals).toEqual([]);
    const forked = clients.flatMap(({ successors }) => [...successors.values()]).filter((next) => next.size > 1);
    expect(forked).toEqual([]);
    // At each kill at least one refresh was stored but its response lost: its retry is in the audit log.
    expect(countLost()).toBeGreaterThanOrEqual(kills);
    const retriedCount = await until('the retries are logged', () => {
      const found = fleet.countAudits('refresh_retried');
      return found >= kills && found;
    });
    // Every grant is valid, and its newest token has one successor on all replicas.
    for (const { token } of clients) {
      const responses = await Promise.all(
        fleet.replicas.map((replica) => retryWhileTemporary(() => replica.caller.refresh(token))),
      );
      expect(new Set(responses.map(({ status }) => status))).toEqual(new Set([200]));
      expect(new Set(responses.map(({ json }) => json['refresh_token'])).size).toBe(1);
    }
    expect(fleet.countAudits('refresh_reuse')).toBe(0);
    recordFigures('kill-nine-redis', {
      seed,
      kills: kills,
      'refreshes acknowledged': clients.reduce((sum, client) => sum + client.refreshes, 0),
      'responses lost': countLost(),
      'of them already stored': retriedCount,
      'grants lost': 0,
      'tokens with two successors': forked.length,
      'retries treated as reuse': fleet.countAudits('refresh_reuse'),
    });
  }, 1_800_000);
}
