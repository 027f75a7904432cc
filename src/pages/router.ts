import { formatUserCode } from '../domain/device-request.ts';
import type { Language } from '../domain/language.ts';
import { forRequest } from '../grants/deps.ts';
import { offersDeviceFlow } from '../grants/device-grant.ts';
import { getQuery } from '../http/query.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { OpenIdProvider } from '../identity/openid-provider.ts';
import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { errorFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { parseCookies } from './cookies.ts';
import { isNavigation, readForm } from './form.ts';
import { type AuthorizationContext, startAuthorization } from './handlers/authorize.ts';
import { decide, showResult, showReview } from './handlers/decide.ts';
import { readCodeFromQuery, showCodeForm, submitCode } from './handlers/enter-code.ts';
import { showGrant, showGrants, submitRevocation } from './handlers/my-grants.ts';
import { createPendingSignInCookie, handleOpenIdCallback, startOpenIdSignIn } from './handlers/openid-sign-in.ts';
import { showSignIn, signOut, submitCertificate, submitPassword } from './handlers/sign-in.ts';
import {
  type FormHandler,
  getFormSubject,
  type PageDeps,
  type PageHandler,
  type PagePath,
  type PageResponse,
} from './page-handler.ts';
import { createSessions, type Session, sessionCookieName } from './session.ts';
import {
  createBrowserCookie,
  createTransactionUrls,
  isTransactionPath,
  readTransaction,
  type Transaction,
} from './transaction.ts';
import { FORM_TOKEN, redirectPage } from './views/device-pages.ts';
import { createPageReplies } from './views/layout.ts';
import { MESSAGES, negotiateLanguage, readLanguage } from './views/messages/languages.ts';
import {
  authorizationNotice,
  faultPage,
  internalErrorPage,
  noticePage,
  tooManyAttemptsPage,
} from './views/notice-pages.ts';

interface PagesOptions
  extends Pick<PageDeps, 'grantDeps' | 'rateLimits' | 'attemptLimits' | 'theme' | 'getCertificate'> {
  /** Path of the pages, such as `/authsvc/device`. */
  readonly basePath: string;
  /** Origin of the pages. */
  readonly url: string;
  /** Seconds. */
  readonly sessionLifetime: number;
  readonly bodyTimeout: number;
  /** Whether it is ambiguous which client certificate a front proxy forwards. */
  readonly isCertificateAmbiguous: (context: RequestContext) => boolean;
  readonly providers: readonly OpenIdProvider[];
  readonly authorization: AuthorizationContext;
}

interface PageRoute {
  readonly get?: PageHandler;
  readonly post?: FormHandler;
  /** The page that shows the form. */
  readonly returnTo: PagePath;
  /** Reachable without a session. */
  readonly isEntryPage?: true;
}

const PAGE_ROUTES: Readonly<Record<PagePath, PageRoute>> = {
  '': { get: showCodeForm, post: submitCode, returnTo: '', isEntryPage: true },
  '/sign-in': { get: showSignIn, post: submitPassword, returnTo: '/sign-in' },
  '/certificate': { post: submitCertificate, returnTo: '/sign-in' },
  '/openid': { post: startOpenIdSignIn, returnTo: '/sign-in' },
  '/review': { get: showReview, returnTo: '/review' },
  '/approve': {
    post: (deps, request, fields) => decide(deps, request, 'approved', fields),
    returnTo: '/review',
  },
  '/deny': { post: (deps, request, fields) => decide(deps, request, 'denied', fields), returnTo: '/review' },
  '/sign-out': { post: signOut, returnTo: '' },
  '/done': { get: showResult, returnTo: '/done' },
  '/grants': { get: showGrants, returnTo: '/grants', isEntryPage: true },
  '/grant': { get: showGrant, returnTo: '/grants' },
  '/revoke': { post: submitRevocation, returnTo: '/grants' },
};

/**
 * The pages for approving a device: enter the code, sign in, review, decide; and for revoking grants. Created for each
 * configuration; `rateLimits` and `attemptLimits` survive a reload.
 *
 * The pages need no script. GET never changes state. Each form has a token bound to its session, its path and its subject,
 * and a successful form ends with a redirect.
 */
export function createPages(options: PagesOptions) {
  const { grantDeps, basePath, url, theme } = options;
  const sessions = createSessions(grantDeps, url, options.sessionLifetime);
  const offersDevice = offersDeviceFlow(grantDeps);
  const baseDeps: Omit<PageDeps, 'messages' | 'withTransaction'> = {
    ...options,
    sessions,
    providers: new Map(options.providers.map((provider) => [provider.name, provider])),
    pendingSignInCookie: createPendingSignInCookie(grantDeps.sealer, sessionCookieName(url)),
    browserCookie: createBrowserCookie(grantDeps.sealer, sessionCookieName(url)),
    offersDevice,
    // Without the device flow, users start at the list of their grants.
    urlFor: (path) => basePath + (path === '' && !offersDevice ? '/grants' : path),
    redirectUri: (provider) => `${url}${basePath}/openid/${provider}`,
  };
  const replies = createPageReplies(theme);
  const selectDeps = (
    context: RequestContext,
    language?: Language,
    requestDeps = forRequest(grantDeps, context),
  ): PageDeps => {
    const selected = language ?? negotiateLanguage(context.request.headers['accept-language']) ?? theme.language;
    const deps: PageDeps = {
      ...baseDeps,
      grantDeps: requestDeps,
      messages: MESSAGES[selected],
      withTransaction: (transaction) =>
        transaction === undefined
          ? deps
          : {
              ...deps,
              transaction,
              urlFor: createTransactionUrls(grantDeps.sealer, baseDeps.urlFor, transaction),
            },
    };
    return deps;
  };
  const toReply = (
    deps: PageDeps,
    response: PageResponse,
    returnTo: PagePath,
    cookies: readonly string[] = [],
  ): Reply => {
    if ('redirect' in response) return replies.redirect(deps.urlFor(response.redirect), cookies);
    if ('location' in response) return replies.redirect(response.location, cookies);
    const layout = { messages: deps.messages, currentUrl: deps.urlFor(returnTo) };
    return replies.page(response.page, layout, cookies);
  };
  const fail = (context: RequestContext, deps: PageDeps, error: unknown, returnTo: PagePath, retry?: string): Reply => {
    const isFault = error instanceof Fault;
    grantDeps.log.error('page_failed', { request_id: context.id, ...errorFields(error) });
    context.note({ reason: isFault ? error.code : 'internal_error' });
    const page = isFault ? faultPage(deps, error, returnTo, retry) : internalErrorPage(deps, context.id, returnTo);
    return toReply(deps, { page }, returnTo);
  };

  const handleTarget = async (context: RequestContext, target: PageTarget): Promise<Reply> => {
    const returnTo = getReturnPath(target);
    const language = readLanguage(getQuery(context.request));
    let deps = selectDeps(context, language);
    try {
      const storedSession = sessions.read(context.request.headers['cookie']);
      deps = selectDeps(context, language ?? storedSession?.language, deps.grantDeps);
      const session = storedSession && withLanguage(storedSession, language);
      const transaction = findTransaction(deps, context, target);
      if (transaction !== 'expired') deps = deps.withTransaction(transaction);
      const response = await dispatch(deps, options, {
        context,
        target,
        session,
        language,
        hasExpired: transaction === 'expired',
      });
      const nextSession = response.session ?? (language === undefined ? undefined : session);
      return toReply(deps, response, returnTo, [
        ...(nextSession === undefined ? [] : [sessions.formatCookie(nextSession)]),
        ...(response.cookies ?? []),
      ]);
    } catch (error) {
      return fail(context, deps, error, returnTo);
    }
  };

  return {
    /**
     * Responds to a request for another host than that of the pages. `mayRedirect`: the host is that of the API, where
     * typed and bookmarked addresses redirect to the pages. On an unknown host a redirect could loop.
     */
    handleOtherHost(context: RequestContext, subpath: string, mayRedirect: boolean): Reply {
      const target = parseTarget(subpath);
      const { method } = context.request;
      const isEntryPage = typeof target === 'string' && PAGE_ROUTES[target].isEntryPage === true;
      context.note({ reason: 'misdirected' });
      if (mayRedirect && isEntryPage && (method === 'GET' || method === 'HEAD')) {
        const code = readCodeFromQuery(context);
        const query = code === undefined ? '' : `?user_code=${formatUserCode(code)}`;
        return replies.redirect(`${url}${basePath}${target}${query}`);
      }
      const deps: PageDeps = { ...selectDeps(context), urlFor: (path) => url + baseDeps.urlFor(path) };
      // RFC 9110 §15.5.20.
      return toReply(deps, { page: noticePage(deps, 'notFound', { status: 421 }) }, '');
    },
    /** `subpath` follows the base path, without the query. */
    handle: (context: RequestContext, subpath: string): Promise<Reply> => handleTarget(context, parseTarget(subpath)),
    /** Responds to a browser that opened an address below the service path that does not exist. */
    handleUnknownPath(context: RequestContext): Promise<Reply> {
      context.note({ decision: 'refused', reason: 'no_such_endpoint' });
      return handleTarget(context, undefined);
    },
    /** The authorization endpoint (RFC 6749 §3.1), on the host of the pages. */
    async handleAuthorization(context: RequestContext): Promise<Reply> {
      const { url: requestUrl } = context.request;
      const deps: PageDeps = {
        ...selectDeps(context, readLanguage(getQuery(context.request))),
        // To try again is to send the same request.
        urlFor: (path) => (path === '' ? requestUrl : baseDeps.urlFor(path)),
      };
      try {
        const response = await dispatchAuthorization(deps, options, context);
        return toReply(deps, response, '', response.cookies);
      } catch (error) {
        return fail(context, deps, error, '', deps.messages.retryLater.other);
      }
    },
    /** The authorization endpoint on the host of the API, if the pages have their own. */
    redirectAuthorization(context: RequestContext, path: string, mayRedirect: boolean): Reply {
      const { method } = context.request;
      context.note({ reason: 'misdirected' });
      if (mayRedirect && (method === 'GET' || method === 'HEAD'))
        return replies.redirect(`${url}${path}?${getQuery(context.request)}`);
      const deps = selectDeps(context);
      const page = noticePage(deps, 'notFound', { status: 421, link: undefined });
      return replies.page(page, { messages: deps.messages, currentUrl: url + basePath });
    },
  };
}

/** A page, or the redirect URI of an OpenID provider. */
type PageTarget = PagePath | { readonly provider: string } | undefined;

interface ParsedRequest {
  readonly context: RequestContext;
  readonly target: PageTarget;
  readonly session: Session | undefined;
  /** From the query of this request. */
  readonly language: Language | undefined;
  /** The request names a transaction that cannot be continued. */
  readonly hasExpired: boolean;
}

const SIGN_IN_PATHS: ReadonlySet<PagePath> = new Set<PagePath>(['/sign-in', '/certificate', '/openid']);

/** Checks that apply to every page. */
async function checkRequest(
  deps: PageDeps,
  { isCertificateAmbiguous }: PagesOptions,
  context: RequestContext,
): Promise<PageResponse | undefined> {
  const wait = await deps.rateLimits.page.take(getRateLimitKey(context.clientAddress));
  if (wait > 0) return { page: tooManyAttemptsPage(deps, wait) };
  if (!isNavigation(context.request.headers)) {
    context.note({ reason: 'not_a_navigation' });
    return { page: noticePage(deps, 'rejected') };
  }
  return isCertificateAmbiguous(context) ? { page: noticePage(deps, 'badRequest') } : undefined;
}

async function dispatchAuthorization(
  deps: PageDeps,
  options: PagesOptions,
  context: RequestContext,
): Promise<PageResponse> {
  const rejected = await checkRequest(deps, options, context);
  if (rejected !== undefined) return rejected;
  const { method } = context.request;
  return method === 'GET' || method === 'HEAD'
    ? startAuthorization(deps, context, options.authorization)
    : { page: noticePage(deps, 'methodNotAllowed', { allow: 'GET, HEAD', link: undefined }) };
}

async function dispatch(
  deps: PageDeps,
  options: PagesOptions,
  { context, target, session, language, hasExpired }: ParsedRequest,
): Promise<PageResponse> {
  const { url, basePath, bodyTimeout } = options;
  const { sessions } = deps;
  const { method } = context.request;
  const clientKey = getRateLimitKey(context.clientAddress);
  const rejected = await checkRequest(deps, options, context);
  if (rejected !== undefined) return rejected;
  if (hasExpired) return { page: authorizationNotice(deps, 'expired', 403) };
  if (target === undefined || (target === '' && !deps.offersDevice)) return { page: noticePage(deps, 'notFound') };
  if (typeof target === 'object')
    return method === 'GET'
      ? handleOpenIdCallback(deps, context, clientKey, target.provider)
      : { page: noticePage(deps, 'methodNotAllowed', { allow: 'GET' }) };

  const { get, post, isEntryPage } = PAGE_ROUTES[target];
  if (get !== undefined && (method === 'GET' || method === 'HEAD')) {
    if (session !== undefined) return get(deps, { context, session, clientKey });
    const startsHere = isEntryPage === true || deps.transaction !== undefined;
    if (!startsHere) return { page: noticePage(deps, 'expired') };
    if (context.request.headers['sec-fetch-site'] === 'cross-site')
      return continueFromOtherSite(deps, `${basePath}${target}`, context);
    const created = withLanguage(sessions.create(), language);
    return { session: created, ...(await get(deps, { context, session: created, clientKey })) };
  }
  if (post === undefined || method !== 'POST') {
    const allow = [get && 'GET, HEAD', post && 'POST'].filter(Boolean).join(', ');
    return { page: noticePage(deps, 'methodNotAllowed', { allow }) };
  }

  const readBody = (maxBytes: number, seconds: number) => context.readBody(maxBytes, seconds);
  const form = await readForm(context.request, readBody, new URL(url).origin, bodyTimeout);
  if (form.kind === 'rejected') return { page: noticePage(deps, 'rejected') };
  if (form.kind === 'unreadable') return { page: noticePage(deps, 'badRequest', { status: form.status }) };
  if (session === undefined)
    return deps.transaction === undefined ? { page: noticePage(deps, 'expired') } : { redirect: '/sign-in' };
  const token = form.fields.get(FORM_TOKEN) ?? '';
  if (!sessions.isValidFormToken(token, session, target, getFormSubject(deps, session, target, form.fields)))
    // Another tab has signed in, or has begun the session anew.
    return deps.transaction !== undefined && SIGN_IN_PATHS.has(target)
      ? { redirect: '/sign-in' }
      : { page: noticePage(deps, 'rejected') };
  return post(deps, { context, session, clientKey }, form.fields);
}

/**
 * With a link of another site, browsers do not send the `Strict` session cookie, and a new session would replace it: any site could sign
 * users out. This page requests the same URL again, from this site.
 */
function continueFromOtherSite({ messages }: PageDeps, path: string, { request }: RequestContext): PageResponse {
  const query = getQuery(request);
  const url = query === '' ? path : `${path}?${query}`;
  return { page: redirectPage(messages, messages.authorization.redirecting, url) };
}

const withLanguage = (session: Session, language: Language | undefined): Session =>
  language === undefined ? session : { ...session, language };

/** Paths are case-insensitive. */
function parseTarget(subpath: string): PageTarget {
  const path = subpath === '/' ? '' : subpath.toLowerCase();
  if (Object.hasOwn(PAGE_ROUTES, path)) return path as PagePath;
  const provider = /^\/openid\/([a-z0-9-]+)$/.exec(path)?.[1];
  return provider === undefined ? undefined : { provider };
}

/** Returns undefined if the page is not about an authorization request. */
function findTransaction(
  { grantDeps, browserCookie, pendingSignInCookie }: PageDeps,
  context: RequestContext,
  target: PageTarget,
): Transaction | 'expired' | undefined {
  if (typeof target === 'object')
    return pendingSignInCookie.read(parseCookies(context.request.headers['cookie']))?.transaction;
  return isTransactionPath(target) ? readTransaction(grantDeps, context, browserCookie) : undefined;
}

function getReturnPath(target: PageTarget): PagePath {
  if (target === undefined) return '';
  return typeof target === 'object' ? '/sign-in' : PAGE_ROUTES[target].returnTo;
}
