import * as z from 'zod';
import type { Epoch } from '../../domain/grant.ts';
import type { AssertedGroups, User } from '../../domain/user.ts';
import type { GrantDeps } from '../../grants/deps.ts';
import { getIssueTime } from '../../grants/issue.ts';
import { getQuery } from '../../http/query.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { isEqualConstantTime } from '../../lib/constant-time.ts';
import type { Sealer } from '../../tokens/sealer.ts';
import { createSealedCookie, parseCookies } from '../cookies.ts';
import type { FormHandler, PageDeps, PageRequest, PageResponse } from '../page-handler.ts';
import { Session, withoutSignIn } from '../session.ts';
import { Transaction } from '../transaction.ts';
import { getProviderTitle, redirectPage, signInPage } from '../views/device-pages.ts';
import { fillIn } from '../views/messages/languages.ts';
import { noticePage, tooManyAttemptsPage } from '../views/notice-pages.ts';
import { refuseSignIn } from './authorize.ts';
import { checkRequestPending, createSignedInSession, getNextPath } from './sign-in.ts';

/**
 * An authorization request in progress. The session cookie is `SameSite=Strict` and is not sent when the provider
 * redirects the browser back; this cookie is `Lax` and holds the session until then.
 */
const PendingSignIn = z.strictObject({
  provider: z.string(),
  state: z.string(),
  nonce: z.string(),
  verifier: z.string(),
  expires: z.number(),
  session: Session,
  /** The authorization request that the sign-in is for. */
  transaction: Transaction.exactOptional(),
});
type PendingSignIn = z.output<typeof PendingSignIn>;

const PENDING_LIFETIME = 600;

export const createPendingSignInCookie = (sealer: Sealer, sessionCookieName: string) =>
  createSealedCookie(sealer, {
    name: `${sessionCookieName}-openid`,
    purpose: 'openid journey',
    schema: PendingSignIn,
    sameSite: 'Lax',
  });

/** Responds with a page that redirects: the CSP allows forms to lead to this origin only. */
export const startOpenIdSignIn: FormHandler = async (deps, pageRequest, fields) => {
  const provider = deps.providers.get(fields.get('provider') ?? '');
  if (provider === undefined) return { page: noticePage(deps, 'rejected') };
  const endedResponse = await checkRequestPending(deps, pageRequest);
  if (endedResponse !== undefined) return endedResponse;
  const now = getIssueTime(deps.grantDeps, deps.grantDeps.now());
  const { prompt, authenticatedSince } = deps.transaction?.request ?? {};
  const { url, checks } = await provider.startSignIn(deps.redirectUri(provider.name), {
    prompt,
    ...(authenticatedSince !== undefined && { maxAge: Math.max(0, Math.floor(now) - authenticatedSince) }),
  });
  const pending: PendingSignIn = {
    provider: provider.name,
    ...checks,
    expires: Math.floor(deps.grantDeps.now()) + PENDING_LIFETIME,
    // The next sign-in replaces it, and a cookie has at most 4 KiB.
    session: withoutSignIn(pageRequest.session),
    ...(deps.transaction !== undefined && { transaction: deps.transaction }),
  };
  const { title, lead } = deps.messages.redirectToProvider;
  const text = { title, lead: fillIn(lead, getProviderTitle(deps.messages, provider)) };
  return {
    page: redirectPage(deps.messages, text, url),
    cookies: [deps.pendingSignInCookie.format(pending, PENDING_LIFETIME)],
  };
};

/** The redirect URI. Each authorization request is completed at most once, whatever the result. */
export async function handleOpenIdCallback(
  deps: PageDeps,
  context: RequestContext,
  clientKey: string,
  name: string,
): Promise<PageResponse> {
  const response = await completeOpenIdSignIn(deps, context, clientKey, name);
  return { ...response, cookies: [deps.pendingSignInCookie.formatCleared()] };
}

