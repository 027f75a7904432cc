import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import type { TokenGrant } from '../support/test-gateway.ts';
import { type Fleet, isTemporary, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';
import { type CommandCount, commandCount, totalOf } from './redis-commands.ts';
import { createCloser, percentile, pick, randomFrom, report, runConcurrently } from './report.ts';

/** Several processes on one Redis that keeps its data on disk. The tests follow each other. */
export interface Replicas {
  readonly size: number;
  readonly seed: number;
  readonly grants: number;
  readonly refreshes: number;
  readonly revocations: number;
  readonly outage: {
    /** At least. */
    readonly seconds: number;
    readonly calls: number;
    /** Calls per second. */
    readonly rate: number;
  };
}

/** Far beyond what a revocation takes, on a machine however busy. */
const EFFECT_MS = 60_000;

export function testReplicas({
  size,
  seed,
  grants: grantCount,
  refreshes,
  revocations,
  outage,
}: Replicas): void {
  const random = randomFrom(seed);
  let kept: readonly string[];

  let server: RedisServer;
  let fleet: Fleet;
  let commands: CommandCount;
  /** Access tokens whose revocation was acknowledged. */
  const ended: string[] = [];

  const opened = createCloser();
  beforeAll(async () => {
    const data = mkdtempSync(join(tmpdir(), 'gatehouse-chaos-data-'));
    opened.add(() => rmSync(data, { recursive: true, force: true }));
    kept = ['--dir', data, '--appendonly', 'yes'];
    server = await startRedis(kept);
    opened.add(() => server.stop());
    commands = commandCount();
    fleet = await startFleet({
      redis: server.port,
      size,
      store: { maxStaleness: '60s' },
      // Each way numbers its connections for itself.
      tap: (replica) => (bytes, connection) => commands.tap(bytes, connection * 10 + replica),
    });
    opened.add(() => fleet.close());
  }, 180_000);
  afterAll(() => opened.closeAll());

  /** Another Redis in its place, on a port of its own. */
  const replaceRedis = async (settings: readonly string[]): Promise<void> => {
    await server.stop();
    server = await startRedis(settings);
    for (const { relay } of fleet.replicas) relay.redirect(server.port);
  };
  const anyReplica = (): Replica => pick(random, fleet.replicas);
  const someGrants = async (many: number): Promise<readonly TokenGrant[]> => {
    const grants: TokenGrant[] = [];
    await runConcurrently(Array.from({ length: many }), 12, async () => {
      grants.push(await anyReplica().caller.grant());
    });
    return grants;
  };
  const statuses = (token: string): Promise<readonly number[]> =>
    Promise.all(fleet.replicas.map((replica) => replica.caller.call(token)));
  const acceptedAgain = async (tokens: readonly string[]): Promise<readonly string[]> => {
    const accepted: string[] = [];
    await runConcurrently(tokens, 24, async (token) => {
      if ((await statuses(token)).includes(200)) accepted.push(token);
    });
    return accepted;
  };

  const asking = async <T>(port: number, ask: (redis: Redis) => Promise<T>): Promise<T> => {
    const redis = new Redis(port);
    try {
      return await ask(redis);
    } finally {
      redis.disconnect();
    }
  };
  /** As in their records. */
  const generationsOf = (grants: readonly TokenGrant[]): Promise<readonly number[]> =>
    asking(server.port, async (redis) => {
      const keys = grants.map(({ refresh_token: token }) => `gh:{${token.split('.')[1]}}:g`);
      const records = await redis.mget(keys);
      return records.map((record) => Number(/"generation":(\d+)/.exec(record ?? '')?.[1]));
    });

  test(`R05 ${grantCount} grants × ${refreshes} concurrent refreshes over ${size} processes: one rotation each, the same tokens in every response`, async () => {
    const grants = await someGrants(grantCount);
    const began = performance.now();
    const wrong: string[] = [];
    await runConcurrently(grants, 3, async ({ refresh_token: token }) => {
      const replies = await Promise.all(
        Array.from({ length: refreshes }, (_, index) =>
          retryWhileTemporary(() => (fleet.replicas[index % size] as Replica).caller.refresh(token)),
        ),
      );
      const bad = replies.find(({ status }) => status !== 200);
      if (bad !== undefined) wrong.push(`${bad.status} ${JSON.stringify(bad.json)}`);
      for (const name of ['refresh_token', 'access_token'])
        if (new Set(replies.map(({ json }) => json[name])).size !== 1) wrong.push(`more than one ${name}`);
    });
    const seconds = (performance.now() - began) / 1_000;
    expect(wrong).toEqual([]);
    const generations = await generationsOf(grants);
    expect(new Set(generations)).toEqual(new Set([2]));
    // A rotation whose Redis reply was lost is not in the log; there are never two.
    expect(fleet.audits('grant_refreshed')).toBeLessThanOrEqual(grantCount);
    expect(fleet.audits('refresh_reuse')).toBe(0);
    report('concurrent-refreshes', {
      seed,
      grants: grantCount,
      'refreshes of each at once': refreshes,
      'rotations of each': [...new Set(generations)].map((generation) => generation - 1).join(' '),
      'grants with differing answers': wrong.length,
      'refreshes per second': Math.round((grantCount * refreshes) / seconds),
    });
  }, 2_700_000);

  test(`V06 ${revocations} revocations on any of ${size} processes: after the 200 none of them accepts the token`, async () => {
    const grants = await someGrants(revocations);
    const accepted: string[] = [];
    const effects: number[] = [];
    const responses: number[] = [];
    await runConcurrently(grants, 4, async ({ access_token: token }) => {
      const at = anyReplica();
      const sentAt = performance.now();
      let answeredAt = Number.POSITIVE_INFINITY;
      const revoking = retryWhileTemporary(() => at.caller.revoke(token)).then((response) => {
        answeredAt = performance.now();
        return response;
      });
      const polling = fleet.replicas.map(async ({ name, caller }) => {
        const until = sentAt + EFFECT_MS;
        while (performance.now() < until) {
          const askedAt = performance.now();
          const status = await caller.call(token);
          if (status === 401) return performance.now() - sentAt;
          if (status !== 200) throw new Error(`neither yes nor no: ${status}`);
          await pause(1);
          if (askedAt > answeredAt)
            accepted.push(`replica ${name}, ${askedAt - answeredAt} ms after the answer`);
        }
        throw new Error(`replica ${name} still accepts it ${EFFECT_MS} ms after it was revoked`);
      });
      expect((await revoking).status).toBe(200);
      ended.push(token);
      responses.push(answeredAt - sentAt);
      for (const status of await statuses(token))
        if (status !== 401) accepted.push(`${status} after the answer`);
      effects.push(Math.max(...(await Promise.all(polling))));
    });
    expect(accepted).toEqual([]);
    const sorted = effects.toSorted((a, b) => a - b);
    const responded = responses.toSorted((a, b) => a - b);
    report('revocations', {
      seed,
      revocations,
      'accepted after the answer': accepted.length,
      'refused by all after, p50 ms': percentile(sorted, 0.5).toFixed(1),
      'refused by all after, p99 ms': percentile(sorted, 0.99).toFixed(1),
      'answered after, p50 ms': percentile(responded, 0.5).toFixed(1),
      'answered after, p99 ms': percentile(responded, 0.99).toFixed(1),
    });
  }, 2_700_000);

  interface Load {
    readonly sent: () => number;
    readonly failures: Map<number | string, number>;
    stop(): Promise<void>;
  }

  /** Calls through the proxy at a steady rate, whatever the responses are; at most so many wait at once. */
  function startSteadyCalls(tokens: readonly string[], rate: number): Load {
    const failures = new Map<number | string, number>();
    const waiting = new Set<Promise<void>>();
    const began = performance.now();
    let requestCount = 0;
    const one = async (): Promise<void> => {
      const status = await anyReplica()
        .caller.call(pick(random, tokens))
        .catch((error: Error) => error.message);
      if (status !== 200) failures.set(status, (failures.get(status) ?? 0) + 1);
    };
    const timer = setInterval(() => {
      const due = ((performance.now() - began) / 1_000) * rate;
      for (; requestCount < due && waiting.size < 500; requestCount += 1) {
        const call = one().finally(() => waiting.delete(call));
        waiting.add(call);
      }
    }, 5);
    return {
      sent: () => requestCount,
      failures,
      async stop() {
        clearInterval(timer);
        await Promise.all(waiting);
      },
    };
  }

  test(`S02 Redis down, ${outage.calls} calls and more: no validation fails, none sends a command to Redis, and the replicas recover by themselves`, async () => {
    const grants = await someGrants(30);
    const tokens = grants.slice(0, 20).map(({ access_token: token }) => token);
    const spare = grants.slice(20);
    await fleet.allReady();
    // Warm: each replica has seen each token.
    for (const token of tokens) expect(new Set(await statuses(token))).toEqual(new Set([200]));

    commands.taken();
    const before = startSteadyCalls(tokens, outage.rate);
    await until('there is load', () => before.sent() >= outage.calls, 120);
    await before.stop();
    const busy = commands.taken();
    expect(before.failures).toEqual(new Map());
    // No grant is read. What is left are beats, marks and the reading of the log, which go on with or without requests.
    const upkeep = /^gatehouse-(?:control|reader) |^gatehouse-records EVALSHA serving$/;
    expect([...busy.keys()].filter((name) => !upkeep.test(name))).toEqual([]);
    expect(totalOf(busy)).toBeLessThan(before.sent());

    await server.kill();
    const diedAt = performance.now();
    const during = startSteadyCalls(tokens, outage.rate);
    const wrongResponses: string[] = [];
    const denied: string[] = [];
    let refused = 0;
    const isOver = (turn: number): boolean =>
      turn >= 6 && during.sent() >= outage.calls && performance.now() - diedAt >= outage.seconds * 1_000;
    for (let attempt = 0; !isOver(attempt); attempt += 1) {
      const grant = spare[attempt % spare.length] as TokenGrant;
      const { caller } = fleet.replicas[attempt % size] as Replica;
      const [refresh, made] = [
        await caller.refresh(grant.refresh_token),
        await caller.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }),
      ];
      for (const response of [refresh, made])
        if (!isTemporary(response))
          wrongResponses.push(`${response.status} ${JSON.stringify(response.json)}`);
      refused += 2;
      if (attempt < 5) {
        const response = await caller.revoke(grant.access_token);
        if (response.status !== 503 || !isTemporary(response))
          wrongResponses.push(`revocation: ${response.status}`);
        // Rejected on this replica at once, though it cannot be announced yet.
        if ((await caller.call(grant.access_token)) !== 401)
          wrongResponses.push('accepted where it was revoked');
        denied.push(grant.access_token);
        refused += 1;
      }
      if (outage.seconds > 0) await pause(500);
    }
    await during.stop();
    const seconds = (performance.now() - diedAt) / 1_000;
    const dead = commands.taken();
    expect(during.failures).toEqual(new Map());
    expect(wrongResponses).toEqual([]);

    await replaceRedis(kept);
    const backAt = performance.now();
    await fleet.allReady();
    const recovered = performance.now() - backAt;
    await until(
      'grants are issued and refreshed again',
      async () => {
        const { caller } = anyReplica();
        const { refresh_token: token } = await caller.grant();
        return (await caller.refresh(token)).status === 200;
      },
      60,
    );
    // The revocations that could not be announced are announced by now, everywhere.
    await until(
      'tokens revoked meanwhile are rejected everywhere',
      async () => (await Promise.all(denied.map(statuses))).flat().every((status) => status === 401),
      60,
    );
    // Grants made before the outage go on, and no client was punished.
    for (const { refresh_token: token } of grants.slice(0, 20))
      expect((await retryWhileTemporary(() => anyReplica().caller.refresh(token))).status).toBe(200);
    expect(await acceptedAgain(ended.slice(-200))).toEqual([]);
    report('outage', {
      'seconds without Redis': Math.round(seconds),
      'requests a second': Math.round(during.sent() / seconds),
      requests: during.sent(),
      'failed validations': [...during.failures.values()].reduce((sum, one) => sum + one, 0),
      'commands to Redis before that': totalOf(busy),
      'requests before that': before.sent(),
      'commands tried while it was dead': totalOf(dead),
      'grants, refreshes and revocations rejected as temporary': refused,
      'ready again after, ms': Math.round(recovered),
    });
  }, 300_000);

  const entriesIn = (port: number): Promise<number> => asking(port, (redis) => redis.zcard('{gh}:rev'));

  test('V09 a flushed Redis, and an empty one in its place: no revoked token is accepted again, not even by a replica that starts then', async () => {
    const live = (await someGrants(5)).map(({ access_token: token }) => token);
    const known = await entriesIn(server.port);
    expect(known).toBeGreaterThanOrEqual(ended.length);
    const sample = ended.toSorted(() => random() - 0.5).slice(0, 300);
    const losses: [string, () => Promise<unknown>][] = [
      ['flushed', () => asking(server.port, (redis) => redis.flushall())],
      ['replaced', () => replaceRedis([])],
    ];
    for (const [how, lose] of losses) {
      const [restarted] = fleet.replicas as readonly [Replica];
      await lose();
      await until(
        `all revocations are put back (${how})`,
        async () => {
          expect(await acceptedAgain(sample.slice(0, 50)), how).toEqual([]);
          return (await entriesIn(server.port)) >= known;
        },
        60,
      );
      expect(await acceptedAgain(sample), how).toEqual([]);
      await restarted.kill();
      await restarted.start();
      expect(await acceptedAgain(sample), how).toEqual([]);
      // The other replicas knew all revocations: valid tokens stay valid, also on the replica that has just started.
      await until(
        'valid tokens are accepted',
        async () => (await Promise.all(live.map(statuses))).flat().every((status) => status === 200),
        60,
      );
    }
    report('emptied-redis', { revocations: known, 'looked at': sample.length * 2, 'accepted again': 0 });
  }, 300_000);

  test('V09 an empty Redis with no informed replica left: every earlier token is rejected', async () => {
    const live = (await someGrants(5)).map(({ access_token: token }) => token);
    await Promise.all(fleet.replicas.map((replica) => replica.kill()));
    await replaceRedis([]);
    await Promise.all(fleet.replicas.map((replica) => replica.start()));
    expect(await acceptedAgain([...ended.slice(0, 200), ...live])).toEqual([]);
    await until(
      'a new grant is accepted everywhere',
      async () =>
        (await statuses((await anyReplica().caller.grant()).access_token)).every((status) => status === 200),
      60,
    );
  }, 120_000);
}
