import { bearerFault } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import { phaseOf } from '../domain/grant.ts';
import { granted, refused } from '../domain/outcome.ts';
import { isEnded } from '../grants/revoke.ts';
import { bearerCaller, bearerOf } from './bearer.ts';
import type { Operation } from './service.ts';
import { BEARER_ERRORS } from './wire-errors.ts';

/** GET Authorize/Verify: what a token is worth now, and of which grant it is. */
export const verify: Operation = {
  name: 'verify',
  method: 'GET',
  head: true,
  path: '/authorize/verify',
  errors: BEARER_ERRORS,
  fault: { status: 503, code: 'temporarily_unavailable' },
  caller: bearerCaller,
  async answer(service, call) {
    const { desk } = service;
    const outcome = await bearerOf(service, call);
    if (!outcome.ok) return outcome;
    const bearer = outcome.value;
    const fault = bearerFault(bearer, {
      now: desk.now(),
      revoked: desk.store.revocations.isRevoked(bearer),
      clientKnown: desk.integrations.has(bearer.clientId),
      certificate: () => service.shownCertificate(call),
    });
    if (fault !== undefined) return refused({ reason: 'token_invalid', why: fault });
    const found = await desk.store.grants.read(bearer.grantId);
    if (found === undefined || phaseOf(found.record, found.now) !== 'live' || isEnded(desk, found.record))
      return refused({ reason: 'token_invalid', why: 'revoked' });
    const grant = found.record;
    return granted({
      status: 200,
      body: {
        application: bearer.clientId,
        identity: bearer.identity,
        scope: grant.scope,
        valid_for: bearer.expires - bearer.issuedAt,
        ...inThreeForms('access_issued_on', bearer.issuedAt),
        ...inThreeForms('grant_issued_on', grant.issuedAt),
        ...inThreeForms('expires', grant.refreshUntil),
      },
    });
  },
};

const inThreeForms = (name: string, time: Epoch) => ({
  [name]: `/Date(${time * 1_000})/`,
  [`${name}_ISO8601`]: new Date(time * 1_000).toISOString().replace('.000Z', 'Z'),
  [`${name}_unix_time`]: time,
});
