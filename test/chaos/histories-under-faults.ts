import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { until } from '../support/serve-process.ts';
import { type Fleet, type Replica, startFleet } from './fleet.ts';
import { type History, runHistory, subjects } from './histories.ts';
import { checkGrant } from './linearizability.ts';
import { type RedisPair, redisPair } from './redis-pair.ts';
import { createCloser, pick, randomFrom, report } from './report.ts';

/** Histories of three replicas on a Redis primary and its replica while something fails. */
export interface Histories {
  readonly histories: number;
  readonly operations: number;
  readonly seed: number;
  /** Drawn from these; all of them unless given. */
  readonly faults?: readonly string[];
}

type FaultScenario = (random: () => number) => Promise<void>;

/** Those that take long come less often. */
const ALL_FAULTS: readonly string[] = [
  ...Array.from({ length: 3 }, () => ['connections cut', 'replies lost', 'a replica stopped']).flat(),
  ...Array.from({ length: 2 }, () => ['Redis stopped', 'a replica cut off']).flat(),
  'a replica killed',
  'failover',
];
export function checkHistory(history: History): {
  readonly violations: readonly string[];
  readonly undecided: number;
} {
  const verdicts = history.subjects.map(({ id, deviceCode }) => ({
    id,
    ...checkGrant(
      history.operations.filter(({ grant }) => grant === id),
      { exists: deviceCode === undefined },
    ),
  }));
  return {
    violations: verdicts.flatMap(({ id, violations }) => violations.map((what) => `${id}: ${what}`)),
    undecided: verdicts.filter(({ undecided }) => undecided).length,
  };
}

export function testHistories({ histories, operations, seed, faults = ALL_FAULTS }: Histories): void {
  let pair: RedisPair;
  let fleet: Fleet;
  const opened = createCloser();
  beforeAll(async () => {
    pair = await redisPair();
    opened.add(() => pair.close());
    fleet = await startFleet({
      redis: pair.primary.port,
      store: { maxStaleness: '3s', durability: 'replicated', replicas: 1, ack: 'everywhere' },
      // No history lasts longer: what a lost answer is worth then depends on nothing but the order of events.
      change: (settings) => ({ ...settings, tokens: { refresh: { retryWindow: '60s' } } }),
      seconds: 0.7,
      connections: 16,
    });
    opened.add(() => fleet.close());
  }, 180_000);
  afterAll(() => opened.closeAll());

  const one = (random: () => number): Replica => pick(random, fleet.replicas);
  const faultActions: Readonly<Record<string, FaultScenario>> = {
    async 'connections cut'(random) {
      const { relay } = one(random);
      relay.set('refuse');
      await pause(random() * 400);
      relay.set('pass');
    },
    async 'a replica cut off'(random) {
      const { relay } = one(random);
      relay.set('black hole');
      await pause(200 + random() * 1_000);
      relay.set('pass');
    },
    async 'replies lost'(random) {
      for (let times = 0; times < 8; times += 1) {
        one(random).relay.set('drop response');
        await pause(random() * 60);
      }
      for (const { relay } of fleet.replicas) relay.set('pass');
    },
    async 'a replica stopped'(random) {
      const { process } = one(random);
      process.signal('SIGSTOP');
      // Now and then for longer than its lease.
      await pause(random() < 0.15 ? 3_500 : 100 + random() * 900);
      process.signal('SIGCONT');
    },
    async 'Redis stopped'(random) {
      const { primary } = pair;
      primary.pause();
      await pause(100 + random() * 500);
      primary.resume();
    },
    async 'a replica killed'(random) {
      const replica = one(random);
      await replica.kill();
      await replica.start();
    },
    async failover(random) {
      pair.partition();
      await pause(random() * 400);
      await pair.promote(fleet.replicas.map(({ relay }) => relay));
      await pair.rejoin();
    },
  };

  test(`R17 S14 ${histories} histories of ${operations} operations under faults: each is linearizable`, async () => {
    const total = { operations: 0, unknown: 0, undecided: 0 };
    const violations: string[] = [];
    const happened = new Map<string, number>();
    for (let number = 0; number < histories; number += 1) {
      const random = randomFrom(seed + number);
      await fleet.allReady();
      const injectFaults = async (begun: () => number): Promise<void> => {
        for (const when of [0.1, 0.4, 0.7].slice(0, Math.ceil(random() * 3))) {
          const name = pick(random, faults);
          await until('the history has begun', () => begun() > operations * when, 60);
          happened.set(name, (happened.get(name) ?? 0) + 1);
          await faultActions[name]?.(random);
        }
      };
      const history = await runHistory({
        fleet,
        subjects: await subjects(fleet, pair.primary.port, { certificates: 4, devices: 2 }),
        random: (client) => randomFrom(Math.imul(seed + number, 31) + client + 1),
        operations,
        clients: 10,
        faults: injectFaults,
      });
      total.operations += history.operations.length;
      total.unknown += history.operations.filter(({ outcome }) => outcome === 'unknown').length;
      const verdict = checkHistory(history);
      total.undecided += verdict.undecided;
      const wrong = [...verdict.violations, ...history.unexpected];
      if (number % 50 === 49) console.info(`${number + 1} histories, ${violations.length} violations`);
      if (wrong.length === 0) continue;
      // Evidence, for REPLAY.
      const file = join(mkdtempSync(join(tmpdir(), 'gatehouse-history-')), `${seed + number}.json`);
      writeFileSync(file, JSON.stringify({ ...history, wrong }, undefined, 1));
      violations.push(`seed ${seed + number}, ${file}: ${wrong.join('; ')}`);
    }
    report('histories', {
      'first seed': seed,
      histories: histories,
      operations: total.operations,
      'with unknown outcome': total.unknown,
      ...Object.fromEntries([...happened].map(([name, times]) => [`fault: ${name}`, times])),
      undecided: total.undecided,
      violations: violations.length,
    });
    expect(violations).toEqual([]);
    expect(total.undecided).toBe(0);
  }, 3_600_000);
}
