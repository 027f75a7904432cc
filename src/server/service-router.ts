import { handleTokenApi, TOKEN_API_PATHS } from '../authsvc/token-api.ts';
import { parseTarget } from '../domain/request-target.ts';
import { normalizeHost } from '../domain/rule-matcher.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createCorsPolicy } from '../oauth/cors.ts';
import {
  AUTHORIZATION_PATH,
  handleJwks,
  handleOpenApi,
  handleResourceMetadata,
  JWKS_PATH,
  OPENAPI_PATH,
  serializeOpenApi,
} from '../oauth/metadata.ts';
import { handleMetadata, handleOAuth, listOAuthPaths, OAUTH_PATH } from '../oauth/router.ts';
import { isNavigation } from '../pages/form.ts';
import { EXT_AUTHZ_PATH } from '../proxy/policy/ext-authz.ts';
import { prefersHtml } from '../proxy/policy/root-page.ts';
import type { ReverseProxy } from '../proxy/proxy.ts';
import {
  type BuildContext,
  createConfirmationPages,
  createExtAuthzEndpoint,
  createForwardAuthEndpoint,
  createOAuthService,
  createRequestCheck,
  createTokenApiService,
} from './create-handlers.ts';
import { getPagesOrigin, ServicePaths } from './service-paths.ts';

type PendingReply = Reply | Promise<Reply>;

const PAGES_PATH = '/device';
const isBelow = (prefix: string, path: string): boolean => path === prefix || path.startsWith(`${prefix}/`);

/** Whether a person opened the address in a browser: they get a page where other clients get JSON. */
const isOpenedInBrowser = ({ request: { method, headers } }: RequestContext): boolean =>
  (method === 'GET' || method === 'HEAD') && prefersHtml(headers['accept']) && isNavigation(headers);

/** The endpoints that apps in browsers call. */
const APP_ENDPOINTS: ReadonlySet<string> = new Set(['/oauth2/token', '/oauth2/par', '/oauth2/revoke']);

const withFields = (reply: Reply, fields: Readonly<Record<string, string>>): Reply => ({
  ...reply,
  headers: { ...fields, ...reply.headers },
});

