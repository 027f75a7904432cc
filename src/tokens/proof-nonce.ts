import type { Epoch } from '../domain/epoch.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import type { Sealer } from '../ports/sealer.ts';

/** Seconds. A nonce is accepted in its own period and in the next one. */
const PERIOD = 120;
const PURPOSE = 'DPoP nonce';
/** 132 bits. */
const MAC_LENGTH = 22;

/** RFC 9449 §8: a nonce is the MAC of a period, so that all replicas with the same keys accept it and nothing is stored. */
export function createProofNonces(sealer: Pick<Sealer, 'digest' | 'digests'>) {
  const getPeriod = (now: Epoch): number => Math.floor(now / PERIOD);
  return {
    create: (now: Epoch): string => sealer.digest(PURPOSE, String(getPeriod(now))).slice(0, MAC_LENGTH),
    accepts(nonce: string, now: Epoch): boolean {
      const period = getPeriod(now);
      return [period, period - 1]
        .flatMap((at) => sealer.digests(PURPOSE, String(at)))
        .map((mac) => isEqualConstantTime(mac.slice(0, MAC_LENGTH), nonce))
        .includes(true);
    },
  };
}
