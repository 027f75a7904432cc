import { expect, test } from 'vitest';
import { writeLine } from '../../src/stores/embedded-writes.ts';
import { until } from '../support/serve-process.ts';

const roomy = { fits: async () => true };
const failing = (): Promise<boolean> =>
  Promise.reject(Object.assign(new Error('input/output error'), { code: 5 }));
const fine = (): Promise<boolean> => Promise.resolve(true);

async function failThenWork(purpose: 'new' | 'upkeep'): Promise<number> {
  let now = 100;
  const line = writeLine(() => now, roomy);
  await expect(line.write({ change: failing, bytes: 10, purpose })).rejects.toThrow();
  now = 200;
  // A failure is repeated for a moment before the disk is tried again.
  await until('writing works', () => line.write({ change: fine, bytes: 10, purpose }).catch(() => false));
  await line.close(1_000);
  return line.recoveredAt();
}

test('a refresh that could not be written opens the retry window again when writing works', async () => {
  expect(await failThenWork('upkeep')).toBe(200);
});

test('a new record that could not be written does not: any client can ask for new records', async () => {
  expect(await failThenWork('new')).toBe(0);
});
