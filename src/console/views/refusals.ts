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

export const refusalsPage = (
  text: string,
  refusals: readonly RecentRefusal[],
  hasMore: boolean,
): ConsolePage => ({
  title: 'Refusals',
  body: html`<h1>Recent refusals</h1>
<form class="search" method="get" action="${urlFor('/refusals')}" role="search">
<div><label for="q">Request id, path, reason, rule, client, name or address</label>
<input type="search" id="q" name="q" value="${text}" maxlength="256" spellcheck="false" autocomplete="off"></div>
<button type="submit">Search</button>
</form>
<p class="soft" role="status">${describeCount(text, refusals.length, hasMore)}</p>
${refusals.length > 0 && html`<ul class="rows card list">\n${refusals.map(renderRow)}</ul>`}`,
});

const describeCount = (text: string, count: number, hasMore: boolean): string => {
  if (count === 0)
    return text === ''
      ? 'No request has been refused since startup.'
      : 'None of the recent refusals matches. Each process remembers its last 500; the log has all of them.';
  return hasMore ? `The newest ${count}` : `${count}, newest first`;
};

const statusTone = (status: number) => (status >= 500 ? 'bad' : 'warn');

/** Requests that another gateway asked about show the original one. */
const renderTarget = ({ method, path, original }: RecentRefusal): Markup =>
  original === undefined
    ? html`${renderText(method, 32)} ${renderText(path ?? '(path hidden)')}`
    : renderText(original);

function renderRow(refusal: RecentRefusal): Markup {
  const { id, status, decision, reason, rule, client, name, identity, from, time } = refusal;
  return html`<li>
<div class="line-up"><h2><a href="${urlFor('/refusal', { id })}">${renderTarget(refusal)}</a></h2>${renderBadge(String(status), statusTone(status))}${decision === 'would_refuse' && renderBadge('forwarded: report-only')}</div>
<p>${renderText(reason ?? decision)}</p>
<p class="meta"><span>${renderTime(time / 1_000)}</span>${rule !== undefined && html`<span>${renderText(rule)}</span>`}${client !== undefined && html`<span>${renderText(client)}</span>`}${(name ?? identity) !== undefined && html`<span>${renderText(name ?? identity ?? '')}</span>`}${from !== undefined && html`<span>${from}</span>`}<span class="mono">${id}</span></p>
</li>
`;
}

export function refusalPage(refusal: RecentRefusal, context: RefusalContext): ConsolePage {
  const { id, reason, decision, path, method, client, grant } = refusal;
  const text = describeReason(reason ?? decision);
  const optional = (value: string | undefined): Markup | undefined =>
    value === undefined ? undefined : renderText(value);
  const code = (value: string | undefined): Markup | undefined =>
    value === undefined ? undefined : html`<code>${renderText(value)}</code>`;
  return {
    title: 'Refusal',
    body: html`<div class="card wide">
<h1>${renderTarget(refusal)}</h1>
${text !== undefined && html`<p class="note">${text}${context.verdict !== undefined && html` With the current configuration, ${renderText(context.verdict)}.`}</p>`}
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
    grant === undefined
      ? undefined
      : html`<a href="${urlFor('/grant', { id: grant })}"><code>${grant}</code></a>`,
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
