import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { TokenGrant } from '../support/house.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isTemporary, openFleet, persistently, type Replica } from './fleet.ts';
import { closer, count, percentile, pick, randomFrom, report, SEED, spread } from './form.ts';
import { type CommandCount, commandCount, totalOf } from './redis-commands.ts';

/** Three gatehouses, three processes, one Redis that keeps what it has on disk. The tests follow each other. */
const GRANTS = count('GRANTS', 50, 1_000);
const REFRESHES = 100;
const REVOCATIONS = count('REVOCATIONS', 500, 10_000);
const OUTAGE_SECONDS = count('OUTAGE', 10, 50);
const RATE = count('RATE', 1_000, 1_000);
/** Far beyond what any of them takes, on a machine however busy. */
const EFFECT_MS = 60_000;

const random = randomFrom(SEED);
const data = mkdtempSync(join(tmpdir(), 'gatehouse-chaos-data-'));
const kept = ['--dir', data, '--appendonly', 'yes'];

let server: RedisServer;
let fleet: Fleet;
let commands: CommandCount;
/** Access tokens whose end was acknowledged. */
const ended: string[] = [];

const opened = closer();
opened.add(() => rmSync(data, { recursive: true, force: true }));
beforeAll(async () => {
  server = await redisServer(kept);
  opened.add(() => server.stop());
  commands = commandCount();
  fleet = await openFleet({
    redis: server.port,
    store: { maxStaleness: '60s' },
    // The ways number their connections for themselves.
    tap: (replica) => (bytes, connection) => commands.tap(bytes, connection * 10 + replica),
  });
  opened.add(() => fleet.close());
}, 180_000);
afterAll(() => opened.closeAll());

const anyReplica = (): Replica => pick(random, fleet.replicas);
const someGrants = async (many: number): Promise<readonly TokenGrant[]> => {
  const grants: TokenGrant[] = [];
  await spread(Array.from({ length: many }), 12, async () => {
    grants.push(await anyReplica().caller.grant());
  });
  return grants;
};
const statuses = (token: string): Promise<readonly number[]> =>
  Promise.all(fleet.replicas.map((replica) => replica.caller.call(token)));
