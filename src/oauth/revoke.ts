import { ok, refused } from '../domain/outcome.ts';
import { accessTokenRateLimitKey, refreshTokenRateLimitKey } from '../grants/rate-limit-key.ts';
import { revokeByToken } from '../grants/revoke.ts';
import { authenticateRequest, hasClientCredential } from './client-authentication.ts';
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
