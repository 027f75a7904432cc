import { expect, test } from 'vitest';
import { soak } from '../../tools/soak/soak.ts';

/** Growth takes longer to detect: soak.full.test.ts, `npm run soak`. */
test('O12 mixed load: no request fails, connections are closed, and memory, descriptors and lag are measured', async () => {
  const { failures, samples, completed, rejected, exitCode } = await soak({
    seconds: 3,
    warmUpSeconds: 1,
    everySeconds: 1,
  });
  expect(failures).toEqual([]);
  expect(completed - rejected).toBeGreaterThan(20);
  expect(samples).toHaveLength(3);
  for (const { anonymousMiB, descriptors, lagSeconds } of samples) {
    expect(anonymousMiB).toBeGreaterThan(0);
    expect(descriptors).toBeGreaterThan(0);
    expect(lagSeconds).toBeGreaterThanOrEqual(0);
  }
  expect(exitCode).toBe(0);
}, 120_000);