const acceptedAgain = async (tokens: readonly string[]): Promise<readonly string[]> => {
  const accepted: string[] = [];
  await spread(tokens, 24, async (token) => {
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
/** As their records say. */
const generationsOf = (grants: readonly TokenGrant[]): Promise<readonly number[]> =>
  asking(server.port, async (redis) => {
    const keys = grants.map(({ refresh_token: token }) => `gh:{${token.split('.')[1]}}:g`);
    const records = await redis.mget(keys);
    return records.map((record) => Number(/"generation":(\d+)/.exec(record ?? '')?.[1]));
  });

test(`R05 ${GRANTS} grants × ${REFRESHES} refreshes at once over three processes: one rotation each, the same tokens in every answer`, async () => {
  const grants = await someGrants(GRANTS);
  const began = performance.now();
  const wrong: string[] = [];
  await spread(grants, 3, async ({ refresh_token: token }) => {
    const replies = await Promise.all(
      Array.from({ length: REFRESHES }, (_, index) =>
        persistently(() => (fleet.replicas[index % 3] as Replica).caller.refresh(token)),
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
  // A rotation whose answer from Redis was lost is no line; there are never two.
  expect(fleet.audits('grant_refreshed')).toBeLessThanOrEqual(GRANTS);
  expect(fleet.audits('refresh_reuse')).toBe(0);
  report('concurrent-refreshes', {
    seed: SEED,
    grants: GRANTS,
    'refreshes of each at once': REFRESHES,
    'rotations of each': [...new Set(generations)].map((generation) => generation - 1).join(' '),
    'grants with differing answers': wrong.length,
    'refreshes per second': Math.round((GRANTS * REFRESHES) / seconds),
  });
}, 2_700_000);

test(`V06 ${REVOCATIONS} revocations on any of three processes: after the 200 none of them accepts the token`, async () => {
  const grants = await someGrants(REVOCATIONS);
  const accepted: string[] = [];
  const effects: number[] = [];
  const answers: number[] = [];
  await spread(grants, 4, async ({ access_token: token }) => {
    const at = anyReplica();
    const sentAt = performance.now();
    let answeredAt = Number.POSITIVE_INFINITY;
    const revoking = persistently(() => at.caller.revoke(token)).then((answer) => {
      answeredAt = performance.now();
      return answer;
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
    answers.push(answeredAt - sentAt);
    for (const status of await statuses(token))
      if (status !== 401) accepted.push(`${status} after the answer`);
    effects.push(Math.max(...(await Promise.all(polling))));
  });
  expect(accepted).toEqual([]);
  const sorted = effects.toSorted((a, b) => a - b);
  const answered = answers.toSorted((a, b) => a - b);
  report('revocations', {
    seed: SEED,
    revocations: REVOCATIONS,
    'accepted after the answer': accepted.length,
    'refused by all three after, p50 ms': percentile(sorted, 0.5).toFixed(1),
    'refused by all three after, p99 ms': percentile(sorted, 0.99).toFixed(1),
    'answered after, p50 ms': percentile(answered, 0.5).toFixed(1),
    'answered after, p99 ms': percentile(answered, 0.99).toFixed(1),
  });
}, 2_700_000);

interface Load {
  readonly asked: () => number;
  readonly failures: Map<number | string, number>;
  stop(): Promise<void>;
}

/** Calls through the proxy at a steady rate, whatever becomes of the answers; at most so many wait at once. */
function steadyCalls(tokens: readonly string[], rate: number): Load {
  const failures = new Map<number | string, number>();
  const waiting = new Set<Promise<void>>();
  const began = performance.now();
  let asked = 0;
  const one = async (): Promise<void> => {
    const status = await anyReplica()
      .caller.call(pick(random, tokens))
      .catch((error: Error) => error.message);
    if (status !== 200) failures.set(status, (failures.get(status) ?? 0) + 1);
  };
  const timer = setInterval(() => {
    const due = ((performance.now() - began) / 1_000) * rate;
    for (; asked < due && waiting.size < 500; asked += 1) {
      const call = one().finally(() => waiting.delete(call));
      waiting.add(call);
    }
  }, 5);
  return {
    asked: () => asked,
    failures,
    async stop() {
      clearInterval(timer);
      await Promise.all(waiting);
    },
  };
}

test(`S02 Redis dead for ${OUTAGE_SECONDS} s at ${RATE} requests a second: no validation fails, none asks Redis, and it recovers by itself`, async () => {
  const grants = await someGrants(60);
  const tokens = grants.slice(0, 50).map(({ access_token: token }) => token);
  const spare = grants.slice(50);
  await fleet.allReady();
  // Warm: each replica has seen each token.
  for (const token of tokens) expect(await statuses(token)).toEqual([200, 200, 200]);

  commands.taken();
  await pause(2_000);
  const idle = commands.taken();
  const before = steadyCalls(tokens, RATE);
  await pause(3_000);
  await before.stop();
  const busy = commands.taken();
  expect(before.failures).toEqual(new Map());
  expect(before.asked()).toBeGreaterThan(500);
  // Nothing is asked of records. What is left are beats and the reading of the log, which go on with or without requests.
  expect([...busy.keys()].filter((name) => name.startsWith('gatehouse-records '))).toEqual([]);
  expect(totalOf(busy)).toBeLessThan(before.asked() / 10);

  await server.kill();
  const diedAt = performance.now();
  const during = steadyCalls(tokens, RATE);
  const wronglyAnswered: string[] = [];
  const denied: string[] = [];
  let refused = 0;
  for (let turn = 0; performance.now() - diedAt < OUTAGE_SECONDS * 1_000; turn += 1) {
    const grant = spare[turn % spare.length] as TokenGrant;
    const { caller } = fleet.replicas[turn % 3] as Replica;
    const [refresh, made] = [
      await caller.refresh(grant.refresh_token),
      await caller.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }),
    ];
    for (const answer of [refresh, made])
      if (!isTemporary(answer)) wronglyAnswered.push(`${answer.status} ${JSON.stringify(answer.json)}`);
    refused += 2;
    if (turn < 5) {
      const answer = await caller.revoke(grant.access_token);
      if (answer.status !== 503 || !isTemporary(answer)) wronglyAnswered.push(`revocation: ${answer.status}`);
      // Denied here at once, though it cannot be announced yet.
      if ((await caller.call(grant.access_token)) !== 401)
        wronglyAnswered.push('accepted where it was revoked');
      denied.push(grant.access_token);
      refused += 1;
    }
    await pause(500);
  }
  await during.stop();
  const seconds = (performance.now() - diedAt) / 1_000;
  const dead = commands.taken();
  expect(during.failures).toEqual(new Map());
  expect(wronglyAnswered).toEqual([]);

  server = await redisServer(kept, { at: server.port });
  const backAt = performance.now();
  await fleet.allReady();
  const recovered = performance.now() - backAt;
  await until('grants are made and refreshed again', async () => {
    const { caller } = anyReplica();
    const grant = await caller.grant().catch(() => undefined);
    return grant !== undefined && (await caller.refresh(grant.refresh_token)).status === 200;
  });
  // The ends that could not be announced are announced by now, everywhere.
  await until('what was revoked meanwhile is refused everywhere', async () =>
    (await Promise.all(denied.map(statuses))).flat().every((status) => status === 401),
  );
  // Grants made before the outage go on, and nobody was punished.
  for (const { refresh_token: token } of grants.slice(0, 50))
    expect((await persistently(() => anyReplica().caller.refresh(token))).status).toBe(200);
  expect(await acceptedAgain(ended.slice(-200))).toEqual([]);
  report('outage', {
    'seconds without Redis': OUTAGE_SECONDS,
    'requests a second': Math.round(during.asked() / seconds),
    requests: during.asked(),
    'failed validations': [...during.failures.values()].reduce((sum, one) => sum + one, 0),
    'commands to Redis in 2 s without requests': totalOf(idle),
    'commands to Redis in 3 s with requests': totalOf(busy),
    'requests in those 3 s': before.asked(),
    'commands tried while it was dead': totalOf(dead),
    'grants, refreshes and revocations told to try again': refused,
    'ready again after, ms': Math.round(recovered),
  });
}, 300_000);

const entriesIn = (port: number): Promise<number> => asking(port, (redis) => redis.zcard('{gh}:rev'));

test('V09 an emptied Redis, and an empty one in its place: no revoked token is accepted again, not even by a replica that starts then', async () => {
  const live = (await someGrants(5)).map(({ access_token: token }) => token);
  const known = await entriesIn(server.port);
  expect(known).toBeGreaterThanOrEqual(ended.length);
  const sample = ended.toSorted(() => random() - 0.5).slice(0, 300);
  const losses: [string, () => Promise<unknown>][] = [
    ['flushed', () => asking(server.port, (redis) => redis.flushall())],
    [
      'replaced',
      async () => {
        await server.stop();
        server = await redisServer([], { at: server.port });
      },
    ],
  ];
  for (const [how, lose] of losses) {
    const [restarted] = fleet.replicas as readonly [Replica];
    await lose();
    let looks = 0;
    for (const wait = performance.now() + 3_000; performance.now() < wait; looks += 1)
      expect(await acceptedAgain(sample.slice(0, 50)), how).toEqual([]);
    expect(looks).toBeGreaterThan(0);
    await until(
      `all revocations are put back (${how})`,
      async () => (await entriesIn(server.port)) >= known,
      60,
    );
    expect(await acceptedAgain(sample), how).toEqual([]);
    await restarted.kill9();
    await restarted.start();
    expect(await acceptedAgain(sample), how).toEqual([]);
    // Those who knew everything vouch for it: what was valid stays valid, here and where it has just started.
    await until('what was valid is valid', async () =>
      (await Promise.all(live.map(statuses))).flat().every((status) => status === 200),
    );
  }
  report('emptied-redis', { revocations: known, 'looked at': sample.length * 2, 'accepted again': 0 });
}, 300_000);

test('V09 an empty Redis when nobody is left who knew: every token from before is refused', async () => {
  const live = (await someGrants(5)).map(({ access_token: token }) => token);
  await Promise.all(fleet.replicas.map((replica) => replica.kill9()));
  await server.stop();
  server = await redisServer([], { at: server.port });
  await Promise.all(fleet.replicas.map((replica) => replica.start()));
  expect(await acceptedAgain([...ended.slice(0, 200), ...live])).toEqual([]);
  const { access_token: token } = await until('a new grant is accepted everywhere', async () => {
    const grant = await anyReplica().caller.grant();
    return (await statuses(grant.access_token)).every((status) => status === 200) && grant;
  });
  expect(await statuses(token)).toEqual([200, 200, 200]);
}, 120_000);
