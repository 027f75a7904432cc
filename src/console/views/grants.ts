import type { GrantView } from '../../admin/grants-api.ts';
import { html, type Markup } from '../../pages/views/html.ts';
import { type ConsolePage, type ConsoleRequest, urlFor } from '../context.ts';
import { formatNumber, renderBadge, renderFacts, renderText, renderTime, type Tone } from './format.ts';

/** What grants are searched by, as in the admin API. */
const SEARCH_FIELDS = {
  name: 'Person: user name',
  email: 'Person: email address',
  identity: 'Person or machine: identity',
  client: 'Client: client id',
  serial: 'Certificate: serial number',
  fingerprint: 'Certificate: SHA-256 fingerprint',
  subject: 'Certificate: subject',
} as const;
export type SearchField = keyof typeof SEARCH_FIELDS;
export const isSearchField = (name: string | null | undefined): name is SearchField =>
  name !== null && name !== undefined && Object.hasOwn(SEARCH_FIELDS, name);

export interface GrantSearch {
  readonly by: SearchField;
  /** If empty, all grants are listed. */
  readonly text: string;
  readonly withEnded: boolean;
  /** `next` of the previous page. */
  readonly after: string | undefined;
}

export interface GrantSearchResult {
  readonly grants: readonly GrantView[];
  readonly next: string | undefined;
  readonly problem: { readonly text: string; readonly identities: readonly string[] } | undefined;
}

const STATE_TONES: Readonly<Record<string, Tone>> = { live: 'good', revoked: 'bad', expired: 'neutral' };

export function grantsPage(
  { identity }: ConsoleRequest,
  search: GrantSearch,
  { grants, next, problem }: GrantSearchResult,
): ConsolePage {
  const { by, text, withEnded } = search;
  const mayRevoke =
    identity.role === 'operator' && text !== '' && !text.endsWith('*') && grants.some(({ state }) => state === 'live');
  return {
    title: 'Grants',
    body: html`<h1>Grants</h1>
<form class="search" method="get" action="${urlFor('/grants')}" role="search">
<div><label for="by">Search by</label>
<select id="by" name="by">${Object.entries(SEARCH_FIELDS).map(([name, label]) => html`<option value="${name}"${name === by && { markup: ' selected' }}>${label}</option>`)}</select></div>
<div><label for="q">Search for</label>
<input type="search" id="q" name="q" value="${text}" maxlength="1024" spellcheck="false" autocomplete="off" aria-describedby="q-hint"></div>
<label class="check"><input type="checkbox" name="ended" value="1"${withEnded && { markup: ' checked' }}>Include expired and revoked</label>
<button type="submit">Search</button>
<p class="hint" id="q-hint">The whole value, or its beginning followed by an asterisk: <code>ali*</code>. Serial numbers and fingerprints only as a whole.</p>
</form>
${problem !== undefined && renderProblem(problem)}
${
  problem === undefined &&
  html`<div class="title"><p class="soft" role="status">${describeCount(search, grants.length, next !== undefined)}</p>
${mayRevoke && html`<a class="button second" href="${urlFor('/revoke', { by, q: text })}">Revoke all of this ${describeField(by)}…</a>`}</div>`
}
${grants.length > 0 && html`<ul class="rows card list">\n${sortByTime(grants).map(renderGrantRow)}</ul>`}
${next !== undefined && html`<p class="more"><a class="button second" href="${urlFor('/grants', { by, q: text, ...(withEnded && { ended: '1' }), after: next })}">${grants.length === 0 ? 'Continue the search' : 'More grants'}</a></p>`}`,
  };
}

const renderProblem = ({
  text,
  identities,
}: NonNullable<
  GrantSearchResult['problem']
>): Markup => html`<div class="note bad" role="alert"><p>${renderText(text)}</p>
${identities.length > 0 && html`<ul>${identities.map((identity) => html`<li><a href="${urlFor('/grants', { by: 'identity', q: identity })}">${renderText(identity)}</a></li>`)}</ul>`}</div>`;

function describeCount({ text, withEnded }: GrantSearch, count: number, hasMore: boolean): string {
  const kind = withEnded ? 'grant' : 'live grant';
  if (count === 0) return hasMore ? `No ${kind} found so far.` : `No ${kind} ${text === '' ? 'exists' : 'matches'}.`;
  return `${formatNumber(count)} ${kind}${count === 1 ? '' : 's'}${hasMore ? ', and more' : ''}`;
}

const describeField = (by: SearchField): string =>
  by === 'client'
    ? 'client'
    : by === 'name' || by === 'email'
      ? 'person'
      : by === 'identity'
        ? 'identity'
        : 'certificate';

/** Newest first, within a page: stores list by id. */
const sortByTime = (grants: readonly GrantView[]): readonly GrantView[] =>
  grants.toSorted((one, other) => other.last_refreshed - one.last_refreshed);

function renderGrantRow(grant: GrantView): Markup {
  const { id, name, identity, client, scope, state, by, last_refreshed, refreshes, until } = grant;
  return html`<li>
<div class="line-up"><h2><a href="${urlFor('/grant', { id })}">${renderText(name ?? identity)}</a></h2>${renderBadge(state, STATE_TONES[state])}<span>${renderText(client)}</span></div>
<p class="mono">${renderText(scope)}</p>
<p class="meta"><span>${by}</span><span>${refreshes === 0 ? 'issued' : 'refreshed'} ${renderTime(last_refreshed)}</span><span>until ${renderTime(until)}</span>${name !== undefined && html`<span>${renderText(identity)}</span>`}</p>
</li>
`;
}

