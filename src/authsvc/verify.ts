import type { Epoch } from '../domain/epoch.ts';
import { getGrantState } from '../domain/grant.ts';
import { ok, refused } from '../domain/outcome.ts';
import { findTokenFault } from '../domain/verified-token.ts';
import { isGrantRevoked } from '../grants/revoke.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import { identifyBearerCaller } from './bearer.ts';
import { BEARER_ERRORS } from './error-tables.ts';
import type { TokenApiEndpoint } from './service.ts';

/** GET Authorize/Verify: the validity of an access token, and its grant. */
export const verify: TokenApiEndpoint = {
  name: 'verify',
  method: 'GET',
  allowsHead: true,
  path: '/authorize/verify',
  errors: () => BEARER_ERRORS,
  identifyCaller: identifyBearerCaller,
  async handle(service, context) {
    const { grantDeps } = service;
    const token = readBearerToken(context.request);
    if (!token.ok) return token;
    const bearer = await grantDeps.tokenIssuer.readAccessToken(token.value, grantDeps.now());
    if (bearer === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
    context.note({ identity: bearer.identity, clientId: bearer.clientId, grantId: bearer.grantId });
    const certificate = bearer.boundTo === undefined ? undefined : await service.getPresentedCertificate(context);
    const fault = findTokenFault(bearer, {
      now: grantDeps.now(),
      revoked: grantDeps.store.revocations.isRevoked(bearer),
      clientKnown: grantDeps.integrations.has(bearer.clientId),
      certificate: () => certificate,
    });
    if (fault !== undefined) return refused({ reason: 'token_invalid', fault });
    // The response has no audience: an API that asks here would accept tokens of another one.
    if (bearer.audience !== undefined) return refused({ reason: 'token_invalid', fault: 'wrong_audience' });
    const found = await grantDeps.store.grants.read(bearer.grantId);
    if (
      found === undefined ||
      getGrantState(found.record, found.now) !== 'live' ||
      isGrantRevoked(grantDeps, found.record)
    )
      return refused({ reason: 'token_invalid', fault: 'revoked' });
    const grant = found.record;
    return ok({
      status: 200,
      body: {
        application: bearer.clientId,
        identity: bearer.identity,
        scope: grant.scope,
        valid_for: bearer.expires - bearer.issuedAt,
        ...formatTimestamp('access_issued_on', bearer.issuedAt),
        ...formatTimestamp('grant_issued_on', grant.issuedAt),
        ...formatTimestamp('expires', grant.refreshUntil),
      },
    });
  },
};

const formatTimestamp = (name: string, time: Epoch) => ({
  [name]: `/Date(${time * 1_000})/`,
  [`${name}_ISO8601`]: new Date(time * 1_000).toISOString().replace('.000Z', 'Z'),
  [`${name}_unix_time`]: time,
});
