import { openSealingKeys, type SealingKeys } from '../../src/tokens/keyring.ts';
import {
  createRecordAuthenticator,
  type KeyedRecordAuthenticator,
  type RecordMacOptions,
} from '../../src/tokens/record-mac.ts';

/** Sealing keys with these ids; the secrets are the same in every process. */
export const testKeyring = (...kids: readonly string[]): SealingKeys =>
  openSealingKeys({
    sealing: kids.map((kid, index) => ({ kid, activeFrom: index, secret: kid.padEnd(43, '0') })),
  });

/** Authenticates records with one key. */
export function testAuthenticator(
  options: Partial<RecordMacOptions> = {},
  keyring = TEST_KEYS,
): KeyedRecordAuthenticator {
  const authenticator = createRecordAuthenticator({
    now: () => Date.now() / 1_000,
    ...options,
  });
  authenticator.setKeyring(keyring);
  return authenticator;
}

const TEST_KEYS = testKeyring('mtest');
