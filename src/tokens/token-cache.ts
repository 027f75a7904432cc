import type { Epoch } from '../domain/epoch.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { flattenString } from '../lib/flat-string.ts';
import { Fault } from '../ports/fault.ts';

type Verification = Promise<VerifiedToken | undefined>;

export interface TokenCacheOptions {
  readonly cacheSize: number;
  /** A cached token is rejected once its key has been removed or retired. */
  readonly isAcceptedKey: (token: VerifiedToken, now: Epoch) => boolean;
  /** Undefined: the token is rejected by its form alone. Otherwise the function completes the verification. */
  readonly prepare: (token: string, now: Epoch) => (() => Verification) | undefined;
}

/** Limits memory while the store stalls or forged tokens arrive faster than they are rejected. */
const MAX_VERIFICATIONS = 10_000;

/**
 * Caches verified tokens by their exact canonical string. A cached token is returned synchronously; concurrent first
 * uses of a token share one verification. The caller checks expiry and revocation on every use.
 */
export function createTokenCache({ cacheSize, isAcceptedKey, prepare }: TokenCacheOptions) {
  const cache = createBoundedCache<string, VerifiedToken>(cacheSize);
  const inFlight = new Map<string, Verification>();

  const verifyAndCache = async (token: string, verify: () => Verification): Verification => {
    const verified = await verify();
    // A flat copy: a substring would keep the request it was cut from in memory.
    if (verified !== undefined) cache.set(flattenString(token), verified);
    return verified;
  };
  const verifyLimited = (token: string, verify: () => Verification): Verification => {
    if (inFlight.size >= MAX_VERIFICATIONS)
      throw new Fault('overloaded', 'too many access tokens are being verified at once');
    // `finally` runs later even if `verify` throws synchronously, so the entry is always removed after it was added.
    const verification = verifyAndCache(token, verify).finally(() => inFlight.delete(token));
    inFlight.set(token, verification);
    return verification;
  };
  const createReader =
    (startVerification: typeof verifyLimited) =>
    (token: string, now: Epoch): VerifiedToken | undefined | Verification => {
      const cached = cache.get(token);
      if (cached !== undefined) return isAcceptedKey(cached, now) ? cached : undefined;
      const shared = inFlight.get(token);
      if (shared !== undefined) return shared;
      const verify = prepare(token, now);
      return verify && startVerification(token, verify);
    };

  return {
    /** Throws a `Fault` if too many tokens are being verified. */
    read: createReader(verifyLimited),
    /** For revocations, which are never shed under load: neither subject to the limit nor counted in it. */
    readUnlimited: createReader(verifyAndCache),
    /** Tokens in memory: cached, and being verified. */
    get size(): number {
      return cache.size + inFlight.size;
    },
  };
}