async function completeOpenIdSignIn(
  pageDeps: PageDeps,
  context: RequestContext,
  clientKey: string,
  name: string,
): Promise<PageResponse> {
  const { messages, grantDeps } = pageDeps;
  const pending = pageDeps.pendingSignInCookie.read(parseCookies(context.request.headers['cookie']));
  const deps = pageDeps.withTransaction(pending?.transaction);
  if (pending === undefined || grantDeps.now() >= pending.expires) return { page: noticePage(deps, 'expired') };
  const provider = deps.providers.get(name);
  const query = getQuery(context.request);
  const state = new URLSearchParams(query).get('state') ?? '';
  // The response must come from the provider of the request (RFC 9700 §4.4) and belong to this browser.
  if (provider === undefined || pending.provider !== name || !isEqualConstantTime(state, pending.state))
    return { page: noticePage(deps, 'rejected') };
  const wait = await deps.attemptLimits.signInsByAddress.take(clientKey);
  if (wait > 0) return { page: tooManyAttemptsPage(deps, wait) };

  const pageRequest: PageRequest = { context, session: pending.session, clientKey };
  const endedResponse = await checkRequestPending(deps, pageRequest);
  if (endedResponse !== undefined) return endedResponse;
  const result = await provider.completeSignIn(new URL(`${deps.redirectUri(name)}?${query}`), pending);
  const recordFailure = (reason: string, user?: User): void => {
    context.note({ reason });
    grantDeps.log.audit('sign_in_failed', {
      by: 'openid',
      provider: name,
      from: context.clientAddress,
      reason,
      ...(user !== undefined && { identity: user.identity }),
    });
  };
  const fail = (reason: string, problem: string, user?: User): PageResponse => {
    recordFailure(reason, user);
    return { page: signInPage(deps, pageRequest, { problem }) };
  };
  if (result.kind === 'cancelled') return fail('openid_cancelled', messages.signIn.cancelled);
  if (result.kind === 'refused') {
    grantDeps.log.warn('openid_refused', { request_id: context.id, provider: name, reason: result.reason });
    return fail('openid_refused', messages.signIn.notAccepted);
  }
  const user = await grantDeps.users.findByClaim(provider.directory, result.claim);
  if (user === undefined) return fail('identity_unknown', messages.signIn.unknown);
  if (user.disabled) return fail('identity_disabled', messages.signIn.unknown, user);

  const authenticatedAt = estimateAuthentication(grantDeps, result.authenticationAge);
  const { transaction } = deps;
  if (transaction !== undefined && authenticatedAt < (transaction.request.authenticatedSince ?? 0)) {
    recordFailure('openid_not_reauthenticated', user);
    return refuseSignIn(deps, transaction);
  }

  const hasNoDisplayName = user.identity.endsWith(`:${user.displayName}`) || user.displayName === result.claim.value;
  const session = await createSignedInSession(deps, pageRequest, {
    user,
    method: 'openid',
    authenticatedAt,
    assertedGroups: selectGroups(deps, provider.name, result.groups),
    ...(hasNoDisplayName && { shownAs: result.displayName, profile: result.profile }),
  });
  // Not a 303: the browser would treat it as cross-site and omit the `Strict` session cookie.
  return {
    session,
    page: redirectPage(messages, messages.signInComplete, deps.urlFor(getNextPath(deps, session))),
  };
}

/** Seconds: `auth_time` and the times that it is compared with are whole seconds. */
const ROUNDING = 2;

/**
 * When the user authenticated at the provider, by the clock of gatehouse, or 0 if the ID token has no `auth_time`. This can be long
 * before the sign-in here if the user had a session at the provider.
 */
const estimateAuthentication = (grantDeps: GrantDeps, age: number | undefined): Epoch => {
  const now = Math.floor(getIssueTime(grantDeps, grantDeps.now()));
  return age === undefined ? 0 : Math.min(now, Math.max(0, now - Math.floor(age) + ROUNDING));
};

/** Session cookies are small. */
const MAX_GROUPS_LENGTH = 1_024;

/** Only groups that some access entry names: the others decide nothing, and there may be hundreds. */
function selectGroups(
  { grantDeps }: PageDeps,
  provider: string,
  groups: readonly string[],
): AssertedGroups | undefined {
  const named = new Set(
    [...grantDeps.integrations.values()].flatMap(({ access }) => access.flatMap((entry) => [...entry.groups])),
  );
  const relevant = groups.filter((group) => named.has(group));
  if (relevant.length === 0) return undefined;
  if (relevant.join(',').length <= MAX_GROUPS_LENGTH) return { provider, groups: relevant };
  grantDeps.log.warn('groups_truncated', {
    provider,
    groups: relevant.length,
    note: 'a user is in more groups of this provider than a session can hold; none of them is used: use fewer or shorter groups in access',
  });
  return undefined;
}
