import { expect, onTestFinished, test } from 'vitest';
import type { AccessRule } from '../../src/domain/access-rule.ts';
import type { RouteLimit } from '../../src/domain/route-limit.ts';
import type { ResourceScope } from '../../src/lib/shared-resources.ts';
import type { SharedLimits } from '../../src/ports/shared-limits.ts';
import type { Quota } from '../../src/proxy/policy/quotas.ts';
import { QuotaRegistry } from '../../src/server/quotas.ts';
import { createMemoryLimits } from '../../src/stores/memory-limits.ts';
import { NOW, rule } from '../support/proxy-harness.ts';
import { createActiveScope } from '../support/resource-scope.ts';
import { until } from '../support/until.ts';

const BURST = 30;
const PROCESSES = 3;
const limit: RouteLimit = {
  name: 'route',
  per: 'route',
  quota: BURST,
  window: 60,
  rate: { burst: BURST, perSecond: BURST / 60 },
};
const LIMITED: readonly AccessRule[] = [rule('/a/**', 'any-token', { limits: [limit] })];
const SETTINGS = { shared: true, rateLimitHeaders: false };

/** Processes that share the counts of a supervisor, whose replies a test can hold or replace by failures. */
function startProcesses(count = PROCESSES) {
  let time = NOW;
  let gate: Promise<void> | undefined;
  let isUnreachable = false;
  let reports = 0;
  const now = (): number => time;
  const supervisor = createMemoryLimits(now, count);
  const shared: SharedLimits = {
    ...supervisor,
    async take(...args) {
      reports += 1;
      await gate;
      if (isUnreachable) throw new Error('unreachable');
      return supervisor.take(...args);
    },
  };
  const names = new Set<string>();
  const digestName = (text: string): string => {
    names.add(text);
    return text;
  };
  const registries = Array.from({ length: count }, () => new QuotaRegistry({ now, shared, digestName }));
  onTestFinished(() => registries.forEach((registry) => registry.stop()));
  const scopes = registries.map(createActiveScope);
  const quotas = registries.map((registry, index) =>
    registry.open(LIMITED, SETTINGS, scopes[index] as ResourceScope)?.get(LIMITED[0] as AccessRule),
  );
  const send = (index: number): boolean => (quotas[index] as Quota).take(undefined, '192.0.2.1', time) === undefined;
  return {
    now,
    registries,
    scopes,
    names,
    advance: (seconds: number) => void (time += seconds),
    reports: () => reports,
    hold: (): (() => void) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      gate = promise;
      return () => {
        gate = undefined;
        resolve();
      };
    },
    setUnreachable: (value: boolean) => void (isUnreachable = value),
    /** Makes the supervisor evict the counts of all other names. */
    flood: async (): Promise<void> => {
      for (let index = 0; index <= 50_000; index += 1) await supervisor.take(`flood ${index}`, limit.rate, 1, true);
    },
    send,
    /** Sends requests until one is refused, and returns how many were allowed. */
    drain: (index: number): number => {
      for (let allowed = 0; ; allowed += 1) if (!send(index)) return allowed;
    },
    /** Waits until all requests have been reported: the name of the only bucket. */
    level: async (): Promise<number> => {
      const [name = ''] = await until('a bucket was reported', () => names.size > 0 && [...names]);
      return supervisor.take(name, limit.rate, 0);
    },
  };
}

test('before they hear of each other, processes let through at most one burst each', () => {
  const { drain, hold } = startProcesses();
  onTestFinished(hold());
  expect([drain(0), drain(1), drain(2)]).toEqual([BURST, BURST, BURST]);
  expect([drain(0), drain(1), drain(2)]).toEqual([0, 0, 0]);
});

test('afterwards the excess is deducted, up to one burst, and no process lets a request through before it is repaid', async () => {
  const { drain, send, advance, level } = startProcesses();
  for (let index = 0; index < PROCESSES; index += 1) drain(index);
  await until('the excess is deducted', async () => (await level()) === -BURST);
  // A process that reported early may have one request per interval left to learn of the debt.
  advance(59);
  for (let index = 0; index < PROCESSES; index += 1) while (send(index));
  await until('all processes know', async () => (await level()) < 0);
  await until('no process lets a request through', () => ![0, 1, 2].some(send));
  advance(60);
  await until('it is repaid', () => [0, 1, 2].some(send));
});

