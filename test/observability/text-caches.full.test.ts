import { test } from 'vitest';
import { cachedLinesAreEqual } from './access-log-cache.ts';

test('an access log with a filled cache writes the same lines as a new one, for 300 random sequences', () =>
  cachedLinesAreEqual(300));
