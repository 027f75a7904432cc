import { expect, test } from 'vitest';
import { mayRepeat } from '../../../src/stores/redis/client.ts';

const NOT_WRITTEN = new Error("Stream isn't writeable and enableOfflineQueue options is false");

test.each([
  'Command timed out',
  'Connection is closed.',
  'Reached the max retries per request limit (which is 1). Refer to "maxRetriesPerRequest" option for details.',
  'read ECONNRESET',
])('after "%s" the server may have executed the command: only an idempotent one is sent again', (message) => {
  expect(mayRepeat(new Error(message), true)).toBe(true);
  expect(mayRepeat(new Error(message), false)).toBe(false);
});

test('a command that was not written is sent again, also if it counts', () => {
  expect(mayRepeat(NOT_WRITTEN, false)).toBe(true);
});
