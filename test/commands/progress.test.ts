import { expect, test } from 'vitest';
import { formatProgress, withProgressLine } from '../../src/commands/progress.ts';
import type { ReportProgress } from '../../src/ports/progress.ts';

interface Run {
  readonly isErrorTerminal?: boolean;
  readonly quiet?: boolean;
  readonly env?: Readonly<Record<string, string>>;
}

/** Reports one record per 100 ms, for so many seconds of an injected clock. */
async function showFor(seconds: number, { quiet = false, env = {}, ...rest }: Run): Promise<string> {
  let [shown, time] = ['', 0];
  const context = {
    stderr: (text: string) => void (shown += text),
    flag: (name: string) => name === 'quiet' && quiet,
    env,
    errorColumns: 80,
    ...rest,
  };
  await withProgressLine(
    context,
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

test('a terminal shows one line, which is updated and finally removed', async () => {
  const shown = await showFor(3, { isErrorTerminal: true });
  expect(shown).not.toMatch(/\n|\x1b/);
  const updates = shown.split('\r').filter((text) => text.trim() !== '');
  expect(updates[0]).toBe('importing the records: 10 of 30 records (33 %), 10/s');
  expect(updates.at(-1)).toBe('importing the records: 30 of 30 records (100 %), 10/s');
  expect(shown).toMatch(/\r +\r$/);
});

test('elsewhere there is a line every few seconds', async () => {
  for (const options of [{}, { isErrorTerminal: true, env: { TERM: 'dumb' } }])
    expect(await showFor(12, options)).toBe(
      'importing the records: 50 of 120 records (41 %), 10/s\nimporting the records: 100 of 120 records (83 %), 10/s\n',
    );
});

test('nothing is shown for short work, or with --quiet', async () => {
  expect(await showFor(0.9, { isErrorTerminal: true })).toBe('');
  expect(await showFor(4, {})).toBe('');
  expect(await showFor(60, { isErrorTerminal: true, quiet: true })).toBe('');
});

test('the line is removed before an error is reported', async () => {
  let [shown, time] = ['', 0];
  const context = {
    stderr: (text: string) => void (shown += text),
    flag: () => false,
    env: {},
    isErrorTerminal: true,
  };
  const failing = withProgressLine(
    context,
    async (report) => {
      time = 2_000;
      report({ step: 'copying the store', unit: 'bytes', done: 1 });
      throw new Error('no space left');
    },
    () => time,
  );
  await expect(failing).rejects.toThrow('no space left');
  expect(shown).toMatch(/^\rcopying the store: 1 B\r +\r$/);
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
