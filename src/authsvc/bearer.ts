import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';
import { accessTokenRateLimitKey, type RateLimitKey } from '../grants/rate-limit-key.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { TokenApiService } from './service.ts';

/** The authentic access token of a request. The caller checks expiry and revocation. */
export async function authenticateBearer(
  service: TokenApiService,
  context: RequestContext,
): Promise<Outcome<VerifiedToken>> {
  const token = readBearerToken(context.request);
  if (!token.ok) return token;
  const bearer = await service.grantDeps.tokenIssuer.readAccessToken(token.value, service.grantDeps.now());
  if (bearer === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
  context.note({ identity: bearer.identity, clientId: bearer.clientId, grantId: bearer.grantId });
  return ok(bearer);
}

/** For rate limits: the grant of an authentic access token, even an expired one. */
export async function identifyBearerCaller(
  { grantDeps }: TokenApiService,
  { request, clientAddress }: RequestContext,
): Promise<RateLimitKey> {
  const token = readBearerToken(request);
  return token.ok ? accessTokenRateLimitKey(grantDeps, token.value, clientAddress) : undefined;
}
