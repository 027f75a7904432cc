import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { computeSizes, EXAMPLES, findBottleneck, type Load, readMeasurements } from '../../tools/sizing.ts';

const { constants } = readMeasurements();
const [, load] = EXAMPLES[1] ?? [];
const usual = load as Load;

test('every constant is measured and positive', () => {
  for (const [name, value] of Object.entries(constants)) expect(value, name).toBeGreaterThan(0);
  expect(Object.values(computeSizes(usual, constants)).every(Number.isFinite)).toBe(true);
});

test('memory grows with the grants, and the traffic of a replica does not depend on the number of replicas', () => {
  const once = computeSizes(usual, constants);
  const grown = computeSizes({ ...usual, grants: usual.grants * 10 }, constants);
  expect(grown.redisMemoryBytes - once.redisMemoryBytes).toBeCloseTo(usual.grants * 9 * constants.grantBytes);
  expect(grown.refreshesPerSecond).toBeCloseTo(once.refreshesPerSecond * 10);
  const wide = computeSizes({ ...usual, grants: usual.grants * 2, replicas: usual.replicas * 2 }, constants);
  expect(wide.bytesFromRedisPerReplica).toBeCloseTo(once.bytesFromRedisPerReplica);
  expect(wide.revocationCores).toBeCloseTo(once.revocationCores * 2);
});

test('each bottleneck names the exhausted resource', () => {
  const bottleneckOf = (changes: Partial<Load>): string =>
    findBottleneck(computeSizes({ ...usual, ...changes }, constants));
  expect(bottleneckOf({ grants: 1_000, replicas: 1 })).toBe('none within one server');
  expect(bottleneckOf({ grants: 1e9 })).toMatch(/a cluster of \d+ primaries/);
  expect(bottleneckOf({ replicas: 1e4, workers: 16, revocationsPerSecond: 1e3 })).toMatch(/slot of revocations/);
  expect(bottleneckOf({ grants: 1_000, replicas: 1, revocationsPerSecond: 10, revocationLifetime: 1e8 })).not.toBe(
    'none within one server',
  );
});

test('the command line prints a table', () => {
  const args = ['tools/sizing.ts', '--grants', '100000000', '--replicas', '100', '--workers', '4'];
  const cwd = join(import.meta.dirname, '../..');
  const table = execFileSync(process.execPath, args, { cwd, encoding: 'utf8' });
  expect(table).toMatch(/\| grants \| 100,000,000 \|/);
  expect(table).toMatch(/\| replicas × processes \| 100 × 4 \|/);
  expect(() =>
    execFileSync(process.execPath, ['tools/sizing.ts', '--grants', 'many'], { cwd, stdio: 'ignore' }),
  ).toThrow(/failed/);
});