test('a caller on one process gets exactly its limit, and few reports are sent', async () => {
  const { drain, advance, reports, level } = startProcesses();
  expect(drain(1)).toBe(BURST);
  await until('it is reported', async () => (await level()) === 0);
  expect(drain(1)).toBe(0);
  advance(30);
  expect(drain(1)).toBe(BURST / 2);
  await until('it is reported', async () => (await level()) === 0);
  expect(reports()).toBeLessThanOrEqual(2);
});

test('requests on one process use up the quota on the others', async () => {
  const { drain, send, level } = startProcesses();
  expect(drain(0)).toBe(BURST);
  await until('it is reported', async () => (await level()) === 0);
  // The first request makes the process report, and learn that nothing is left.
  expect(send(1)).toBe(true);
  await until('the process has learned it', () => !send(1));
  expect(drain(0)).toBe(0);
});

test('a process keeps the count of its own requests when the shared count was evicted', async () => {
  const { drain, send, advance, flood, level } = startProcesses();
  expect(drain(0)).toBe(BURST);
  await until('it is reported', async () => (await level()) === 0);
  await flood();
  expect(await level()).toBe(BURST);
  advance(60 / BURST);
  expect(send(0)).toBe(true);
  await until('it is reported', async () => (await level()) === BURST - 1);
  expect(drain(0)).toBe(0);
  advance(30);
  expect(drain(0)).toBe(BURST / 2);
});

test('while the shared counts are unreachable, each process grants its share', async () => {
  const { drain, send, advance, setUnreachable, level } = startProcesses();
  setUnreachable(true);
  for (let index = 0; index < PROCESSES; index += 1) {
    expect(send(index)).toBe(true);
    await until('the report has failed', () => {
      advance(60);
      return drain(index) === BURST / PROCESSES;
    });
  }
  setUnreachable(false);
  await until('the requests are reported', async () => (await level()) < BURST);
});

test('names of shared buckets do not depend on the position of a route, and differ by route and rate', () => {
  const { names, registries, send } = startProcesses(1);
  const [registry] = registries;
  send(0);
  const other = { ...limit, rate: { ...limit.rate, burst: 31 } };
  const rules = [
    rule('/b/**', 'any-token', { limits: [limit] }),
    rule('/a/**', 'any-token', { limits: [limit], name: 'routes[1] /a/**' }),
    rule('/a/**', 'any-token', { limits: [other] }),
    rule('/a/**', 'any-token', { limits: [limit], methods: ['GET'] }),
  ];
  const quotas = registry?.open(rules, SETTINGS, createActiveScope());
  for (let index = 0; index < BURST - 1; index += 1)
    expect(quotas?.get(rules[1] as AccessRule)?.take(undefined, '', NOW)).toBeUndefined();
  expect(quotas?.get(rules[1] as AccessRule)?.take(undefined, '', NOW)).toMatchObject({ limit: 'route' });
  for (const one of [0, 2, 3]) expect(quotas?.get(rules[one] as AccessRule)?.take(undefined, '', NOW)).toBeUndefined();
  expect(names.size).toBe(0);
});

test('limits that no configuration uses any more free their memory', async () => {
  const { registries, scopes, send } = startProcesses(1);
  const [registry] = registries as [QuotaRegistry];
  send(0);
  const next = createActiveScope();
  registry.open(LIMITED, SETTINGS, next);
  expect(registry.size).toBe(1);
  await next.resources.disposeAsync();
  expect(registry.size).toBe(1);
  await scopes[0]?.resources.disposeAsync();
  expect(registry.size).toBe(0);
  expect(registry.open([rule('/a/**', 'public')], SETTINGS, createActiveScope())).toBeUndefined();
});
