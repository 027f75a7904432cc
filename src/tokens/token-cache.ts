import type { Epoch, VerifiedToken } from '../domain/grant.ts';
import type { RejectedToken } from '../domain/token-rejection.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { flattenString } from '../lib/flat-string.ts';
import { Fault } from '../ports/fault.ts';

type Verification<Rejected> = Promise<VerifiedToken | Rejected | undefined>;

interface TokenCacheOptions<Rejected> {
  readonly cacheSize: number;
  /** A cached token is rejected once its key has been removed or retired. */
  readonly isAcceptedKey: (token: VerifiedToken, now: Epoch) => boolean;
  /** The function completes the verification. Anything else: the token is rejected by its form alone. */
  readonly prepare: (token: string, now: Epoch) => (() => Verification<Rejected>) | Rejected | undefined;
}

/** How many verified tokens each process caches, of each format. */
export const TOKEN_CACHE_SIZE = 20_000;

/** Limits memory while the store stalls or forged tokens arrive faster than they are rejected. */
const MAX_VERIFICATIONS = 10_000;

/**
 * Caches verified tokens by their exact canonical string. A cached token is returned synchronously; concurrent first
 * uses of a token share one verification. The caller checks expiry and revocation on every use.
 */
export function createTokenCache<Rejected extends RejectedToken>({
  cacheSize,
  isAcceptedKey,
  prepare,
}: TokenCacheOptions<Rejected>) {
  const cache = createBoundedCache<string, VerifiedToken>(cacheSize);
  const inFlight = new Map<string, Verification<Rejected>>();

  const verifyAndCache = async (token: string, verify: () => Verification<Rejected>): Verification<Rejected> => {
    const verified = await verify();
    // A flat copy: a substring would keep the request it was cut from in memory.
    if (verified !== undefined && verified.rejection === undefined) cache.set(flattenString(token), verified);
    return verified;
  };
  const verifyLimited = (token: string, verify: () => Verification<Rejected>): Verification<Rejected> => {
    if (inFlight.size >= MAX_VERIFICATIONS)
      throw new Fault('overloaded', 'too many access tokens are being verified at once');
    const verification = verifyAndCache(token, verify);
    inFlight.set(token, verification);
    const remove = (): unknown => inFlight.delete(token);
    verification.then(remove, remove);
    return verification;
  };
  const createReader =
    (startVerification: typeof verifyLimited) =>
    (token: string, now: Epoch): VerifiedToken | Rejected | undefined | Verification<Rejected> => {
      const cached = cache.get(token);
      if (cached !== undefined) return isAcceptedKey(cached, now) ? cached : undefined;
      const shared = inFlight.get(token);
      if (shared !== undefined) return shared;
      const verify = prepare(token, now);
      return typeof verify === 'function' ? startVerification(token, verify) : verify;
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
