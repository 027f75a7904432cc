import { test } from 'vitest';
import { renewInShells } from './concurrent-token-renewal.ts';

test('of 50 shells that request a token shortly before it expires, one renews it and all print the same', async () => {
  await renewInShells(50);
}, 180_000);
