import type { RecentRefusal } from '../../observability/recent-events.ts';
import { html, type Markup } from '../../pages/views/html.ts';
import { type ConsolePage, urlFor } from '../context.ts';
import { renderBadge, renderFacts, renderText, renderTime } from './format.ts';
import { noticePage } from './layout.ts';
import { describeReason } from './reason-text.ts';

/** What is known now about a refused request. */
export interface RefusalContext {
  readonly grantScope?: string;
  readonly grantState?: string;
  /** What the rule requires. */
  readonly requirement?: string;
  /** What the grant lacks. */
  readonly verdict?: string;
}

export function refusalsPage(text: string, refusals: readonly RecentRefusal[], hasMore: boolean): ConsolePage {
  const groups = groupRefusals(refusals);
  return {
    title: 'Refusals',
    body: html`<h1>Recent refusals</h1>
<form class="search" method="get" action="${urlFor('/refusals')}" role="search">
<div><label for="q">Request id, path, reason, rule, client, name or address</label>
<input type="search" id="q" name="q" value="${text}" maxlength="256" spellcheck="false" autocomplete="off"></div>
<button type="submit">Search</button>
</form>
<p class="soft" role="status">${describeCount(text, refusals.length, groups.length, hasMore)}</p>
${groups.length > 0 && html`<ul class="rows card list">\n${groups.map(renderGroup)}</ul>`}`,
  };
}

const describeCount = (text: string, count: number, groups: number, hasMore: boolean): string => {
  if (count === 0)
    return text === ''
      ? 'No request has been refused since startup.'
      : 'None of the recent refusals matches. Each process remembers its last 500; the log has all of them.';
  const requests = hasMore ? `The newest ${count} requests` : count === 1 ? '1 request' : `${count} requests`;
  return groups === 1 ? requests : `${requests}, in ${groups} groups by reason, rule and caller`;
};

const statusTone = (status: number) => (status >= 500 ? 'bad' : 'warn');

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
<div class="line-up"><h2>${renderText(describeReason(reason ?? decision))}</h2>${renderBadge(String(status), statusTone(status))}${decision === 'would_refuse' && renderBadge('forwarded: report-only')}</div>
<p class="meta"><span>${group.length === 1 ? '1 request' : `${group.length} requests`}</span>${rule !== undefined && html`<span>rule ${renderText(rule)}</span>`}${client !== undefined && html`<span>client ${renderText(client)}</span>`}${(name ?? identity) !== undefined && html`<span>caller ${renderText(name ?? identity ?? '')}</span>`}<code>${renderText(reason ?? decision)}</code></p>
<ul class="requests">
${group.slice(0, SHOWN_REQUESTS).map(renderRequest)}</ul>
${more.length > 0 && html`<details><summary>${more.length} more</summary><ul class="requests">\n${more.map(renderRequest)}</ul></details>`}
</li>
`;
}

const renderRequest = (refusal: RecentRefusal): Markup =>
  html`<li><a href="${urlFor('/refusal', { id: refusal.id })}">${renderTarget(refusal)}</a> <span class="meta"><span>${renderTime(refusal.time / 1_000)}</span>${refusal.from !== undefined && html`<span>${refusal.from}</span>`}<span class="mono">${refusal.id}</span></span></li>\n`;

export function refusalPage(refusal: RecentRefusal, context: RefusalContext): ConsolePage {
  const { id, reason, decision, path, method, client, grant } = refusal;
  const optional = (value: string | undefined): Markup | undefined =>
    value === undefined ? undefined : renderText(value);
  const code = (value: string | undefined): Markup | undefined =>
    value === undefined ? undefined : html`<code>${renderText(value)}</code>`;
  return {
    title: 'Refusal',
    body: html`<div class="card wide">
<h1>${renderTarget(refusal)}</h1>
<p class="note">${renderText(describeReason(reason ?? decision))}${context.verdict !== undefined && html` With the current configuration, ${renderText(context.verdict)}.`}</p>
${renderFacts([
  ['Reason', code(reason ?? decision)],
  ['Decision', decision === 'would_refuse' ? 'forwarded: the rule is report-only' : decision],
  ['Status', String(refusal.status)],
  ['Rule', optional(refusal.rule)],
  ['The rule requires', code(context.requirement)],
  ['The grant allows', code(context.grantScope)],
  ['State of the grant', context.grantState],
  ['Client', optional(client)],
  ['Name', optional(refusal.name)],
  ['Identity', optional(refusal.identity)],
  [
    'Grant',
    grant === undefined ? undefined : html`<a href="${urlFor('/grant', { id: grant })}"><code>${grant}</code></a>`,
  ],
  ['Upstream', optional(refusal.upstream)],
  ['Client address', optional(refusal.from)],
  ['Time', renderTime(refusal.time / 1_000)],
  ['Request id', html`<code>${id}</code>`],
])}
<div class="actions">
${path !== undefined && html`<a class="button" href="${urlFor('/explain', { method, path, ...(client !== undefined && { client }), ...(context.grantScope !== undefined && { scope: context.grantScope }) })}">Explain this request</a>`}
<a class="button second" href="${urlFor('/refusals')}">All refusals</a>
</div>
</div>`,
  };
}

export const unknownRefusalPage = (id: string): ConsolePage => ({
  ...noticePage(
    'No such refusal',
    `No recent refusal has the request id ${id}. Each process remembers its last 500 refusals, until it exits; search the log for the id.`,
  ),
  status: 404,
});
