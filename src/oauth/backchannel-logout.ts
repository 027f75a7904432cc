import { ok, refused } from '../domain/outcome.ts';
import type { Refusal } from '../domain/refusal.ts';
import { formatRejection, type RejectedToken, reject } from '../domain/token-rejection.ts';
import { revokeAllGrants, revokeForeignTokens } from '../grants/revoke.ts';
import { LOGOUT_ERRORS } from './error-tables.ts';
import { LogoutRequest } from './schemas.ts';
import { formBody, type OAuthEndpoint } from './service.ts';

const RETENTION_MARGIN = 86_400;

const describeRejection = ({ rejection }: RejectedToken): Refusal => ({
  reason: 'logout_token_invalid',
  ...(rejection.issuer !== undefined && { issuer: rejection.issuer }),
  detail: formatRejection(rejection),
});

/**
 * OpenID Connect Back-Channel Logout 1.0: a logout token of a trusted issuer revokes the tokens of a subject or a session.
 * A replayed logout token revokes what was issued since, at most for the time in which it is accepted.
 */
export const backchannelLogout: OAuthEndpoint = {
  name: 'logout',
  method: 'POST',
  path: '/oauth2/backchannel_logout',
  body: formBody(LogoutRequest),
  errors: () => LOGOUT_ERRORS,
  async handle({ grantDeps, logoutTokens }, context, parameters) {
    const token = parameters.get('logout_token');
    if (token === undefined) return refused({ reason: 'token_missing' });
    const logout = (await logoutTokens?.read(token, grantDeps.now())) ?? reject('logout_not_accepted');
    if ('rejection' in logout) return refused(describeRejection(logout));
    const { issuer, identity, sessionId, tokenLifetime } = logout;
    const longestGrant = Math.max(
      tokenLifetime,
      ...grantDeps.integrations.values().map(({ grantLifetime }) => grantLifetime),
    );
    if (sessionId !== undefined) await revokeForeignTokens(grantDeps, sessionId, tokenLifetime + RETENTION_MARGIN);
    if (identity !== undefined) await revokeAllGrants(grantDeps, { of: 'identity', identity }, longestGrant);
    context.note({ ...(identity !== undefined && { identity }) });
    grantDeps.log.audit('issuer_logout', {
      issuer,
      ...(identity !== undefined && { identity }),
      what: identity === undefined ? 'session' : 'subject',
    });
    return ok({ status: 200, body: {} });
  },
};
