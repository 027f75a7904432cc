import { test } from 'vitest';
import { expectEqualLines } from './access-log-cache.ts';

test('an access log with a filled cache writes the same lines as a new one, for 300 random sequences', () =>
  expectEqualLines(300));
