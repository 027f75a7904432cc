/**
 * Measures what record MACs add to a refresh, which verifies one and computes one: `node bench/record-mac.ts`. Runs in a loop
 * on one grant, without a store.
 */

import { openSealingKeys } from '../src/tokens/keyring.ts';
import { createKeyringFile } from '../src/tokens/keyring-file.ts';
import { createRecordAuthenticator } from '../src/tokens/record-mac.ts';
import { loadAverage } from './support/linux.ts';

const ROUNDS = 100;
const REFRESHES = 1_000;

const mac = createRecordAuthenticator({ now: () => Date.now() / 1_000 });
mac.setKeyring(openSealingKeys(createKeyringFile('EdDSA')));
const json = JSON.stringify({
  v: 1,
  r: {
    id: 'abcdefghijklmnopqrstuv',
    clientId: 'report-runner',
    identity: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
    grantType: 'certificate',
    scope: 'reports:read,write;files:read',
    issuedAt: 1_800_000_000,
    refreshUntil: 1_807_776_000,
    generation: 7,
    rotatedAt: 1_800_000_000.123,
    accessExpires: 1_800_003_600,
    keys: { signing: 'sABCDEFGH', sealing: 'mABCDEFGH' },
    format: 'jwt',
  },
});

const refresh = (count: number): void => {
  const context = `abcdefghijklmnop${count} 1807862400000`;
  const place = { kind: 'grants', id: 'abcdefghijklmnopqrstuv', context } as const;
  const sealed = mac.seal(place, json);
  if (mac.check(place, sealed, true, false) !== 'authentic') throw new Error('the MAC does not verify');
};

const rounds = Array.from({ length: ROUNDS }, () => {
  const began = performance.now();
  for (let count = 0; count < REFRESHES; count += 1) refresh(count);
  return ((performance.now() - began) * 1_000) / REFRESHES;
}).toSorted((a, b) => a - b);
const at = (part: number): string => (rounds[Math.floor((rounds.length - 1) * part)] ?? 0).toFixed(1);
process.stdout.write(
  `one MAC verified and one computed: ${at(0)} µs (best of ${ROUNDS}), ${at(0.5)} µs (median); load average ${loadAverage()}\n`,
);