/** Serves the token API, the OAuth endpoints, the pages, forward-auth and external authorization. */
export function createServiceRouter(context: BuildContext, proxy: ReverseProxy) {
  const { settings, keyring, processState } = context;
  const service = createTokenApiService(context);
  const oauth = createOAuthService(context, service, proxy);
  const pages = createConfirmationPages(context, service, proxy);
  const check = createRequestCheck(context, proxy);
  const forwardAuth = createForwardAuthEndpoint(context, check);
  const extAuthz = createExtAuthzEndpoint(context, check, proxy);
  const pagesOrigin = getPagesOrigin(settings);
  const paths = new ServicePaths(settings);
  const openApi = serializeOpenApi(settings.publicUrl, service.path);
  const publicHost = normalizeHost(new URL(settings.publicUrl).host);
  const isPagesHost = (host: string): boolean => pagesOrigin.host === undefined || host === pagesOrigin.host;

  const servePage = (context: RequestContext, path: string, host: string): PendingReply => {
    context.note({ rule: 'pages' });
    const pagePath = path.slice(PAGES_PATH.length);
    return isPagesHost(host)
      ? pages.handle(context, pagePath)
      : pages.handleOtherHost(context, pagePath, host === publicHost);
  };

  const hasCode = oauth.grantDeps.integrations.values().some(hasCodeGrant);
  const isAuthorization = (path: string, context: RequestContext): boolean =>
    path === AUTHORIZATION_PATH && (hasCode || isOpenedInBrowser(context));
  const isPage = (path: string | undefined, context: RequestContext): boolean =>
    path !== undefined && (isBelow(PAGES_PATH, path) || isAuthorization(path, context));
  const serveAuthorization = (context: RequestContext, path: string, host: string): PendingReply => {
    context.note({ rule: 'oauth2:authorize' });
    return isPagesHost(host)
      ? pages.handleAuthorization(context)
      : pages.redirectAuthorization(context, service.path + path, host === publicHost);
  };

  const checkCors = createCorsPolicy(oauth.grantDeps.integrations);
  /** `methods`: those that apps may use. */
  const serveToApps = (context: RequestContext, methods: string, createReply: () => PendingReply): PendingReply => {
    const cors = checkCors(context, methods);
    if ('preflight' in cors) return cors.preflight;
    const reply = createReply();
    return reply instanceof Promise
      ? reply.then((settled) => withFields(settled, cors.fields))
      : withFields(reply, cors.fields);
  };

  const endpointPaths = new Set([...TOKEN_API_PATHS, ...listOAuthPaths(oauth), JWKS_PATH, OPENAPI_PATH]);

  /** `path`: below a service path. */
  const serveServicePath = (context: RequestContext, path: string, host: string): PendingReply => {
    if (isBelow(PAGES_PATH, path)) return servePage(context, path, host);
    if (path === JWKS_PATH) return serveToApps(context, 'GET', () => handleJwks(keyring, context, processState.now()));
    if (path === OPENAPI_PATH) return handleOpenApi(openApi, context);
    if (isAuthorization(path, context)) return serveAuthorization(context, path, host);
    if (APP_ENDPOINTS.has(path)) return serveToApps(context, 'POST', () => handleOAuth(oauth, context, path));
    return isBelow(OAUTH_PATH, path) ? handleOAuth(oauth, context, path) : handleTokenApi(service, context, path);
  };

  /** RFC 8414 and RFC 9728. Undefined: another path. */
  const serveMetadata = (context: RequestContext, path: string, host: string): PendingReply | undefined => {
    const issuer = paths.matchMetadata(path);
    if (issuer !== undefined) return serveToApps(context, 'GET', () => handleMetadata(oauth, context, issuer));
    const resourcePath = paths.matchResourceMetadata(path);
    if (resourcePath === undefined) return undefined;
    return serveToApps(context, 'GET', () =>
      handleResourceMetadata(context, proxy.resourceMetadata?.find(host, resourcePath)),
    );
  };

  return {
    /** Returns undefined if the request is not for the service; the proxy serves or rejects it. */
    serve: (context: RequestContext): PendingReply | undefined => {
      const { url } = context.request;
      if (!paths.mayInclude(url)) return undefined;
      const forwardAuthPath = paths.matchForwardAuth(url);
      if (forwardAuthPath !== undefined) return forwardAuth.handle(context, forwardAuthPath);
      if (url === EXT_AUTHZ_PATH) return extAuthz.handle(context);
      const target = readServiceTarget(proxy, context);
      if (target === undefined) return undefined;
      const { path, host } = target;
      const servicePath = paths.parse(path);
      const isPageRequest = isPage(servicePath, context);
      const isUnknown = servicePath !== undefined && !isPageRequest && !endpointPaths.has(servicePath);
      if (isUnknown && isOpenedInBrowser(context)) return pages.handleUnknownPath(context);
      // A separate host of the pages serves nothing else; the proxy rejects other requests to it.
      if (host === pagesOrigin.host && !isPageRequest) return undefined;
      return servicePath === undefined
        ? serveMetadata(context, path, host)
        : serveServicePath(context, servicePath, host);
    },
    /** Does another gateway ask about a request? */
    isForwardAuth: (url: string): boolean => paths.matchForwardAuth(url) !== undefined,
    /** Is this request target served by gatehouse itself, and not proxied? */
    isServiceTarget: (url: string): boolean => {
      if (!paths.mayInclude(url)) return false;
      if (paths.matchForwardAuth(url) !== undefined) return true;
      const { isOwnAuthority: isServedAuthority } = proxy.policy;
      const parsed = parseTarget(url, { method: 'GET', isServedAuthority, encodedSlash: true });
      return parsed.kind === 'target' && paths.includes(parsed.target.path);
    },
  };
}

/** Path and host of a request; undefined for an ambiguous target, or a host that is not served: the proxy rejects it. */
function readServiceTarget(
  { policy, acceptsHost }: ReverseProxy,
  { request, peer, local }: RequestContext,
): { readonly path: string; readonly host: string } | undefined {
  const { method, url, head } = request;
  const parsed = parseTarget(url, { method, isServedAuthority: policy.isOwnAuthority, encodedSlash: true });
  if (parsed.kind !== 'target') return undefined;
  const { path, authority } = parsed.target;
  if (authority === undefined && !acceptsHost(head.host, peer, local)) return undefined;
  return { path, host: normalizeHost(authority ?? head.host) };
}
