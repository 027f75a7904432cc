import { describeRedirectUri, getFormActionSource } from '../../domain/redirect-uri.ts';
import type { Refusal } from '../../domain/refusal.ts';
import type { Approvable } from '../../grants/code-grant.ts';
import { AUDIENCE_FIELD, formatApprovalSubject, type PageDeps, SCOPE_FIELD } from '../page-handler.ts';
import type { Session } from '../session.ts';
import type { Transaction } from '../transaction.ts';
import { describeRefusal, renderAlert, renderForm, renderName, renderScope, renderSignOut } from './device-pages.ts';
import { html, isolateText, type Markup, sanitizeText } from './html.ts';
import type { Page } from './layout.ts';
import { fillIn, type Messages } from './messages/languages.ts';

interface AuthorizationView {
  readonly transaction: Transaction;
  /** For an app that is not registered, this is the host of its address, never only what it calls itself. */
  readonly integrationName: string;
  readonly isRegistered: boolean;
  /** The integration has several APIs: the page shows which one the token would be for. */
  readonly hasSeveralAudiences: boolean;
  readonly displayName: string;
  /** What the user would approve, or why they cannot. */
  readonly approvable: Approvable | { readonly refusal: Refusal };
  readonly status: number;
}

/** Asks the user to approve an app that redirected them. */
export function authorizationPage(deps: PageDeps, session: Session, view: AuthorizationView): Page {
  const { messages } = deps;
  const { review } = messages;
  const { transaction, approvable } = view;
  const { redirectUri } = transaction.request;
  const audience = 'refusal' in approvable ? transaction.request.audience : approvable.audience;
  const refusalText = 'refusal' in approvable ? describeRefusal(deps, approvable.refusal) : undefined;
  const title = refusalText === undefined ? review.title : messages.notAllowed.title;
  return {
    status: view.status,
    title,
    formAction: getFormActionSource(redirectUri),
    body: html`<h1>${title}</h1>
<p>${renderName(view.integrationName)}${review.requestsAccess}</p>
${view.isRegistered ? undefined : renderUnregistered(deps, view)}
${refusalText !== undefined && renderAlert(refusalText)}
${'scope' in approvable && renderScope(deps, approvable.scope)}
<dl>
${!view.isRegistered && html`<div><dt>${messages.authorization.address}</dt><dd><bdi>${sanitizeText(transaction.request.clientId, 256)}</bdi></dd></div>`}
${view.hasSeveralAudiences && audience !== undefined && html`<div><dt>${messages.authorization.audience}</dt><dd><bdi>${sanitizeText(audience, 256)}</bdi></dd></div>`}
<div><dt>${messages.authorization.returnsTo}</dt><dd><bdi>${describeReturn(messages, redirectUri)}</bdi></dd></div>
</dl>
${refusalText === undefined && html`<p class="note">${messages.authorization.warning}</p>`}
<div class="choice">
${'text' in approvable && renderApprove(deps, session, transaction, approvable)}
${renderForm(deps, session, '/deny', html`<button class="second" type="submit">${review.deny}</button>`)}
</div>
${renderSignOut(deps, session, view.displayName, review.notYou)}`,
  };
}

function renderUnregistered(
  { messages: { authorization } }: PageDeps,
  { integrationName, transaction }: AuthorizationView,
): Markup {
  // A quotation mark would end the quotation, and the rest of the name would look like a sentence of this page.
  const claimedName = sanitizeText(transaction.request.claimedName ?? '', 60).replace(/\p{Quotation_Mark}/gu, '’');
  const text =
    claimedName === '' ? authorization.unregistered : fillIn(authorization.claimedName, isolateText(claimedName));
  return html`<p class="note">${renderName(integrationName)} ${text}</p>`;
}

const renderApprove = (
  deps: PageDeps,
  session: Session,
  { request }: Transaction,
  { text, audience }: Approvable,
): Markup =>
  renderForm(
    deps,
    session,
    '/approve',
    html`<input type="hidden" name="${SCOPE_FIELD}" value="${text}">${audience !== undefined && html`<input type="hidden" name="${AUDIENCE_FIELD}" value="${audience}">`}<button type="submit">${deps.messages.review.approve}</button>`,
    formatApprovalSubject(request.id, text, audience),
  );

function describeReturn({ authorization }: Messages, redirectUri: string): string {
  const target = describeRedirectUri(redirectUri);
  if (target.kind === 'web') return target.host;
  return target.kind === 'loopback'
    ? authorization.loopback
    : fillIn(authorization.app, sanitizeText(target.scheme, 100));
}
