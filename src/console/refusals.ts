import { parseScope } from '../domain/scope.ts';
import type { RecentRefusal } from '../observability/recent-events.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { Fault } from '../ports/fault.ts';
import {
  type ConsoleHandler,
  type ConsolePage,
  type ConsoleRequest,
  explainRequest,
  MAX_RECENT,
  MAX_SEARCH_TEXT,
  readSearchText,
  urlFor,
} from './context.ts';
import { findGrant } from './grants.ts';
import {
  formatCount,
  renderBadge,
  renderCode,
  renderFacts,
  renderSearch,
  renderText,
  renderTime,
} from './views/format.ts';
import { noticePage } from './views/layout.ts';
import { describeReason } from './views/reason-text.ts';

export const showRefusals: ConsoleHandler = async ({ deps, query }) => {
  const text = readSearchText(query);
  const { refusals } = await deps.findRecent({ kind: 'refusals', limit: MAX_RECENT, ...(text !== '' && { text }) });
  const groups = groupRefusals(refusals);
  return {
    title: 'Refusals',
    body: html`<h1>Recent refusals</h1>
${renderSearch('/refusals', 'Request id, path, reason, rule, client, name or address', text)}
<p class="soft" role="status">${describeCount(text, refusals.length, groups.length)}</p>
${groups.length > 0 && html`<ul class="rows card list">\n${groups.map(renderGroup)}</ul>`}`,
  };
};

function describeCount(text: string, count: number, groups: number): string {
  if (count === 0)
    return text === ''
      ? 'No request has been refused since startup.'
      : 'None of the recent refusals matches. Each process remembers its last 500; the log has all of them.';
  const requests = count === MAX_RECENT ? `The newest ${count} requests` : formatCount(count, 'request');
  return groups === 1 ? requests : `${requests}, in ${groups} groups by reason, rule and caller`;
}

/** Requests that another gateway asked about show the original one. */
const renderTarget = ({ method, path, original }: RecentRefusal): Markup =>
  original === undefined
    ? html`${renderText(method, 32)} ${renderText(path ?? '(path hidden)')}`
    : renderText(original);

/** What one cause refused: newest first, as the list is. */
const groupRefusals = (refusals: readonly RecentRefusal[]): readonly (readonly RecentRefusal[])[] => [
  ...Map.groupBy(refusals, ({ status, decision, reason, rule, client, name, identity }) =>
    JSON.stringify([status, decision, reason, rule, client, name, identity]),
  ).values(),
];

/** A group shows this many; the others are folded. */
const SHOWN_REQUESTS = 3;

function renderGroup(group: readonly RecentRefusal[]): Markup {
  const [newest] = group;
  if (newest === undefined) return html``;
  const { status, decision, reason, rule, client, name, identity } = newest;
  const more = group.slice(SHOWN_REQUESTS);
  return html`<li>
<div class="line-up"><h2>${renderText(describeReason(reason ?? decision))}</h2>${renderBadge(String(status), status >= 500 ? 'bad' : 'warn')}${decision === 'would_refuse' && renderBadge('forwarded: report-only')}</div>
<p class="meta"><span>${formatCount(group.length, 'request')}</span>${rule !== undefined && html`<span>rule ${renderText(rule)}</span>`}${client !== undefined && html`<span>client ${renderText(client)}</span>`}${(name ?? identity) !== undefined && html`<span>caller ${renderText(name ?? identity ?? '')}</span>`}${renderCode(reason ?? decision)}</p>
<ul class="requests">
${group.slice(0, SHOWN_REQUESTS).map(renderRequest)}</ul>
${more.length > 0 && html`<details><summary>${more.length} more</summary><ul class="requests">\n${more.map(renderRequest)}</ul></details>`}
</li>
`;
}

const renderRequest = (refusal: RecentRefusal): Markup =>
  html`<li><a href="${urlFor('/refusal', { id: refusal.id })}">${renderTarget(refusal)}</a> <span class="meta"><span>${renderTime(refusal.time / 1_000)}</span>${refusal.from !== undefined && html`<span>${refusal.from}</span>`}<span class="mono">${refusal.id}</span></span></li>\n`;

/** One refusal, with what the rule requires and what the grant allows now. */
export const showRefusal: ConsoleHandler = async (request) => {
  const id = (request.query.get('id') ?? '').slice(0, MAX_SEARCH_TEXT);
  const [refusal] = (await request.deps.findRecent({ kind: 'refusals', limit: 1, id })).refusals;
  if (refusal === undefined) return createUnknownPage(id);
  const { reason, decision, path, method, client, grant: grantId } = refusal;
  const grant = grantId === undefined ? undefined : await findGrant(request, grantId).catch(ignoreFault);
  const { requirement, verdict } = findRequirement(request, refusal, grant?.scope);
  return {
    title: 'Refusal',
    body: html`<div class="card wide">
<h1>${renderTarget(refusal)}</h1>
<p class="note">${renderText(describeReason(reason ?? decision))}${verdict !== undefined && html` With the current configuration, ${renderText(verdict)}.`}</p>
${renderFacts([
  ['Reason', renderCode(reason ?? decision)],
  ['Decision', decision === 'would_refuse' ? 'forwarded: the rule is report-only' : decision],
  ['Status', String(refusal.status)],
  ['Rule', refusal.rule],
  ['The rule requires', renderCode(requirement)],
  ['The grant allows', renderCode(grant?.scope)],
  ['State of the grant', grant?.state],
  ['Client', client],
  ['Name', refusal.name],
  ['Identity', refusal.identity],
  ['Grant', grantId && html`<a href="${urlFor('/grant', { id: grantId })}"><code>${grantId}</code></a>`],
  ['Upstream', refusal.upstream],
  ['Client address', refusal.from],
  ['Time', renderTime(refusal.time / 1_000)],
  ['Request id', html`<code>${id}</code>`],
])}
<div class="actions">
${path !== undefined && html`<a class="button" href="${urlFor('/explain', { method, path, ...(client !== undefined && { client }), ...(grant !== undefined && { scope: grant.scope }) })}">Explain this request</a>`}
<a class="button second" href="${urlFor('/refusals')}">All refusals</a>
</div>
</div>`,
  };
};

/** A refusal is shown even if the store is unreachable: that may be its cause. */
function ignoreFault(error: unknown): undefined {
  if (!(error instanceof Fault)) throw error;
}

/** What the rule requires, if the current configuration still has it, and what the grant lacks. */
function findRequirement(
  { deps }: ConsoleRequest,
  { method, path, rule, client }: RecentRefusal,
  scopeText: string | undefined,
): { readonly requirement?: string | undefined; readonly verdict?: string } {
  if (path === undefined || rule === undefined) return {};
  const scope = scopeText === undefined ? undefined : parseScope(scopeText, { allowSpaces: true });
  const explanation = explainRequest(deps, {
    method,
    path,
    client,
    scope: scope?.ok === true ? scope.value : undefined,
  });
  if (explanation.rule?.name !== rule) return {};
  const { requirement, verdict, reason } = explanation;
  return { requirement, ...(verdict === 'forbidden' && { verdict: reason }) };
}

const createUnknownPage = (id: string): ConsolePage =>
  noticePage(
    'No such refusal',
    `No recent refusal has the request id ${id}. Each process remembers its last 500 refusals, until it exits; search the log for the id.`,
    404,
  );
