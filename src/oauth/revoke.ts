import { ok, refused } from '../domain/outcome.ts';
import { accessTokenRateLimitKey, refreshTokenRateLimitKey } from '../grants/rate-limit-key.ts';
import { revokeByToken } from '../grants/revoke.ts';
import { REVOCATION_ERRORS } from './error-tables.ts';
import { RevocationRequest } from './schemas.ts';
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
  async handle({ grantDeps }, context, parameters) {
    const token = parameters.get('token');
    if (token === undefined) return refused({ reason: 'token_missing' });
    const clientId = parameters.get('client_id');
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
