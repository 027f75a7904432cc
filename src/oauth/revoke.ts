import { ok, type Refusal, refused } from '../domain/refusal.ts';
import { formatRejection, type RejectedToken, reject } from '../domain/token-rejection.ts';
import { accessTokenRateLimitKey, refreshTokenRateLimitKey } from '../grants/rate-limit-key.ts';
import { revokeAllGrants, revokeByToken, revokeForeignTokens } from '../grants/revoke.ts';
import { authenticateRequest, hasClientCredential } from './client-authentication.ts';
import { LOGOUT_ERRORS, REVOCATION_ERRORS } from './error-tables.ts';
import { LogoutRequest, RevocationRequest } from './schemas.ts';
import { formBody, type OAuthEndpoint } from './service.ts';

/**
 * RFC 7009: revokes the whole grant of a refresh or access token, even if the token has expired or was revoked. Unknown
 * tokens get the same response (§2.2). With client_id, only a grant of that client is revoked.
 */
export const revoke: OAuthEndpoint = {
  name: 'revoke',
  method: 'POST',
  path: '/oauth2/revoke',
  body: formBody(RevocationRequest),
  errors: () => REVOCATION_ERRORS,
  async identifyCaller({ grantDeps }, { clientAddress }, parameters) {
    const token = parameters.get('token');
    if (token === undefined) return undefined;
    return (
      refreshTokenRateLimitKey(grantDeps, token, clientAddress) ??
      (await accessTokenRateLimitKey(grantDeps, token, clientAddress))
    );
  },
  async handle(service, context, parameters) {
    const { grantDeps } = service;
    const token = parameters.get('token');
    if (token === undefined) return refused({ reason: 'token_missing' });
    let clientId = parameters.get('client_id');
    // RFC 7009 §2.1. Not required, even of a client that has credentials: a holder of the token can always end it.
    if (hasClientCredential(context, parameters)) {
      const client = await authenticateRequest(service, context, parameters, { required: false });
      if (!client.ok) return client;
      ({ clientId } = client.value);
    }
    const now = grantDeps.now();
    const refreshToken = grantDeps.tokenIssuer.openRefreshToken(token, now);
    const claims =
      refreshToken === undefined
        ? await grantDeps.tokenIssuer.openAccessToken(token, now)
        : { ...refreshToken, expires: now };
    if (claims === undefined) {
      context.note({ reason: 'unknown_token' });
      return ok({ status: 200, body: {} });
    }
    context.note({ grantId: claims.grantId });
    const revoked = await revokeByToken(grantDeps, claims, {
      by: refreshToken === undefined ? 'access_token' : 'refresh_token',
      ...(clientId !== undefined && { clientId }),
    });
    if (!revoked.ok) return revoked;
    if (revoked.value !== undefined)
      context.note({ identity: revoked.value.identity, clientId: revoked.value.clientId });
    return ok({ status: 200, body: {} });
  },
};

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
