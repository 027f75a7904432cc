import { isAllowedHost } from '../domain/client-document.ts';
import type { Integration } from '../domain/integration.ts';
import { isLoopback, matchesRedirectUri } from '../domain/redirect-uri.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';

const ALLOWED_HEADERS = 'authorization, content-type, dpop, mcp-protocol-version';
const MAX_AGE = '3600';

/** The response to a preflight, or the fields of the response to another request. */
export type CorsResult = { readonly preflight: Reply } | { readonly fields: Readonly<Record<string, string>> };

const NO_FIELDS: CorsResult = { fields: {} };

/** The origin of an app in a browser; undefined for the private-use scheme of a native app. */
function getAppOrigin(redirectUri: string): string | undefined {
  if (!redirectUri.startsWith('https://') && !isLoopback(redirectUri)) return undefined;
  return new URL(redirectUri).origin;
}

/**
 * Lets single-page apps call the OAuth endpoints and read metadata: scripts on the origins of registered redirect URIs and on the
 * hosts of client documents. Never with credentials: apps send what they have in the request itself.
 */
export function createCorsPolicy(
  integrations: ReadonlyMap<string, Integration>,
): (context: RequestContext, methods: string) => CorsResult {
  const origins = new Set(
    integrations
      .values()
      .filter(hasCodeGrant)
      .flatMap(({ redirectUris = [] }) => redirectUris.map(getAppOrigin))
      .filter((origin) => origin !== undefined),
  );
  const documentHosts = [...integrations.values()].flatMap((integration) => integration.documentHosts ?? []);
  const isAppOrigin = (origin: string): boolean =>
    origins.has(origin) ||
    origins.values().some((known) => matchesRedirectUri(known, origin)) ||
    (documentHosts.length > 0 &&
      /^https:\/\/[a-z0-9.:-]+$/.test(origin) &&
      URL.canParse(origin) &&
      isAllowedHost(documentHosts, new URL(origin)));

  return (context, methods) => {
    const { request } = context;
    if (origins.size === 0 && documentHosts.length === 0) return NO_FIELDS;
    const origin = getSingleHeader(request.rawHeaders, 'origin');
    const vary = { vary: 'Origin' };
    if (origin === undefined || !isAppOrigin(origin)) return { fields: vary };
    const fields = { ...vary, 'access-control-allow-origin': origin };
    if (request.method !== 'OPTIONS')
      return {
        fields: { ...fields, 'access-control-expose-headers': 'dpop-nonce, www-authenticate, retry-after' },
      };
    context.note({ decision: 'allowed', reason: 'preflight' });
    const headers = {
      ...fields,
      'access-control-allow-methods': methods,
      'access-control-allow-headers': ALLOWED_HEADERS,
      'access-control-max-age': MAX_AGE,
    };
    return { preflight: { status: 204, headers } };
  };
}
