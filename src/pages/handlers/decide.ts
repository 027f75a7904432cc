import type { Refusal } from '../../domain/refusal.ts';
import type { User } from '../../domain/user.ts';
import { getIntegrationName } from '../../grants/deps.ts';
import { confirmDevice, denyDevice, mayConfirm, readApprovalRequest } from '../../grants/device-grant.ts';
import type { FormFields } from '../form.ts';
import type { PageDeps, PageHandler, PageRequest, PageResponse } from '../page-handler.ts';
import type { Session } from '../session.ts';
import { resultPage, reviewPage } from '../views/device-pages.ts';
import { endedPage, noticePage } from '../views/notice-pages.ts';
import { decideAuthorization, findSignedInUser, showAuthorization } from './authorize.ts';

interface Decision {
  readonly user: User;
  readonly request: NonNullable<Session['request']>;
}

/** Requires a device request and a signed-in user who is still in the directory. */
async function requireDecision(
  deps: PageDeps,
  { session: { goal: _goal, ...session } }: PageRequest,
): Promise<Decision | { readonly response: PageResponse }> {
  const { request } = session;
  if (request === undefined) return { response: { redirect: '' } };
  if (session.identity === undefined) return { response: { redirect: '/sign-in' } };
  const found = await findSignedInUser(deps, session);
  return 'response' in found ? found : { user: found.user, request };
}

export const showReview: PageHandler = async (deps, pageRequest) => {
  if (deps.transaction !== undefined) return showAuthorization(deps, pageRequest, deps.transaction);
  if (pageRequest.session.ended !== undefined) return { redirect: '/done' };
  const decision = await requireDecision(deps, pageRequest);
  return 'response' in decision ? decision.response : renderReview(deps, pageRequest, decision);
};

async function renderReview(
  deps: PageDeps,
  { context, session }: PageRequest,
  { user, request }: Decision,
  status = 200,
): Promise<PageResponse> {
  const pending = await readApprovalRequest(deps.grantDeps, request.id);
  if (!pending.ok) return { page: endedPage(deps, pending.refusal) };
  const allowed = await mayConfirm(deps.grantDeps, pending.value, user);
  context.note({
    identity: user.identity,
    clientId: request.clientId,
    ...(!allowed.ok && { reason: allowed.refusal.reason }),
  });
  const page = reviewPage(deps, session, {
    request: pending.value,
    code: request.code,
    displayName: session.shownAs ?? user.displayName,
    refusal: allowed.ok ? undefined : allowed.refusal,
    status,
  });
  return { page };
}

export async function decide(
  deps: PageDeps,
  pageRequest: PageRequest,
  ended: 'approved' | 'denied',
  fields: FormFields,
): Promise<PageResponse> {
  if (deps.transaction !== undefined) return decideAuthorization(deps, pageRequest, deps.transaction, ended, fields);
  const { context, session } = pageRequest;
  if (session.identity === undefined) return { page: noticePage(deps, 'rejected') };
  const decision = await requireDecision(deps, pageRequest);
  if ('response' in decision) return decision.response;
  const { user, request } = decision;
  const outcome =
    ended === 'approved'
      ? await confirmDevice(deps.grantDeps, request.id, user, session)
      : await denyDevice(deps.grantDeps, request.id, user);
  context.note({ identity: user.identity, clientId: request.clientId });
  if (outcome.ok) return { redirect: '/done', session: { ...session, ended } };
  // The review page explains why the user may not approve.
  if (USER_REFUSALS.has(outcome.refusal.reason)) return renderReview(deps, pageRequest, decision, 403);
  return { page: endedPage(deps, outcome.refusal) };
}

const USER_REFUSALS: ReadonlySet<Refusal['reason']> = new Set<Refusal['reason']>([
  'identity_disabled',
  'identity_not_allowed',
  'scope_exceeds_access',
  'scope_exceeds_integration',
]);

export const showResult: PageHandler = async (deps, { session }) => {
  const { request, ended } = session;
  if (request === undefined || ended === undefined) return { redirect: '' };
  const integrationName = getIntegrationName(deps.grantDeps, request.clientId);
  return { page: resultPage(deps, session, { ended, integrationName }) };
};
