import { test } from 'vitest';
import { loadMutatedSamples, loadOddOverrides } from './mutated-configuration.ts';

test('30 mutated copies of the sample load or report problems, and never throw', () => {
  loadMutatedSamples(30);
});

test('20 invalid variables and flags load or report problems, and never throw', () => {
  loadOddOverrides(20);
});
