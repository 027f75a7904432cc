import type { User } from '../../domain/user.ts';
import { getIntegrationName } from '../../grants/deps.ts';
import { isAwaitingExchange, listLiveGrants, readLiveGrant, revokeOwnGrant } from '../../grants/user-grants.ts';
import { getQuery } from '../../http/query.ts';
import type { FormHandler, PageDeps, PageHandler, PageRequest, PageResponse } from '../page-handler.ts';
import { withoutSignIn } from '../session.ts';
import { grantsPage, revokePage } from '../views/grant-pages.ts';
import { noticePage, renderNotice } from '../views/notice-pages.ts';

/** Users see their own grants only, and not whether another grant exists. */
type UserResult = { readonly user: User } | { readonly response: PageResponse };

async function requireUser(deps: PageDeps, { context, session }: PageRequest): Promise<UserResult> {
  if (!deps.theme.myGrants) return { response: { page: noticePage(deps, 'notFound') } };
  const { identity } = session;
  if (identity === undefined) return { response: { redirect: '/sign-in', session: { ...session, goal: 'grants' } } };
  const user = await deps.grantDeps.users.findByIdentity(identity);
  context.note({ identity });
  if (user !== undefined && !user.disabled) return { user };
  const { ended: _ended, ...signedOut } = withoutSignIn(session);
  return { response: { redirect: '/sign-in', session: deps.sessions.renew({ ...signedOut, goal: 'grants' }) } };
}

export const showGrants: PageHandler = async (deps, pageRequest) => {
  const result = await requireUser(deps, pageRequest);
  if ('response' in result) return result.response;
  const { revoked, ...session } = pageRequest.session;
  const after = parseCursor(new URLSearchParams(getQuery(pageRequest.context.request)).get('after'));
  const list = await listLiveGrants(deps.grantDeps, result.user.identity, after);
  const { request, ended } = session;
  const isPending =
    request !== undefined &&
    ended === 'approved' &&
    (await isAwaitingExchange(deps.grantDeps, result.user.identity, request.id));
  const page = grantsPage(deps, session, {
    grants: list.grants,
    displayName: session.shownAs ?? result.user.displayName,
    isFirstPage: after === undefined,
    ...(revoked !== undefined && { revokedName: revoked }),
    ...(isPending && { pendingName: getIntegrationName(deps.grantDeps, request.clientId) }),
    ...(list.next !== undefined && { nextCursor: list.next }),
  });
  return revoked === undefined ? { page } : { page, session };
};

/** Asks whether to revoke one grant. */
export const showGrant: PageHandler = async (deps, pageRequest) => {
  const result = await requireUser(deps, pageRequest);
  if ('response' in result) return result.response;
  const grantId = new URLSearchParams(getQuery(pageRequest.context.request)).get('id');
  const grant = await readLiveGrant(deps.grantDeps, result.user.identity, parseGrantId(grantId));
  if (!grant.ok) return { page: grantNotFoundPage(deps) };
  return { page: revokePage(deps, pageRequest.session, grant.value) };
};

export const submitRevocation: FormHandler = async (deps, pageRequest, fields) => {
  const result = await requireUser(deps, pageRequest);
  if ('response' in result) return result.response;
  const grantId = parseGrantId(fields.get('grant'));
  const revoked = await revokeOwnGrant(deps.grantDeps, result.user.identity, grantId);
  if (!revoked.ok) return { page: grantNotFoundPage(deps) };
  const { clientId, id } = revoked.value;
  pageRequest.context.note({ clientId, grantId: id });
  const name = getIntegrationName(deps.grantDeps, clientId);
  return { redirect: '/grants', session: { ...pageRequest.session, revoked: name.slice(0, 80) } };
};

const grantNotFoundPage = (deps: PageDeps) =>
  renderNotice(deps.messages.revoke.missing, {
    status: 404,
    link: { href: deps.urlFor('/grants'), text: deps.messages.revoke.back },
  });

const parseGrantId = (text: string | null | undefined): string =>
  text !== null && text !== undefined && /^[\w-]{1,128}$/.test(text) ? text : '-';

/** A cursor of the store, from the query. */
const parseCursor = (text: string | null): string | undefined =>
  text !== null && /^[\w .+-]{1,200}$/.test(text) ? text : undefined;
