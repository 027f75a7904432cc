import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, type Replica, startFleet } from './fleet.ts';
import { createSubjects, type History, runHistory } from './histories.ts';
import { checkGrant } from './linearizability.ts';
import { type RedisPair, startRedisPair } from './redis-pair.ts';
import { createCloser, pick, randomFrom } from './support.ts';

/** Histories of three replicas on a Redis primary and its replica under faults. */
export interface Histories {
  readonly histories: number;
  readonly operations: number;
  readonly seed: number;
  /** Faults to choose from; all by default. */
  readonly faults?: readonly string[];
}

type FaultScenario = (random: () => number) => Promise<void>;

/** Slow faults are less frequent. */
const ALL_FAULTS: readonly string[] = [
  ...Array.from({ length: 3 }, () => ['connections refused', 'replies lost', 'a replica stopped']).flat(),
  ...Array.from({ length: 2 }, () => ['Redis stopped', 'a replica partitioned']).flat(),
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
  const closer = createCloser();
  beforeAll(async () => {
    pair = await startRedisPair();
    closer.add(() => pair.close());
    fleet = await startFleet({
      redis: pair.primary.port,
      store: { maxStaleness: '3s', durability: 'replicated', replicas: 1, ack: 'everywhere' },
      // Longer than any history, so that a retry depends only on the order of events.
      change: (settings) => ({ ...settings, tokens: { refresh: { retryWindow: '60s' } } }),
      seconds: 0.7,
      connections: 16,
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  const pickReplica = (random: () => number): Replica => pick(random, fleet.replicas);
  const faultActions: Readonly<Record<string, FaultScenario>> = {
    async 'connections refused'(random) {
      const { relay } = pickReplica(random);
      relay.set('refuse');
      await pause(random() * 400);
      relay.set('pass');
    },
    async 'a replica partitioned'(random) {
      const { relay } = pickReplica(random);
      relay.set('black hole');
      await pause(200 + random() * 1_000);
      relay.set('pass');
    },
    async 'replies lost'(random) {
      for (let times = 0; times < 8; times += 1) {
        pickReplica(random).relay.set('drop response');
        await pause(random() * 60);
      }
      for (const { relay } of fleet.replicas) relay.set('pass');
    },
    async 'a replica stopped'(random) {
      const { process } = pickReplica(random);
      process.signal('SIGSTOP');
      // Occasionally for longer than its lease.
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
      const replica = pickReplica(random);
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
    const faultCounts = new Map<string, number>();
    for (let number = 0; number < histories; number += 1) {
      const random = randomFrom(seed + number);
      await fleet.allReady();
      const injectFaults = async (startedCount: () => number): Promise<void> => {
        for (const when of [0.1, 0.4, 0.7].slice(0, Math.ceil(random() * 3))) {
          const name = pick(random, faults);
          await until('enough operations have started', () => startedCount() > operations * when, 60);
          faultCounts.set(name, (faultCounts.get(name) ?? 0) + 1);
          await faultActions[name]?.(random);
        }
      };
      const history = await runHistory({
        fleet,
        subjects: await createSubjects(fleet, pair.primary.port, { certificates: 4, devices: 2 }),
        random: (client) => randomFrom(Math.imul(seed + number, 31) + client + 1),
        operations,
        clients: 10,
        faults: injectFaults,
      });
      total.operations += history.operations.length;
      total.unknown += history.operations.filter(({ outcome }) => outcome === 'unknown').length;
      const verdict = checkHistory(history);
      total.undecided += verdict.undecided;
      const problems = [...verdict.violations, ...history.unexpected];
      if (number % 50 === 49) console.info(`${number + 1} histories, ${violations.length} violations`);
      if (problems.length === 0) continue;
      // Saved for REPLAY.
      const file = join(mkdtempSync(join(tmpdir(), 'gatehouse-history-')), `${seed + number}.json`);
      writeFileSync(file, JSON.stringify({ ...history, problems }, undefined, 1));
      violations.push(`seed ${seed + number}, ${file}: ${problems.join('; ')}`);
    }
    recordFigures('histories', {
      'first seed': seed,
      histories: histories,
      operations: total.operations,
      'with unknown outcome': total.unknown,
      ...Object.fromEntries([...faultCounts].map(([name, times]) => [`fault: ${name}`, times])),
      undecided: total.undecided,
      violations: violations.length,
    });
    expect(violations).toEqual([]);
    expect(total.undecided).toBe(0);
  }, 3_600_000);
}
