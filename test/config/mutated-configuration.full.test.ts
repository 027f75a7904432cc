import { test } from 'vitest';
import { loadMutatedSamples, loadOddOverrides } from './mutated-configuration.ts';

test('2,000 mutated copies of the sample load or report problems, and never throw', () => {
  loadMutatedSamples(2_000);
}, 300_000);

test('500 invalid variables and flags load or report problems, and never throw', () => {
  loadOddOverrides(500);
}, 300_000);
