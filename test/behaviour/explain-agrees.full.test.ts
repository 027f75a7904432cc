import { test } from 'vitest';
import { agreeOn } from './explained-requests.ts';

test('explain and the running gateway agree on 1,000 random requests', { timeout: 240_000 }, () =>
  agreeOn(1_000),
);
