import { test } from 'vitest';
import { renewInShells } from './concurrent-token-renewal.ts';

test('50 shells that ask for a token shortly before it expires: one renews it, all print the same', async () => {
  await renewInShells(50);
}, 180_000);
