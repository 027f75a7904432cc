import { type AdminRequest, type GrantView, handleAdminRequest } from '../admin/grants-api.ts';
import type { FormFields } from '../pages/form.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { Fault } from '../ports/fault.ts';
import {
  type ConsoleFormHandler,
  type ConsoleHandler,
  type ConsolePage,
  type ConsoleRequest,
  urlFor,
} from './context.ts';
import {
  formatNumber,
  renderBadge,
  renderCode,
  renderFacts,
  renderText,
  renderTime,
  type Tone,
} from './views/format.ts';
import { noticePage } from './views/layout.ts';

const PAGE_SIZE = 100;
const SEARCH_MS = 2_000;
const MAX_TEXT = 1_024;

export const showGrants: ConsoleHandler = async (request) => {
  const search = readSearch(request.query);
  return grantsPage(request, search, await findGrants(request, search));
};

export const showGrant: ConsoleHandler = async (request) => {
  const found = await findGrant(request, request.query.get('id') ?? '');
  return found === undefined ? GRANT_NOT_FOUND : grantPage(request, found);
};

/** Asks before anything is revoked. */
export const confirmRevocation: ConsoleHandler = async (request) => {
  const selection = readSelection(request.query.get('by'), request.query.get('q'));
  if (request.identity.role !== 'operator') return READ_ONLY;
  if (selection === undefined) return UNKNOWN_SELECTION;
  const { by, text } = selection;
  if (by !== 'grant') {
    const search: GrantSearch = { by, text, withEnded: false, after: undefined };
    const result = await findGrants(request, search);
    return revokePage(request, ...(await pinIdentity(request, selection, result)));
  }
  const grant = await findGrant(request, text);
  return grant === undefined
    ? GRANT_NOT_FOUND
    : revokePage(request, selection, { grants: [grant], next: undefined, problem: undefined });
};

/**
 * A person is revoked by the identity that is shown: another person may have the name by the time the form is submitted. After an
 * incomplete search, the grants that were not read may be of other people, so the name stays unless a directory knows whose it is.
 * The API then searches all grants, and refuses if several people match.
 */
async function pinIdentity(
  { deps }: ConsoleRequest,
  selection: Selection,
  result: GrantSearchResult,
): Promise<[Selection, GrantSearchResult]> {
  const { by, text } = selection;
  const identities = [...new Set(result.grants.map(({ identity }) => identity))];
  const [identity] = identities;
  if ((by !== 'name' && by !== 'email') || identity === undefined) return [selection, result];
  if (identities.length > 1) {
    const problem = { text: 'Several people match. Choose an identity:', identities };
    return [selection, { ...result, problem }];
  }
  if (result.next !== undefined) {
    const known = await deps.getApi()?.findIdentities(by === 'name' ? 'userName' : 'email', text);
    if (known?.length !== 1 || known[0] !== identity) return [selection, result];
  }
  return [{ by: 'identity', text: identity }, result];
}

export const revoke: ConsoleFormHandler = async (request, fields) => {
  const selection = readSelection(fields.get('by'), fields.get('q'));
  if (selection === undefined) return UNKNOWN_SELECTION;
  const { by, text } = selection;
  const isSingle = by === 'grant';
  const { status, body } = await callApi(request, {
    method: 'POST',
    path: isSingle ? `/grants/${text}/revoke` : '/revoke',
    readSelection: async () => ({ [by]: text }),
  });
  if (status === 200)
    return {
      redirect: isSingle ? urlFor('/grant', { id: text }) : urlFor('/grants', { by, q: text, ended: '1' }),
    };
  const { error_description: problem = 'Nothing was revoked.' } = body as { error_description?: string };
  return noticePage('Not revoked', problem, status);
};

/** The form token is valid for this selection only. */
export const getRevocationSubject = (fields: FormFields): string =>
  formatRevocationSubject(fields.get('by') ?? '', fields.get('q') ?? '');

const GRANT_NOT_FOUND = noticePage(
  'No such grant',
  'No grant has this id. It may have ended, and its record may have been deleted.',
  404,
);
const UNKNOWN_SELECTION = noticePage('Nothing selected', 'Search for grants, and revoke from the result.', 400);
export const READ_ONLY = noticePage('Read-only access', 'You signed in as a viewer: you cannot revoke grants.', 403);

function readSelection(by: string | null | undefined, text: string | null | undefined): Selection | undefined {
  const isKnown = by === 'grant' || isSearchField(by);
  if (!isKnown || text === null || text === undefined || text === '' || text.length > MAX_TEXT) return undefined;
  // A prefix is for searches only.
  return text.endsWith('*') || (by === 'grant' && !GRANT_ID.test(text)) ? undefined : { by, text };
}

function readSearch(query: URLSearchParams) {
  const by = query.get('by');
  return {
    by: isSearchField(by) ? by : ('name' as const),
    /** If empty, all grants are listed. */
    text: (query.get('q') ?? '').trim().slice(0, MAX_TEXT),
    withEnded: query.get('ended') === '1',
    /** `next` of the previous page. */
    after: query.get('after') ?? undefined,
  };
}

const GRANT_ID = /^[A-Za-z0-9_-]{1,64}$/;

export async function findGrant(request: ConsoleRequest, id: string): Promise<GrantView | undefined> {
  if (!GRANT_ID.test(id)) return undefined;
  const { status, body } = await callApi(request, { method: 'GET', path: `/grants/${id}` });
  if (status === 503) throw new Fault('store_unavailable', 'the grant cannot be read');
  return status === 200 ? (body as GrantView) : undefined;
}

