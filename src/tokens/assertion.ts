import type { Epoch, VerifiedToken } from '../domain/grant.ts';
import { formatOAuthScope, type Scope } from '../domain/scope.ts';
import { createHiddenProperty } from '../lib/hidden-property.ts';
import { formatProfileClaims } from './access-token.ts';
import { type Keyring, signJwt } from './keyring.ts';

/** Lets an upstream verify the caller without trusting the network between gatehouse and itself. */
const ASSERTION_TYPE = 'gatehouse-assertion+jwt';

/** Seconds. An assertion is reused for half of its lifetime, so that the upstream has the other half to verify it. */
const LIFETIME = 60;
const REUSE_SECONDS = 30;

interface AssertedCaller {
  readonly bearer: VerifiedToken;
  readonly scope: Scope;
}

interface CachedAssertion {
  readonly jwt: string;
  readonly signedAt: Epoch;
}

/** Signs one assertion per token and audience. */
export function createAssertionSigner(keyring: Keyring, issuer: string) {
  const cache = createHiddenProperty<AssertedCaller, Map<string, CachedAssertion>>();

  const signAssertion = ({ bearer, scope }: AssertedCaller, audience: string, now: Epoch): string => {
    const issuedAt = Math.floor(now);
    return signJwt(keyring.getCurrentSigningKey(now), ASSERTION_TYPE, {
      iss: issuer,
      aud: audience,
      sub: bearer.identity,
      client_id: bearer.clientId,
      scope: formatOAuthScope(scope),
      gid: bearer.grantId,
      ...formatProfileClaims(bearer.profile),
      iat: issuedAt,
      exp: Math.min(issuedAt + LIFETIME, bearer.expires),
    });
  };

  return (caller: AssertedCaller, audience: string, now: Epoch): string => {
    const byAudience = cache.get(caller) ?? new Map<string, CachedAssertion>();
    const cached = byAudience.get(audience);
    // After the clock was set back, a new one is signed as well.
    if (cached !== undefined && now >= cached.signedAt && now < cached.signedAt + REUSE_SECONDS) return cached.jwt;
    const jwt = signAssertion(caller, audience, now);
    byAudience.set(audience, { jwt, signedAt: now });
    cache.set(caller, byAudience);
    return jwt;
  };
}
