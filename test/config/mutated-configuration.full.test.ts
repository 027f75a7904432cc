import { test } from 'vitest';
import { loadMutatedSamples, loadOddOverrides } from './mutated-configuration.ts';

test('2,000 mutated copies of the sample give settings or problems, never a crash', () => {
  loadMutatedSamples(2_000);
}, 300_000);

test('500 odd variables and flags give settings or problems, never a crash', () => {
  loadOddOverrides(500);
}, 300_000);