/** Up to about a page of grants; `next` continues. */
async function findGrants(
  request: ConsoleRequest,
  { by, text, withEnded, after }: GrantSearch,
): Promise<GrantSearchResult> {
  const { status, body } = await callApi(request, {
    method: 'GET',
    path: '/grants',
    query: new URLSearchParams({
      ...(text !== '' && { [by]: text }),
      state: withEnded ? 'all' : 'live',
      limit: String(PAGE_SIZE),
      ...(after !== undefined && { after }),
    }),
    searchTime: SEARCH_MS,
  });
  if (status !== 200) {
    const { error_description: problem = 'The search failed.', identities = [] } = body as {
      error_description?: string;
      identities?: readonly string[];
    };
    return { grants: [], next: undefined, problem: { text: problem, identities } };
  }
  const { grants, next } = body as { readonly grants: readonly GrantView[]; readonly next?: string };
  return { grants, next, problem: undefined };
}

/** The functions of the admin API, which also record what they do in the audit log. */
function callApi(
  { deps, identity, peer }: ConsoleRequest,
  request: Partial<AdminRequest> & Pick<AdminRequest, 'method' | 'path'>,
) {
  const api = deps.getApi();
  if (api === undefined) throw new Fault('store_unavailable', 'has not been reached yet');
  return handleAdminRequest(api, {
    query: new URLSearchParams(),
    by: identity.name,
    from: peer,
    ...request,
  });
}

/** What grants are searched by, as in the admin API. */
const SEARCH_FIELDS = {
  name: { label: 'Person: user name', kind: 'person' },
  email: { label: 'Person: email address', kind: 'person' },
  identity: { label: 'Person or machine: identity', kind: 'identity' },
  client: { label: 'Client: client id', kind: 'client' },
  serial: { label: 'Certificate: serial number', kind: 'certificate' },
  fingerprint: { label: 'Certificate: SHA-256 fingerprint', kind: 'certificate' },
  subject: { label: 'Certificate: subject', kind: 'certificate' },
} as const;
type SearchField = keyof typeof SEARCH_FIELDS;
const isSearchField = (name: string | null | undefined): name is SearchField =>
  name !== null && name !== undefined && Object.hasOwn(SEARCH_FIELDS, name);

type GrantSearch = ReturnType<typeof readSearch>;

interface GrantSearchResult {
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
<select id="by" name="by">${Object.entries(SEARCH_FIELDS).map(([name, { label }]) => html`<option value="${name}"${name === by && { markup: ' selected' }}>${label}</option>`)}</select></div>
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
${mayRevoke && html`<a class="button second" href="${urlFor('/revoke', { by, q: text })}">Revoke all of this ${SEARCH_FIELDS[by].kind}…</a>`}</div>`
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

function grantPage({ identity }: ConsoleRequest, grant: GrantView): ConsolePage {
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

const renderGrantFacts = (grant: GrantView): Markup =>
  renderFacts([
    ['State', renderBadge(grant.state, STATE_TONES[grant.state])],
    ['Name', grant.name],
    ['E-mail', grant.email],
    ['Identity', grant.identity],
    ['Groups', grant.groups?.join(', ')],
    ['Client', grant.client],
    ['Scope', renderCode(grant.scope)],
    ['Obtained by', grant.by],
    ['Issued', renderTime(grant.issued)],
    ['Last refreshed', grant.refreshes === 0 ? undefined : renderTime(grant.last_refreshed)],
    ['Refreshes', String(grant.refreshes)],
    ['Until', renderTime(grant.until)],
    ['Revoked', grant.revoked === undefined ? undefined : renderTime(grant.revoked)],
    ['Certificate subject', grant.certificate_subject],
    ['Certificate issuer', grant.certificate_issuer],
    ['Certificate serial', grant.certificate_serial],
    ['Fingerprint', grant.certificate_fingerprint],
    ['Exchanged from', grant.exchanged_from],
    ['Bound', grant.bound_to_certificate === true ? 'to its certificate' : undefined],
    ['Grant id', html`<code>${grant.id}</code>`],
  ]);

/** What a form revokes: one grant, or everything of a search. */
interface Selection {
  readonly by: SearchField | 'grant';
  readonly text: string;
}

/** What the token of the form is bound to. */
const formatRevocationSubject = (by: string, text: string): string => JSON.stringify([by, text]);

/** Asks for confirmation: a revocation cannot be undone. */
export function revokePage(
  { renderFormToken }: ConsoleRequest,
  { by, text }: Selection,
  { grants, next, problem }: GrantSearchResult,
): ConsolePage {
  const [grant] = grants;
  const certificates = new Set(grants.flatMap((one) => one.certificate_fingerprint ?? []));
  return {
    title: 'Revoke',
    body: html`<div class="card wide">
<h1>${by === 'grant' ? 'Revoke this grant?' : `Revoke all grants of this ${SEARCH_FIELDS[by].kind}?`}</h1>
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

const isCertificateField = (by: Selection['by']): boolean => by !== 'grant' && SEARCH_FIELDS[by].kind === 'certificate';

function describeEffect(by: Selection['by']): string {
  if (by === 'client')
    return 'This revokes every grant and token issued to this client so far. New ones are not affected.';
  if (isCertificateField(by))
    return 'This revokes every grant issued for this certificate. Revoke the certificate as well, or its holder can obtain a new grant.';
  return 'This revokes every grant and token issued to this identity so far, for all clients. New ones are not affected.';
}
