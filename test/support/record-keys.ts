import {
  createRecordAuthenticator,
  type KeyedRecordAuthenticator,
  type RecordMacOptions,
} from '../../src/tokens/record-mac.ts';
import { openSealingKeys, type SealingKeys } from '../../src/tokens/sealing-keys.ts';

/** Sealing keys of these ids, each with the same secret in every process. */
export const testKeyring = (...kids: readonly string[]): SealingKeys =>
  openSealingKeys({
    sealing: kids.map((kid, index) => ({ kid, activeFrom: index, secret: kid.padEnd(43, '0') })),
  });

/** Authenticates records as a process with one key does. */
export function testAuthenticator(
  options: Partial<RecordMacOptions> = {},
  keyring = TEST_KEYS,
): KeyedRecordAuthenticator {
  const authenticator = createRecordAuthenticator({
    now: () => Date.now() / 1_000,
    unauthenticated: 'accept',
    ...options,
  });
  authenticator.setKeyring(keyring);
  return authenticator;
}

const TEST_KEYS = testKeyring('mtest');
