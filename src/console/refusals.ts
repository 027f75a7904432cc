import type { Refusal } from '../domain/refusal.ts';
import { parseScope } from '../domain/scope.ts';
import { REJECTION_FAULTS } from '../domain/token-rejection.ts';
import type { RecentRefusal } from '../observability/recent-events.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { Fault } from '../ports/fault.ts';
import { type ProxyRefusal, TOKEN_FAULT_DESCRIPTIONS } from '../proxy/policy/refusals.ts';
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

type Reason = Refusal['reason'] | ProxyRefusal['reason'] | 'upstream_aborted' | 'internal_error';

/** The reasons whose code says too little to an operator. */
const REASON_TEXTS: Partial<Record<Reason, string>> = {
  token_missing: 'The request has no access token.',
  token_invalid: 'The access token is not valid.',
  insufficient_scope: 'The token does not include the scope that the rule requires.',
  client_not_allowed: 'The rule is for other clients.',
  no_rule: 'No rule matches the request.',
  malformed: 'The request is malformed or ambiguous.',
  misdirected: 'The request names a host that is not served.',
  misdirected_connection:
    'The request names a host with other rules for client certificates than the host of its TLS connection.',
  target_too_long: 'The request target is longer than limits.url.',
  head_too_large: 'The header section is larger than limits.headers.',
  service_worker_script: 'The API may not serve service workers on the origin of the pages.',
  upgrade_not_allowed: 'The rule does not allow WebSockets.',
  body_too_large: 'The body is larger than limits.body, or than 16 KiB at the token service.',
  upstream_failed: 'The upstream could not be reached, or the connection broke.',
  upstream_aborted: 'The upstream ended the response early.',
  deadline_exceeded: 'The deadline of the gRPC call (grpc-timeout) passed before the upstream responded.',
  overloaded: 'Too many requests were waiting.',
  unavailable: 'The request could not be decided: a dependency is unreachable.',
  peer_not_trusted: 'Forward-auth requests are accepted from trusted proxies only.',
  original_request_ambiguous: 'The proxy did not say clearly which request it asks about.',
  interaction_required: 'The user would have to sign in or approve, and the request forbids it.',
  refresh_token_reused: 'The refresh token was used before: it may have been stolen, so its grant was revoked.',
  target_invalid: 'The requested API is not one of the integration.',
  identity_unknown: 'The name in the certificate or token is not in the directory.',
  certificate_status_unknown: 'It is not known whether the client certificate has been revoked.',
  code_binding_mismatch: 'The authorization code belongs to another client, redirect URI or PKCE challenge.',
  device_closed: 'The request of the device was closed after too many failed sign-ins.',
  internal_error: 'Internal error; the log has the details under this request id.',
};

const TEXTS: ReadonlyMap<string, string> = new Map([
  ...Object.entries(TOKEN_FAULT_DESCRIPTIONS).map(([fault, text]) => [`token_${fault}`, text] as const),
  ...Object.entries(REASON_TEXTS),
]);

/**
 * What a reason of the access log means, in sentences. A reason is a code, or a code and a detail (`code: detail` or
 * `code (detail)`); the detail of a token is why its issuer's token is rejected.
 */
function describeReason(reason: string): string {
  const [, code = '', afterColon, inBrackets] = /^(\w+)(?:: (.*)| \((.*)\))?$/s.exec(reason) ?? [];
  const detail = afterColon ?? inBrackets;
  const words = (code || reason).replaceAll('_', ' ');
  const text = TEXTS.get(code) ?? `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;
  if (detail === undefined) return text;
  if (code === 'insufficient_scope') return `The token does not include ${detail}, which the rule requires.`;
  const [fault = ''] = detail.split(' ', 1);
  if (code.startsWith('token_') && isRejectionFault(fault))
    return `${text} ${REJECTION_FAULTS[fault].replaceAll('`', '')}`;
  return `${text.slice(0, -1)}: ${detail}.`;
}

const isRejectionFault = (name: string): name is keyof typeof REJECTION_FAULTS => Object.hasOwn(REJECTION_FAULTS, name);
