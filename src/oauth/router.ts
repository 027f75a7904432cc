import { formatErrorDescription } from '../grants/common-errors.ts';
import { createErrorResponse, type EndpointSet, handleEndpoint } from '../grants/endpoint.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createServiceReply } from '../http/service-response.ts';
import { deviceAuthorization, pushedAuthorization } from './authorization-requests.ts';
import { hasBasicCredentials, hasSecretInQuery } from './client-authentication.ts';
import { introspect } from './introspect.ts';
import { createMetadata } from './metadata.ts';
import { backchannelLogout, revoke } from './revoke.ts';
import type { OAuthEndpoint, OAuthService } from './service.ts';
import { token } from './token.ts';

const REALM = 'realm="gatehouse"';

const OAUTH_API: EndpointSet<OAuthEndpoint['name'], OAuthService> = {
  endpoints: [token, deviceAuthorization, pushedAuthorization, revoke, introspect],
  getRule: (name) => `oauth2:${name}`,
  getAuditName: (name) => `oauth2:${name}`,
  formatError: (error, description) => ({ error, error_description: formatErrorDescription(description) }),
  // RFC 6749 §5.2: the scheme that the client used. Certificates have none, but RFC 9110 §11.6.1 requires one.
  formatChallenge(name, code, context) {
    if (hasBasicCredentials(context)) return `Basic ${REALM}`;
    if (name !== 'introspect') return `Mutual ${REALM}`;
    return code === 'invalid_client' ? `Bearer ${REALM}, Mutual ${REALM}` : `Bearer ${REALM}, error="${code}"`;
  },
  // RFC 9449 §8.
  getRefusalHeaders: (refusal): Readonly<Record<string, string>> =>
    refusal.reason === 'proof_nonce_required' ? { 'dpop-nonce': refusal.nonce } : {},
  findRefusal: (_name, context) =>
    hasSecretInQuery(context)
      ? { reason: 'request_malformed', detail: 'Send parameters in the body, not in the query.' }
      : undefined,
};

/** Where a trusted issuer may send logout tokens. */
const OAUTH_API_WITH_LOGOUT: typeof OAUTH_API = {
  ...OAUTH_API,
  endpoints: [...OAUTH_API.endpoints, backchannelLogout],
};

/** The path of all OAuth endpoints, below the service path. */
export const OAUTH_PATH = '/oauth2';

const selectEndpoints = ({ logoutTokens }: OAuthService): typeof OAUTH_API =>
  logoutTokens === undefined ? OAUTH_API : OAUTH_API_WITH_LOGOUT;

export const listOAuthPaths = (service: OAuthService): readonly string[] =>
  selectEndpoints(service).endpoints.map(({ path }) => path);

export const handleOAuth = (service: OAuthService, context: RequestContext, subpath: string): Promise<Reply> =>
  handleEndpoint(selectEndpoints(service), service, context, subpath);

/** RFC 8414 §3: GET /.well-known/oauth-authorization-server, optionally followed by the service path. */
export function handleMetadata(service: OAuthService, context: RequestContext, issuerPath: string): Reply {
  const { method } = context.request;
  context.note({ rule: 'oauth2:metadata' });
  if (method !== 'GET' && method !== 'HEAD') {
    context.note({ decision: 'refused', reason: 'method_not_allowed' });
    return createServiceReply(
      context,
      createErrorResponse(OAUTH_API, 405, 'invalid_request', 'Use GET.', { allow: 'GET, HEAD' }),
    );
  }
  context.note({ decision: 'allowed' });
  return createServiceReply(context, { status: 200, body: createMetadata(service, issuerPath) });
}
