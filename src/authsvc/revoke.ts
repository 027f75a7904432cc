import { ok, refused } from '../domain/outcome.ts';
import { revokeByToken } from '../grants/revoke.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import { identifyBearerCaller } from './bearer.ts';
import { BEARER_ERRORS } from './error-tables.ts';
import type { TokenApiEndpoint } from './service.ts';

/**
 * GET Revoke/Token: revokes the whole grant. Any authentic token suffices, even if it has expired, was superseded or
 * revoked, or is presented without its certificate.
 */
export const revoke: TokenApiEndpoint = {
  name: 'revoke',
  method: 'GET',
  path: '/revoke/token',
  errors: () => BEARER_ERRORS,
  identifyCaller: identifyBearerCaller,
  async handle(service, context) {
    const { 'sec-purpose': secPurpose = '', purpose: oldPurpose = '' } = context.request.headers;
    if (/prefetch|prerender/i.test(String([secPurpose, oldPurpose])))
      return refused({
        reason: 'request_malformed',
        detail: 'A prefetch request does not revoke the token.',
      });
    const token = readBearerToken(context.request);
    if (!token.ok) return token;
    const { grantDeps } = service;
    // Needs no store read, so that this process rejects the token even while the store is unreachable.
    const claims = await grantDeps.tokenIssuer.openAccessToken(token.value, grantDeps.now());
    if (claims === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
    context.note({ grantId: claims.grantId });
    const revoked = await revokeByToken(grantDeps, claims, { by: 'access_token' });
    if (!revoked.ok) return revoked;
    if (revoked.value !== undefined)
      context.note({ identity: revoked.value.identity, clientId: revoked.value.clientId });
    return ok({ status: 200, body: {} });
  },
};
