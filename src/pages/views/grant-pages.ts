import type { Grant } from '../../domain/grant.ts';
import { parseScope, type Scope } from '../../domain/scope.ts';
import { getIntegrationName } from '../../grants/deps.ts';
import type { PageDeps } from '../page-handler.ts';
import type { Session } from '../session.ts';
import { renderDate, renderForm, renderName, renderSignOut } from './device-pages.ts';
import { html, isolateText, type Markup, sanitizeText } from './html.ts';
import type { Page } from './layout.ts';
import { fillIn } from './messages/languages.ts';
import { describeScope } from './scope-text.ts';

interface GrantsView {
  readonly grants: readonly Grant[];
  readonly displayName: string;
  readonly isFirstPage: boolean;
  /** Integration of a grant that was just revoked. */
  readonly revokedName?: string;
  /** Integration that was just approved and whose device has not fetched its token yet. */
  readonly pendingName?: string;
  readonly nextCursor?: string;
}

export function grantsPage(deps: PageDeps, session: Session, view: GrantsView): Page {
  const { messages } = deps;
  const { grants: text } = messages;
  const isEmpty = view.grants.length === 0 && view.isFirstPage && view.nextCursor === undefined;
  return {
    status: 200,
    title: text.title,
    body: html`<h1>${text.title}</h1>
${view.revokedName !== undefined && html`<p class="note good" role="status">${fillIn(messages.revoke.done, isolateText(view.revokedName))}</p>`}
${view.pendingName !== undefined && html`<p class="note good" role="status">${fillIn(text.pending, isolateText(view.pendingName))}</p>`}
${(view.pendingName === undefined || !isEmpty) && html`<p>${isEmpty ? text.none : text.lead}</p>`}
${view.grants.map((grant) => renderGrant(deps, grant))}
${view.nextCursor !== undefined && html`<a class="button second" href="${deps.urlFor('/grants')}?after=${encodeURIComponent(view.nextCursor)}">${text.more}</a>`}
${renderSignOut(deps, session, view.displayName, messages.signOut)}`,
  };
}

function renderGrant(deps: PageDeps, grant: Grant): Markup {
  const { grants: text } = deps.messages;
  const integrationName = formatIntegrationName(deps, grant);
  return html`<section class="item" aria-labelledby="g-${grant.id}">
<h2 id="g-${grant.id}"><bdi>${integrationName}</bdi></h2>
${renderGrantDetails(deps, grant)}
<a class="button second" href="${deps.urlFor('/grant')}?id=${encodeURIComponent(grant.id)}" aria-label="${fillIn(text.revokeLabelOf, integrationName)}">${text.revokeLabel}</a>
</section>
`;
}

const formatIntegrationName = (deps: PageDeps, { clientId }: Grant): string =>
  sanitizeText(getIntegrationName(deps.grantDeps, clientId));

function renderGrantDetails(deps: PageDeps, grant: Grant): Markup {
  const { messages, grantDeps, theme } = deps;
  const { grants: text } = messages;
  const now = grantDeps.now();
  const formatTimeAgo = (time: number): Markup => html`${messages.formatAgo(now - time)} ${renderDate(deps, time)}`;
  return html`<p class="soft">${text.by[grant.grantType]}${!grantDeps.integrations.has(grant.clientId) && html` · ${text.discontinued}`}</p>
<p class="label">${text.may}</p>
<ul>
${describeScope(readScope(grant), messages, theme.permissions).map((sentence) => html`<li>${sentence}</li>\n`)}</ul>
<dl>
<div><dt>${text.created}</dt><dd>${formatTimeAgo(grant.issuedAt)}</dd></div>
<div><dt>${text.lastRenewed}</dt><dd>${grant.generation > 1 ? formatTimeAgo(grant.rotatedAt) : text.neverRenewed}</dd></div>
<div><dt>${messages.expires}</dt><dd>${messages.formatIn(grant.refreshUntil - now)} ${renderDate(deps, grant.refreshUntil)}</dd></div>
</dl>`;
}

function readScope({ scope }: Grant): Scope {
  const parsed = parseScope(scope, { allowSpaces: true });
  return parsed.ok ? parsed.value : new Map();
}

/** Asks for confirmation: a revocation cannot be undone. */
export function revokePage(deps: PageDeps, session: Session, grant: Grant): Page {
  const { revoke } = deps.messages;
  const button = html`<input type="hidden" name="grant" value="${grant.id}"><button class="danger" type="submit">${revoke.confirm}</button>`;
  return {
    status: 200,
    title: revoke.title,
    body: html`<h1>${revoke.title}</h1>
<p>${renderName(formatIntegrationName(deps, grant))}${revoke.lead}</p>
${renderGrantDetails(deps, grant)}
<div class="choice">
${renderForm(deps, session, '/revoke', button, grant.id)}
<a class="button second" href="${deps.urlFor('/grants')}">${revoke.cancel}</a>
</div>`,
  };
}
