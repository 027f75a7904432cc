import { test } from 'vitest';
import { loadMutatedSamples, loadOddOverrides } from './mutated-configuration.ts';

test('80 mutated copies of the sample give settings or problems, never a crash', () => {
  loadMutatedSamples(80);
});

test('60 odd variables and flags give settings or problems, never a crash', () => {
  loadOddOverrides(60);
});
