import { handleTokenApi, TOKEN_API_PATHS } from '../authsvc/router.ts';
import type { TokenApiService } from '../authsvc/service.ts';
import type { Settings } from '../config/schema.ts';
import { parseTarget } from '../domain/request-target.ts';
import { normalizeHost } from '../domain/rule-matcher.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createCorsCheck } from '../oauth/cors.ts';
import { handleJwks, JWKS_PATH } from '../oauth/jwks.ts';
import { AUTHORIZATION_PATH } from '../oauth/metadata.ts';
import { handleOpenApi, OPENAPI_PATH, serializeOpenApi } from '../oauth/openapi.ts';
import { handleResourceMetadata } from '../oauth/resource-metadata.ts';
import { handleMetadata, handleOAuth, listOAuthPaths, OAUTH_PATH } from '../oauth/router.ts';
import type { OAuthService } from '../oauth/service.ts';
import { isNavigation } from '../pages/fetch-metadata.ts';
import type { createPages } from '../pages/router.ts';
import type { ForwardAuth } from '../proxy/policy/forward-auth.ts';
import { readRequestHead } from '../proxy/policy/request-head.ts';
import { prefersHtml } from '../proxy/policy/root-page.ts';
import type { ReverseProxy } from '../proxy/proxy.ts';
import type { Keyring } from '../tokens/keyring.ts';
import type { PagesOrigin } from './pages-origin.ts';
import { ServicePaths } from './service-paths.ts';

export interface ServiceRouterDeps {
  readonly settings: Settings;
  readonly service: TokenApiService;
  readonly oauth: OAuthService;
  readonly pages: ReturnType<typeof createPages>;
  readonly pagesOrigin: PagesOrigin;
  readonly forwardAuth: ForwardAuth;
  readonly proxy: ReverseProxy;
  readonly keyring: Keyring;
  readonly now: () => number;
}

type Handled = void | Promise<void>;

export interface ServiceRouter {
  handle(context: RequestContext): Handled;
  /** Is this request target served by gatehouse itself, and not proxied? */
  readonly isServiceTarget: (url: string) => boolean;
}

const PAGES_PATH = '/device';
const isBelow = (prefix: string, path: string): boolean => path === prefix || path.startsWith(`${prefix}/`);

/** Whether a person opened the address in a browser: they get a page where other clients get JSON. */
const isOpenedInBrowser = ({ request: { method, headers } }: RequestContext): boolean =>
  (method === 'GET' || method === 'HEAD') && prefersHtml(headers.accept) && isNavigation(headers);

/** The endpoints that apps in browsers call. */
const APP_ENDPOINTS: ReadonlySet<string> = new Set(['/oauth2/token', '/oauth2/par', '/oauth2/revoke']);

