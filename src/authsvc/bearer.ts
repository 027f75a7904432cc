import { accessTokenRateLimitKey, type RateLimitKey } from '../grants/rate-limit-key.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { TokenApiService } from './service.ts';

/** For rate limits: the grant of an authentic access token, even an expired one. */
export async function identifyBearerCaller(
  { grantDeps }: TokenApiService,
  { request, clientAddress }: RequestContext,
): Promise<RateLimitKey> {
  const token = readBearerToken(request);
  return token.ok ? accessTokenRateLimitKey(grantDeps, token.value, clientAddress) : undefined;
}
