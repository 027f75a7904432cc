import { test } from 'vitest';
import { loadMutatedSamples, loadOddOverrides } from './mutated-configuration.ts';

test('80 mutated copies of the sample load or report problems, and never throw', () => {
  loadMutatedSamples(80);
});

test('60 invalid variables and flags load or report problems, and never throw', () => {
  loadOddOverrides(60);
});
