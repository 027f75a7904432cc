import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isTemporary, openFleet, persistently, type Replica } from './fleet.ts';
import { closer, count, pick, randomFrom, report, SEED } from './form.ts';

const KILLS = count('REDIS_KILLS', 20, 200);
const CLIENTS = 18;
/** Seconds in which a lost answer can be asked for again. */
const WINDOW = 10;
const random = randomFrom(SEED);

let server: RedisServer;
let fleet: Fleet;
const opened = closer();
beforeAll(async () => {
  server = await redisServer();
  opened.add(() => server.stop());
  fleet = await openFleet({
    redis: server.port,
    change: (settings) => ({ ...settings, tokens: { refresh: { retryWindow: `${WINDOW}s` } } }),
  });
  opened.add(() => fleet.close());
}, 180_000);
afterAll(() => opened.closeAll());

/** One client: what it was told last is what it shows. */
interface Client {
  readonly home: Replica;
  /** After a lost answer it waits for its replica to come back; the others go to the next one at once. */
  readonly waits: boolean;
  token: string;
  refreshes: number;
  lost: number;
  /** Token shown → every token answered to it. */
  readonly answers: Map<string, Set<string>>;
}

test(`R13 kill -9 of one of three replicas in mid-refresh, ${KILLS} times: no grant is lost, no token has two successors, nobody is punished who tries again`, async () => {
  const refusals: string[] = [];
  const halt = new AbortController();
  const clients: Client[] = [];
  for (let index = 0; index < CLIENTS; index += 1) {
    const home = fleet.replicas[index % 3] as Replica;
    const { refresh_token: token } = await home.caller.grant();
    clients.push({ home, waits: index % 2 === 0, token, refreshes: 0, lost: 0, answers: new Map() });
  }
  const others = ({ home, waits }: Client): Replica => {
    if (waits || home.isUp) return home;
    return pick(
      random,
      fleet.replicas.filter((replica) => replica.isUp),
    );
  };
  const run = async (client: Client): Promise<void> => {
    while (!halt.signal.aborted) {
      const at = others(client);
      const shown = client.token;
      if (!at.isUp) {
        await pause(5);
        continue;
      }
      const answer = await at.caller.refresh(shown).catch(() => undefined);
      if (answer === undefined) {
        client.lost += 1;
        continue;
      }
      if (isTemporary(answer)) continue;
      if (answer.status !== 200) {
        refusals.push(
          `${answer.status} ${JSON.stringify(answer.json)} by ${at.name}.${at.life}, ${client.waits ? 'after waiting' : 'at once'}`,
        );
        return;
      }
      const next = String(answer.json['refresh_token']);
      client.answers.set(shown, (client.answers.get(shown) ?? new Set()).add(next));
      client.token = next;
      client.refreshes += 1;
      await pause(random() * 12);
    }
  };
  const running = clients.map(run);
  const lost = (): number => clients.reduce((sum, client) => sum + client.lost, 0);
  let midRefresh = 0;
  try {
    for (let kill = 0; kill < KILLS; kill += 1) {
      const victim = pick(random, fleet.replicas);
      await pause(20 + random() * 150);
      const before = lost();
      await victim.kill9();
      if (lost() > before) midRefresh += 1;
      // Now and then it stays away for longer than the window: whoever waited for it is not late all the same.
      if (kill % 40 === 9) await pause(WINDOW * 1_000 + 200);
      await victim.start();
      const seen = new Map(clients.map((client) => [client, client.refreshes]));
      await until(
        `everybody goes on after kill ${kill + 1}`,
        () => refusals.length > 0 || clients.every((client) => client.refreshes > (seen.get(client) ?? 0)),
        30,
      );
      expect(refusals).toEqual([]);
      if (kill % 25 === 24) console.info(`${kill + 1} kills, nobody refused`);
    }
  } finally {
    halt.abort();
    await Promise.all(running);
  }
  expect(refusals).toEqual([]);
  const forked = clients.flatMap(({ answers }) => [...answers.values()]).filter((next) => next.size > 1);
  expect(forked).toEqual([]);
  // Every grant lives, and its newest token gives one successor on all three.
  for (const { token } of clients) {
    const answers = await Promise.all(
      fleet.replicas.map((replica) => persistently(() => replica.caller.refresh(token))),
    );
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(new Set(answers.map(({ json }) => json['refresh_token'])).size).toBe(1);
  }
  expect(fleet.audits('refresh_reuse')).toBe(0);
  report('kill-nine-redis', {
    seed: SEED,
    kills: KILLS,
    'kills in mid-refresh': midRefresh,
    'refreshes acknowledged': clients.reduce((sum, client) => sum + client.refreshes, 0),
    'answers lost': lost(),
    'of them already stored': fleet.audits('refresh_repeated') - CLIENTS * 2,
    'grants lost': 0,
    'tokens with two successors': forked.length,
    'clients punished': fleet.audits('refresh_reuse'),
  });
  expect(midRefresh).toBeGreaterThan(KILLS / 2);
}, 1_800_000);
