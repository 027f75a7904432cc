import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import type { History } from './histories.ts';
import { checkHistory, testHistories } from './histories-under-faults.ts';
import { count, SEED } from './support.ts';

/**
 * `SEED=… HISTORIES=…` repeats the actions of clients and faults, `FAULT=failover` injects only that fault,
 * `REPLAY=<file>` checks a recorded history again.
 */
const { FAULT: only, REPLAY: replay } = process.env;

testHistories({
  histories: count('HISTORIES', 30, 500),
  operations: 200,
  seed: SEED,
  ...(only !== undefined && { faults: [only] }),
});

test.runIf(replay !== undefined)('a recorded history is checked again', () => {
  const history = JSON.parse(readFileSync(replay ?? '', 'utf8')) as History;
  expect(checkHistory(history)).toEqual({ violations: [], undecided: 0 });
});
