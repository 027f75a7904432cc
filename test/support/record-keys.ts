import type { Keyring } from '../../src/tokens/keyring.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { newKeyring } from '../../src/tokens/keyring-file.ts';
import { type RecordMac, type RecordMacOptions, recordMac } from '../../src/tokens/record-mac.ts';

/** Sealing keys of these ids, each with the same secret in every process. */
export const keyringOf = (...kids: readonly string[]): Keyring =>
  openKeyring({
    version: 1,
    signing: newKeyring('EdDSA').signing,
    sealing: kids.map((kid, index) => ({ kid, activeFrom: index, secret: kid.padEnd(43, '0') })),
  });

/** Authenticates records as a process with one key does. */
export function anAuthenticator(options: Partial<RecordMacOptions> = {}, keyring = TEST_KEYS): RecordMac {
  const authenticator = recordMac({ now: () => Date.now() / 1_000, unauthenticated: 'accept', ...options });
  authenticator.use(keyring);
  return authenticator;
}

const TEST_KEYS = keyringOf('mtest');