/** Dispatches to the token API, the OAuth endpoints, the pages and forward-auth; everything else goes to the proxy. */
export function createServiceRouter(deps: ServiceRouterDeps): ServiceRouter {
  const { settings, service, oauth, pages, pagesOrigin, forwardAuth, proxy, keyring, now } = deps;
  const paths = new ServicePaths(settings);
  const openApi = serializeOpenApi(settings.publicUrl, service.path);
  const publicHost = normalizeHost(new URL(settings.publicUrl).host);

  const handlePage = (context: RequestContext, path: string, host: string): Handled => {
    context.note({ rule: 'pages' });
    const pagePath = path.slice(PAGES_PATH.length);
    return pagesOrigin.host === undefined || host === pagesOrigin.host
      ? pages.handle(context, pagePath)
      : pages.handleOtherHost(context, pagePath, host === publicHost);
  };

  const hasCode = oauth.grantDeps.integrations.values().some(hasCodeGrant);
  const isAuthorization = (path: string, context: RequestContext): boolean =>
    path === AUTHORIZATION_PATH && (hasCode || isOpenedInBrowser(context));
  const isPage = (path: string | undefined, context: RequestContext): boolean =>
    path !== undefined && (isBelow(PAGES_PATH, path) || isAuthorization(path, context));
  const handleAuthorization = (context: RequestContext, path: string, host: string): Handled => {
    context.note({ rule: 'oauth2:authorize' });
    return pagesOrigin.host === undefined || host === pagesOrigin.host
      ? pages.handleAuthorization(context)
      : pages.redirectAuthorization(context, service.path + path, host === publicHost);
  };

  const isPreflight = createCorsCheck(oauth.grantDeps.integrations);
  const handleOAuthEndpoint = (context: RequestContext, path: string): Handled =>
    APP_ENDPOINTS.has(path) && isPreflight(context, 'POST') ? undefined : handleOAuth(oauth, context, path);

  const endpointPaths = new Set([...TOKEN_API_PATHS, ...listOAuthPaths(oauth), JWKS_PATH, OPENAPI_PATH]);

  /** Paths below a service path; the first match wins. */
  const routes: readonly {
    readonly matches: (path: string, context: RequestContext) => boolean;
    readonly handle: (context: RequestContext, path: string, host: string) => Handled;
  }[] = [
    { matches: (path) => isBelow(PAGES_PATH, path), handle: handlePage },
    {
      matches: (path) => path === JWKS_PATH,
      handle: (context) => (isPreflight(context, 'GET') ? undefined : handleJwks(keyring, context, now())),
    },
    { matches: (path) => path === OPENAPI_PATH, handle: (context) => handleOpenApi(openApi, context) },
    { matches: isAuthorization, handle: handleAuthorization },
    {
      matches: (path) => isBelow(OAUTH_PATH, path),
      handle: handleOAuthEndpoint,
    },
    { matches: () => true, handle: (context, path) => handleTokenApi(service, context, path) },
  ];

  return {
    handle(context) {
      const { url = '' } = context.request;
      if (!paths.mayInclude(url)) return proxy.handle(context);
      const forwardAuthPath = paths.matchForwardAuth(url);
      if (forwardAuthPath !== undefined) return forwardAuth.handle(context, forwardAuthPath);
      const target = readServiceTarget(proxy, context);
      if (target === undefined) return proxy.handle(context);
      const { path, host } = target;
      const servicePath = paths.parse(path);
      const isPageRequest = isPage(servicePath, context);
      const isUnknown = servicePath !== undefined && !isPageRequest && !endpointPaths.has(servicePath);
      if (isUnknown && isOpenedInBrowser(context)) return pages.handleUnknownPath(context);
      // A separate host of the pages serves nothing else; the proxy rejects other requests to it.
      if (host === pagesOrigin.host && !isPageRequest) return proxy.handle(context);
      if (servicePath === undefined) {
        const issuer = paths.matchMetadata(path);
        const resourcePath = issuer === undefined ? paths.matchResourceMetadata(path) : undefined;
        if (issuer === undefined && resourcePath === undefined) return proxy.handle(context);
        if (isPreflight(context, 'GET')) return undefined;
        return issuer === undefined
          ? handleResourceMetadata(context, proxy.resourceMetadata?.find(host, resourcePath ?? ''))
          : handleMetadata(oauth, context, issuer);
      }
      return routes.find(({ matches }) => matches(servicePath, context))?.handle(context, servicePath, host);
    },
    isServiceTarget(url) {
      if (!paths.mayInclude(url)) return false;
      if (paths.matchForwardAuth(url) !== undefined) return true;
      const { isOwnAuthority: isServedAuthority } = proxy.policy;
      const parsed = parseTarget(url, { method: 'GET', isServedAuthority, encodedSlash: true });
      return parsed.kind === 'target' && paths.includes(parsed.target.path);
    },
  };
}

/** Path and host of a request; undefined for an ambiguous head or target, or a host that is not served: the proxy rejects it. */
function readServiceTarget(
  { policy, acceptsHost }: ReverseProxy,
  { request, peer }: RequestContext,
): { readonly path: string; readonly host: string } | undefined {
  const parsed = parseTarget(request.url ?? '', {
    method: request.method ?? '',
    isServedAuthority: policy.isOwnAuthority,
    encodedSlash: true,
  });
  const head = readRequestHead(request);
  if (parsed.kind !== 'target' || !head.ok) return undefined;
  const { path, authority } = parsed.target;
  if (authority === undefined && !acceptsHost(head.head.host, peer, request.socket)) return undefined;
  return { path, host: normalizeHost(authority ?? head.head.host) };
}
