import { expect, test } from 'vitest';
import { formatProgress, withProgressLine } from '../../src/commands/progress.ts';
import type { ReportProgress } from '../../src/ports/progress.ts';

/** Reports one record per 100 ms, for so many seconds of an injected clock. */
async function showFor(seconds: number, quiet = false): Promise<string> {
  let [shown, time] = ['', 0];
  await withProgressLine(
    { stderr: (text: string) => void (shown += text), flag: (name: string) => name === 'quiet' && quiet },
    async (report: ReportProgress) => {
      for (let done = 0; done <= seconds * 10; done += 1) {
        time = done * 100;
        report({ step: 'importing the records', unit: 'records', done, total: seconds * 10 });
      }
    },
    () => time,
  );
  return shown;
}

test('there is a line every few seconds', async () => {
  expect(await showFor(12)).toBe(
    'importing the records: 50 of 120 records (41 %), 10/s\nimporting the records: 100 of 120 records (83 %), 10/s\n',
  );
});

test('nothing is shown for short work, or with --quiet', async () => {
  expect(await showFor(4)).toBe('');
  expect(await showFor(60, true)).toBe('');
});

test.each([
  [{ step: 'copying the store', unit: 'bytes', done: 512 * 2 ** 20 }, 2, 'copying the store: 512 MiB, 256 MiB/s'],
  [
    { step: 'verifying the MAC', unit: 'bytes', done: 1.5 * 2 ** 30, total: 2 ** 31 },
    0.1,
    'verifying the MAC: 1.5 GiB of 2.0 GiB (75 %)',
  ],
  [
    { step: 'importing the records', unit: 'records', done: 1_234_567 },
    100,
    'importing the records: 1,234,567 records, 12,346/s',
  ],
] as const)('%j', (progress, seconds, text) => {
  expect(formatProgress(progress, seconds)).toBe(text);
});
