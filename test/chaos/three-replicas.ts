import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import type { TokenGrant } from '../support/test-gateway.ts';
import { type Fleet, isTemporary, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';
import { type CommandCounter, createCommandCounter, sumCounts } from './redis-commands.ts';
import { createCloser, percentile, pick, randomFrom, runConcurrently } from './support.ts';

/** Several processes on one Redis with persistence. The tests depend on their order. */
export interface Replicas {
  readonly size: number;
  readonly seed: number;
  readonly grants: number;
  readonly refreshes: number;
  readonly revocations: number;
  readonly outage: {
    /** Minimum duration. */
    readonly seconds: number;
    readonly calls: number;
    /** Calls per second. */
    readonly rate: number;
  };
}

/** Far longer than a revocation takes, even on a busy machine. */
const EFFECT_MS = 60_000;

export function testReplicas({ size, seed, grants: grantCount, refreshes, revocations, outage }: Replicas): void {
  const random = randomFrom(seed);
  let persistenceArgs: readonly string[];

  let server: RedisServer;
  let fleet: Fleet;
  let commands: CommandCounter;
  /** Access tokens whose revocation was acknowledged. */
  const revokedTokens: string[] = [];

  const closer = createCloser();
  beforeAll(async () => {
    const data = mkdtempSync(join(tmpdir(), 'gatehouse-chaos-data-'));
    closer.add(() => rmSync(data, { recursive: true, force: true }));
    persistenceArgs = ['--dir', data, '--appendonly', 'yes'];
    server = await startRedis(persistenceArgs);
    closer.add(() => server.stop());
    commands = createCommandCounter();
    fleet = await startFleet({
      redis: server.port,
      size,
      // Replicas must accept tokens during the whole outage.
      store: { maxStaleness: `${outage.seconds + 30}s` },
      // Each relay numbers its own connections.
      tap: (replica) => (bytes, connection) => commands.tap(bytes, connection * 10 + replica),
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  /** Replaces Redis with another server on another port. */
  const replaceRedis = async (settings: readonly string[]): Promise<void> => {
    await server.stop();
    server = await startRedis(settings);
    for (const { relay } of fleet.replicas) relay.redirect(server.port);
  };
  const pickReplica = (): Replica => pick(random, fleet.replicas);
  const createGrants = async (many: number): Promise<readonly TokenGrant[]> => {
    const grants: TokenGrant[] = [];
    await runConcurrently(Array.from({ length: many }), 12, async () => {
      grants.push(await pickReplica().caller.grant());
    });
    return grants;
  };
  const getStatuses = (token: string): Promise<readonly number[]> =>
    Promise.all(fleet.replicas.map((replica) => replica.caller.call(token)));
  const findAccepted = async (tokens: readonly string[]): Promise<readonly string[]> => {
    const accepted: string[] = [];
    await runConcurrently(tokens, 24, async (token) => {
      if ((await getStatuses(token)).includes(200)) accepted.push(token);
    });
    return accepted;
  };

  const withRedis = async <T>(port: number, run: (redis: Redis) => Promise<T>): Promise<T> => {
    const redis = new Redis(port);
    try {
      return await run(redis);
    } finally {
      redis.disconnect();
    }
  };
  /** The generations in the stored records. */
  const readGenerations = (grants: readonly TokenGrant[]): Promise<readonly number[]> =>
    withRedis(server.port, async (redis) => {
      const keys = grants.map(({ refresh_token: token }) => `gh:{${token.split('.')[1]}}:g`);
      const records = await redis.mget(keys);
      return records.map((record) => Number(/"generation":(\d+)/.exec(record ?? '')?.[1]));
    });

  test(`R05 ${grantCount} grants × ${refreshes} concurrent refreshes over ${size} processes: one rotation each, the same tokens in every response`, async () => {
    const grants = await createGrants(grantCount);
    const startedAt = performance.now();
    const problems: string[] = [];
    await runConcurrently(grants, 3, async ({ refresh_token: token }) => {
      const replies = await Promise.all(
        Array.from({ length: refreshes }, (_, index) =>
          retryWhileTemporary(() => (fleet.replicas[index % size] as Replica).caller.refresh(token)),
        ),
      );
      const failed = replies.find(({ status }) => status !== 200);
      if (failed !== undefined) problems.push(`${failed.status} ${JSON.stringify(failed.json)}`);
      for (const name of ['refresh_token', 'access_token'])
        if (new Set(replies.map(({ json }) => json[name])).size !== 1) problems.push(`more than one ${name}`);
    });
    const seconds = (performance.now() - startedAt) / 1_000;
    expect(problems).toEqual([]);
    const generations = await readGenerations(grants);
    expect(new Set(generations)).toEqual(new Set([2]));
    // A rotation whose Redis reply was lost is not logged; there are never two.
    expect(fleet.countAudits('grant_refreshed')).toBeLessThanOrEqual(grantCount);
    expect(fleet.countAudits('refresh_reuse')).toBe(0);
    recordFigures('concurrent-refreshes', {
      seed,
      replicas: size,
      grants: grantCount,
      'concurrent refreshes of each': refreshes,
      'rotations of each': [...new Set(generations)].map((generation) => generation - 1).join(' '),
      'grants with differing responses': problems.length,
      'refreshes per second': Math.round((grantCount * refreshes) / seconds),
    });
  }, 2_700_000);

  test(`V06 ${revocations} revocations on any of ${size} processes: after the 200 none of them accepts the token`, async () => {
    const grants = await createGrants(revocations);
    const accepted: string[] = [];
    const effects: number[] = [];
    const responses: number[] = [];
    await runConcurrently(grants, 4, async ({ access_token: token }) => {
      const replica = pickReplica();
      const sentAt = performance.now();
      let respondedAt = Number.POSITIVE_INFINITY;
      const revoking = retryWhileTemporary(() => replica.caller.revoke(token)).then((response) => {
        respondedAt = performance.now();
        return response;
      });
      const polling = fleet.replicas.map(async ({ name, caller }) => {
        const until = sentAt + EFFECT_MS;
        while (performance.now() < until) {
          const calledAt = performance.now();
          const status = await caller.call(token);
          if (status === 401) return performance.now() - sentAt;
          if (status !== 200) throw new Error(`unexpected status: ${status}`);
          await pause(1);
          if (calledAt > respondedAt) accepted.push(`replica ${name}, ${calledAt - respondedAt} ms after the response`);
        }
        throw new Error(`replica ${name} still accepts the token ${EFFECT_MS} ms after the revocation`);
      });
      expect((await revoking).status).toBe(200);
      revokedTokens.push(token);
      responses.push(respondedAt - sentAt);
      for (const status of await getStatuses(token)) if (status !== 401) accepted.push(`${status} after the response`);
      effects.push(Math.max(...(await Promise.all(polling))));
    });
    expect(accepted).toEqual([]);
    const sorted = effects.toSorted((a, b) => a - b);
    const responded = responses.toSorted((a, b) => a - b);
    recordFigures('revocations', {
      seed,
      replicas: size,
      revocations,
      'accepted after the response': accepted.length,
      'refused by all after, p50 ms': percentile(sorted, 0.5).toFixed(1),
      'refused by all after, p99 ms': percentile(sorted, 0.99).toFixed(1),
      'responded after, p50 ms': percentile(responded, 0.5).toFixed(1),
      'responded after, p99 ms': percentile(responded, 0.99).toFixed(1),
    });
  }, 2_700_000);

  interface Load {
    readonly sent: () => number;
    readonly failures: Map<number | string, number>;
    stop(): Promise<void>;
  }

  /** Sends requests through the proxy at a steady rate, whatever the responses are, with limited concurrency. */
  function startSteadyCalls(tokens: readonly string[], rate: number): Load {
    const failures = new Map<number | string, number>();
    const waiting = new Set<Promise<void>>();
    const startedAt = performance.now();
    let requestCount = 0;
    const sendOne = async (): Promise<void> => {
      const status = await pickReplica()
        .caller.call(pick(random, tokens))
        .catch((error: Error) => error.message);
      if (status !== 200) failures.set(status, (failures.get(status) ?? 0) + 1);
    };
    const timer = setInterval(() => {
      const due = ((performance.now() - startedAt) / 1_000) * rate;
      for (; requestCount < due && waiting.size < 500; requestCount += 1) {
        const call = sendOne().finally(() => waiting.delete(call));
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

  test(
    `S02 Redis down, at least ${outage.calls} calls: no validation fails, none sends a command to Redis, and the replicas recover on their own`,
    async () => {
      const grants = await createGrants(30);
      const tokens = grants.slice(0, 20).map(({ access_token: token }) => token);
      const spare = grants.slice(20);
      await fleet.allReady();
      // Each replica caches each token.
      for (const token of tokens) expect(new Set(await getStatuses(token))).toEqual(new Set([200]));

      commands.takeCounts();
      const before = startSteadyCalls(tokens, outage.rate);
      await until('enough calls were sent', () => before.sent() >= outage.calls, 120);
      await before.stop();
      const commandsUnderLoad = commands.takeCounts();
      expect(before.failures).toEqual(new Map());
      // No grant is read. Only heartbeats, serving notes and log reads remain, which are independent of requests.
      const upkeep = /^gatehouse-(?:control|reader) |^gatehouse-records EVALSHA serving$/;
      expect([...commandsUnderLoad.keys()].filter((name) => !upkeep.test(name))).toEqual([]);
      expect(sumCounts(commandsUnderLoad)).toBeLessThan(before.sent());

      await server.kill();
      const killedAt = performance.now();
      const during = startSteadyCalls(tokens, outage.rate);
      const wrongResponses: string[] = [];
      const deniedTokens: string[] = [];
      let refused = 0;
      const isOutageOver = (attempt: number): boolean =>
        attempt >= 6 && during.sent() >= outage.calls && performance.now() - killedAt >= outage.seconds * 1_000;
      for (let attempt = 0; !isOutageOver(attempt); attempt += 1) {
        const grant = spare[attempt % spare.length] as TokenGrant;
        const { caller } = fleet.replicas[attempt % size] as Replica;
        const [refresh, created] = [
          await caller.refresh(grant.refresh_token),
          await caller.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }),
        ];
        for (const response of [refresh, created])
          if (!isTemporary(response)) wrongResponses.push(`${response.status} ${JSON.stringify(response.json)}`);
        refused += 2;
        if (attempt < 5) {
          const response = await caller.revoke(grant.access_token);
          if (response.status !== 503 || !isTemporary(response)) wrongResponses.push(`revocation: ${response.status}`);
          // The token is rejected on this replica at once, although the revocation cannot be announced yet.
          if ((await caller.call(grant.access_token)) !== 401) wrongResponses.push('accepted by the revoking replica');
          deniedTokens.push(grant.access_token);
          refused += 1;
        }
        if (outage.seconds > 0) await pause(500);
      }
      await during.stop();
      const seconds = (performance.now() - killedAt) / 1_000;
      const commandsWhileDown = commands.takeCounts();
      expect(during.failures).toEqual(new Map());
      expect(wrongResponses).toEqual([]);

      await replaceRedis(persistenceArgs);
      const backAt = performance.now();
      await fleet.allReady();
      const recovered = performance.now() - backAt;
      await until(
        'grants are issued and refreshed again',
        async () => {
          const { caller } = pickReplica();
          const { refresh_token: token } = await caller.grant();
          return (await caller.refresh(token)).status === 200;
        },
        60,
      );
      // The failed revocations have been announced to all replicas by now.
      await until(
        'tokens revoked meanwhile are rejected everywhere',
        async () => (await Promise.all(deniedTokens.map(getStatuses))).flat().every((status) => status === 401),
        60,
      );
      // Grants issued before the outage can be refreshed.
      for (const { refresh_token: token } of grants.slice(0, 20))
        expect((await retryWhileTemporary(() => pickReplica().caller.refresh(token))).status).toBe(200);
      expect(await findAccepted(revokedTokens.slice(-200))).toEqual([]);
      recordFigures('outage', {
        'seconds without Redis': Math.round(seconds),
        'requests per second': Math.round(during.sent() / seconds),
        requests: during.sent(),
        'failed validations': [...during.failures.values()].reduce((sum, count) => sum + count, 0),
        'commands to Redis before that': sumCounts(commandsUnderLoad),
        'requests before that': before.sent(),
        'commands attempted while it was down': sumCounts(commandsWhileDown),
        'grants, refreshes and revocations rejected as temporary': refused,
        'ready again after, ms': Math.round(recovered),
      });
    },
    (outage.seconds + 300) * 1_000,
  );

  const countEntries = (port: number): Promise<number> => withRedis(port, (redis) => redis.zcard('{gh}:rev'));

  test('V09 after Redis is flushed or replaced by an empty one, no revoked token is accepted again, not even by a new replica', async () => {
    const validTokens = (await createGrants(5)).map(({ access_token: token }) => token);
    const entryCount = await countEntries(server.port);
    expect(entryCount).toBeGreaterThanOrEqual(revokedTokens.length);
    const sample = revokedTokens.toSorted(() => random() - 0.5).slice(0, 300);
    const losses: [string, () => Promise<unknown>][] = [
      ['flushed', () => withRedis(server.port, (redis) => redis.flushall())],
      ['replaced', () => replaceRedis([])],
    ];
    for (const [how, lose] of losses) {
      const [restarted] = fleet.replicas as readonly [Replica];
      await lose();
      await until(
        `all revocations are restored (${how})`,
        async () => {
          expect(await findAccepted(sample.slice(0, 50)), how).toEqual([]);
          return (await countEntries(server.port)) >= entryCount;
        },
        60,
      );
      expect(await findAccepted(sample), how).toEqual([]);
      await restarted.kill();
      await restarted.start();
      expect(await findAccepted(sample), how).toEqual([]);
      // The other replicas knew all revocations, so valid tokens stay valid, also on the restarted replica.
      await until(
        'valid tokens are accepted',
        async () => (await Promise.all(validTokens.map(getStatuses))).flat().every((status) => status === 200),
        60,
      );
    }
    recordFigures('emptied-redis', {
      revocations: entryCount,
      checked: sample.length * 2,
      'accepted again': 0,
    });
  }, 300_000);

  test('V09 with an empty Redis and no replica that knew the revocations, every earlier token is rejected', async () => {
    const validTokens = (await createGrants(5)).map(({ access_token: token }) => token);
    await Promise.all(fleet.replicas.map((replica) => replica.kill()));
    await replaceRedis([]);
    await Promise.all(fleet.replicas.map((replica) => replica.start()));
    expect(await findAccepted([...revokedTokens.slice(0, 200), ...validTokens])).toEqual([]);
    await until(
      'a new grant is accepted everywhere',
      async () =>
        (await getStatuses((await pickReplica().caller.grant()).access_token)).every((status) => status === 200),
      60,
    );
  }, 120_000);
}