export function grantPage({ identity }: ConsoleRequest, grant: GrantView): ConsolePage {
  const { id, state } = grant;
  return {
    title: 'Grant',
    body: html`<div class="card wide">
<h1>Grant of ${renderText(grant.name ?? grant.identity)}</h1>
${renderGrantFacts(grant)}
<div class="actions">
${state === 'live' && identity.role === 'operator' && html`<a class="button danger" href="${urlFor('/revoke', { by: 'grant', q: id })}">Revoke…</a>`}
<a class="button second" href="${urlFor('/refusals', { q: id })}">Recent refusals</a>
<a class="button second" href="${urlFor('/grants', { by: 'identity', q: grant.identity })}">All grants of this identity</a>
</div>
</div>`,
  };
}

function renderGrantFacts(grant: GrantView): Markup {
  const text = (value: string | undefined): Markup | undefined => (value === undefined ? undefined : renderText(value));
  return renderFacts([
    ['State', renderBadge(grant.state, STATE_TONES[grant.state])],
    ['Name', text(grant.name)],
    ['E-mail', text(grant.email)],
    ['Identity', text(grant.identity)],
    ['Groups', text(grant.groups?.join(', '))],
    ['Client', text(grant.client)],
    ['Scope', html`<code>${renderText(grant.scope)}</code>`],
    ['Obtained by', grant.by],
    ['Issued', renderTime(grant.issued)],
    ['Last refreshed', grant.refreshes === 0 ? undefined : renderTime(grant.last_refreshed)],
    ['Refreshes', String(grant.refreshes)],
    ['Until', renderTime(grant.until)],
    ['Revoked', grant.revoked === undefined ? undefined : renderTime(grant.revoked)],
    ['Certificate subject', text(grant.certificate_subject)],
    ['Certificate issuer', text(grant.certificate_issuer)],
    ['Certificate serial', text(grant.certificate_serial)],
    ['Fingerprint', text(grant.certificate_fingerprint)],
    ['Exchanged from', text(grant.exchanged_from)],
    ['Bound', grant.bound_to_certificate === true ? 'to its certificate' : undefined],
    ['Grant id', html`<code>${grant.id}</code>`],
  ]);
}

interface RevokeSelection {
  readonly by: SearchField | 'grant';
  readonly text: string;
}

/** What the token of the form is bound to. */
export const formatRevocationSubject = (by: string, text: string): string => JSON.stringify([by, text]);

/** Asks for confirmation: a revocation cannot be undone. */
export function revokePage(
  { renderFormToken }: ConsoleRequest,
  { by, text }: RevokeSelection,
  { grants, next, problem }: GrantSearchResult,
): ConsolePage {
  const [grant] = grants;
  const certificates = new Set(grants.flatMap((one) => one.certificate_fingerprint ?? []));
  return {
    title: 'Revoke',
    body: html`<div class="card wide">
<h1>${by === 'grant' ? 'Revoke this grant?' : `Revoke all grants of this ${describeField(by)}?`}</h1>
${problem !== undefined && renderProblem(problem)}
${
  by === 'grant' && grant !== undefined
    ? html`<p>Its tokens are rejected at once, on every replica. This cannot be undone.</p>${renderGrantFacts(grant)}`
    : html`<p><b>${renderText(text)}</b>: ${describeAffected(grants.length, next !== undefined)}.</p>
${isCertificateField(by) && certificates.size > 1 && html`<p class="note bad" role="alert">These are grants of ${certificates.size} different certificates.</p>`}
<p>${describeEffect(by)} Tokens are rejected at once, on every replica. This cannot be undone.</p>
${renderAffected(grants, next !== undefined)}`
}
<div class="actions">
${
  problem === undefined &&
  html`<form method="post" action="${urlFor('/revoke')}">
${renderFormToken('/revoke', formatRevocationSubject(by, text))}<input type="hidden" name="by" value="${by}"><input type="hidden" name="q" value="${text}">
<button class="danger" type="submit">Revoke</button>
</form>`
}
<a class="button second" href="${by === 'grant' ? urlFor('/grant', { id: text }) : urlFor('/grants', { by, q: text })}">Cancel</a>
</div>
</div>`,
  };
}

function describeAffected(count: number, hasMore: boolean): string {
  if (count === 0 && hasMore) return 'no live grant found so far; all are searched when you revoke';
  return `${formatNumber(count)}${hasMore ? ' or more' : ''} live grant${count === 1 && !hasMore ? '' : 's'}`;
}

const MAX_AFFECTED = 5;

function renderAffected(grants: readonly GrantView[], hasMore: boolean): Markup {
  if (grants.length === 0) return html``;
  const hidden = grants.length - MAX_AFFECTED;
  return html`<ul class="rows card list">\n${sortByTime(grants).slice(0, MAX_AFFECTED).map(renderGrantRow)}</ul>
${hidden > 0 && html`<p class="soft">and ${hidden}${hasMore && ' or more'} others</p>`}`;
}

const isCertificateField = (by: RevokeSelection['by']): boolean =>
  by === 'serial' || by === 'fingerprint' || by === 'subject';

function describeEffect(by: RevokeSelection['by']): string {
  if (by === 'client')
    return 'This revokes every grant and token issued to this client so far. New ones are not affected.';
  if (isCertificateField(by))
    return 'This revokes every grant issued for this certificate. Revoke the certificate as well, or its holder can obtain a new grant.';
  return 'This revokes every grant and token issued to this identity so far, for all clients. New ones are not affected.';
}
