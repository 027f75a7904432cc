import { setImmediate as nextIteration } from 'node:timers/promises';
import { type Grant, getGrantState, normalizeSerial } from '../domain/grant.ts';
import { certificateFields } from '../grants/issue.ts';
import {
  type GrantHolder,
  isGrantRevoked,
  revokeAllGrants,
  revokeForeignTokens,
  revokeGrant,
} from '../grants/revoke.ts';
import type { JsonResponse } from '../http/json-response.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import { isJsonObject, type JsonObject, parseStrictJson } from '../lib/strict-json.ts';
import type { LogFields, Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantFilter, GrantPrefix, GrantQuery } from '../ports/grant-index.ts';
import type { Store, StoredRecord } from '../ports/store.ts';
import type { AdminMessage } from './node-request.ts';

export interface AdminApiDeps {
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => number;
  /** Seconds that a revocation of a client or an identity must be kept. */
  readonly longestGrant: () => number;
  /** Whether this is an integration, or a client of a trusted issuer: `<issuer>/<client id>`. */
  readonly hasClient: (clientId: string) => boolean;
  /** Whether URLs are clients of their own with the settings of this integration. */
  readonly hasDocumentClients: (clientId: string) => boolean;
  readonly hasIssuer: (name: string) => boolean;
  /** The id under which the tokens of a trusted issuer with this `jti` are revoked. */
  readonly getForeignTokenId: (issuer: string, jti: string) => string;
  /** The identity of a subject of a trusted issuer. */
  readonly getForeignIdentity: (issuer: string, subject: string) => string;
  /** All identities with this user name or email address. Throws a `Fault` when a directory is unreachable. */
  readonly findIdentities: (attribute: 'userName' | 'email', value: string) => Promise<readonly string[]>;
  /** Whether this user is disabled in the directory. Throws a `Fault` when the directory is unreachable. */
  readonly isDisabled: (identity: string) => Promise<boolean>;
}

/** A request whose sender has been authenticated. */
export interface AdminRequest {
  readonly method: string;
  /** Below /admin/v1, such as /grants. */
  readonly path: string;
  readonly query: URLSearchParams;
  /** Selects what to revoke. */
  readonly readSelection?: () => Promise<JsonObject>;
  /** A list reads further pages until `limit` grants are found, or for this time (milliseconds). */
  readonly searchTime?: number;
  /** The operator's name for the audit log. */
  readonly by: string;
  /** The operator's address. */
  readonly from?: string | undefined;
}

/** Who revokes, for the audit log. */
type Operator = Pick<AdminRequest, 'by' | 'from'>;

/** Members and parameters by which grants can be found. */
const SELECTORS = ['identity', 'name', 'email', 'serial', 'fingerprint', 'subject'] as const;
interface GrantSelector {
  readonly field: (typeof SELECTORS)[number];
  readonly value: string;
}
const MAX_SELECTOR_LENGTH = 1_024;

const MAX_LIMIT = 1_000;
const DEFAULT_LIMIT = 100;
const MAX_BODY = 4_096;
const BODY_TIMEOUT_SECONDS = 5;
const GRANT_ID = /^[A-Za-z0-9_-]{1,64}$/;
/** Stores use a grant id, with or without a numeric prefix. */
const CURSOR = /^[A-Za-z0-9_ -]{1,96}$/;

/** Lists, shows and revokes grants. */
export async function handleAdminRequest(deps: AdminApiDeps, request: AdminRequest): Promise<JsonResponse> {
  try {
    return await route(deps, request);
  } catch (error) {
    if (error instanceof AdminResponseError) return error.response;
    if (!(error instanceof Fault)) throw error;
    deps.log.error('admin_request_failed', { code: error.code });
    const dependency = error.code === 'directory_unavailable' ? 'A directory' : 'The store';
    return createErrorResponse(503, 'temporarily_unavailable', `${dependency} is unreachable; try again.`, {
      'retry-after': String(error.retryAfter),
    });
  }
}

async function route(deps: AdminApiDeps, request: AdminRequest): Promise<JsonResponse> {
  const [, resource, id = '', action] = /^\/(grants|revoke)(?:\/([^/]+))?(?:\/(revoke))?$/.exec(request.path) ?? [];
  if (resource === undefined || (resource === 'revoke' && id !== '')) throw notFound('No such resource.');
  if (resource === 'revoke') return allowMethod('POST', request, () => revokeMany(deps, request));
  if (id === '') return allowMethod('GET', request, () => listGrants(deps, request));
  if (!GRANT_ID.test(id)) throw badRequest('A grant id consists of letters, digits, - and _.');
  return action === undefined
    ? allowMethod('GET', request, () => showGrant(deps, id))
    : allowMethod('POST', request, () => revokeOne(deps, id, getOperator(request)));
}

const getOperator = ({ by, from }: AdminRequest): Operator => ({ by, from });

const allowMethod = async (
  method: 'GET' | 'POST',
  request: AdminRequest,
  handle: () => Promise<JsonResponse>,
): Promise<JsonResponse> =>
  request.method === method || (request.method === 'HEAD' && method === 'GET')
    ? handle()
    : createErrorResponse(405, 'method_not_allowed', `This resource supports ${method}.`, { allow: method });

async function listGrants(deps: AdminApiDeps, { query, searchTime = 0 }: AdminRequest): Promise<JsonResponse> {
  const deadline = performance.now() + searchTime;
  const readSingle = (name: string): string | undefined => {
    const [first, second] = query.getAll(name);
    if (second !== undefined) throw badRequest(`${name} occurs more than once.`);
    return first;
  };
  for (const name of query.keys())
    if (!QUERY_PARAMETERS.has(name)) throw badRequest(`Unknown parameter ${name.slice(0, 32)}.`);
  const state = readSingle('state') ?? 'live';
  if (state !== 'live' && state !== 'all') throw badRequest('state must be live or all.');
  const limit = readSingle('limit') ?? String(DEFAULT_LIMIT);
  if (!/^[1-9]\d{0,3}$/.test(limit) || Number(limit) > MAX_LIMIT)
    throw badRequest(`limit must be a number from 1 to ${MAX_LIMIT}.`);
  const [clientId, after] = [readSingle('client'), readSingle('after')];
  if (after !== undefined && !CURSOR.test(after)) throw badRequest('after must be the next of a previous page.');
  const [selector, ...otherSelectors] = SELECTORS.flatMap((field) => {
    const value = readSingle(field);
    return value === undefined ? [] : [{ field, value }];
  });
  if (otherSelectors.length > 0) throw badRequest(`Use only one of ${SELECTORS.join(', ')}.`);
  const clientSelector = clientId === undefined ? undefined : { field: 'client' as const, value: clientId };
  const [prefix, otherPrefix] = [selector, clientSelector].flatMap((one) => readPrefix(one) ?? []);
  if (otherPrefix !== undefined) throw badRequest('Use only one prefix.');
  const selection = {
    ...(selector !== undefined && prefix?.field !== selector.field && (await resolveSelector(deps, selector))),
    ...(clientId !== undefined && prefix?.field !== 'client' && { clientId }),
  };
  // A selector that is a prefix has no filter of its own.
  const filter = { ...selection.filter, ...(prefix !== undefined && { prefix }) };
  const grants = new Map<string, GrantView>();
  let next = after;
  do {
    await waitForOtherSearches();
    const page = await deps.store.grantIndex.list({
      limit: Number(limit),
      ...selection,
      filter,
      ...(next !== undefined && { after: next }),
    });
    for (const grant of page.grants) {
      const view = formatGrant(deps, grant);
      if (state === 'all' || view.state === 'live') grants.set(view.id, view);
    }
    ({ next } = page);
  } while (next !== undefined && grants.size < Number(limit) && performance.now() < deadline);
  return {
    status: 200,
    body: { grants: [...grants.values()], ...(next !== undefined && { next }) },
  };
}

const PREFIX_FIELDS: ReadonlySet<string> = new Set<GrantPrefix['field']>([
  'identity',
  'client',
  'name',
  'email',
  'subject',
]);

/**
 * A value that ends with `*` selects what begins with the text before it. Only lists have prefixes; revocations never
 * do.
 */
function readPrefix(
  selector: { readonly field: GrantSelector['field'] | 'client'; readonly value: string } | undefined,
): GrantPrefix | undefined {
  if (selector === undefined || !selector.value.endsWith('*') || !PREFIX_FIELDS.has(selector.field)) return undefined;
  const text = selector.value.slice(0, -1);
  if (text === '' || text.length > MAX_SELECTOR_LENGTH)
    throw badRequest(`A prefix of ${selector.field} must have 1 to ${MAX_SELECTOR_LENGTH} characters before the *.`);
  return { field: selector.field as GrantPrefix['field'], text };
}

let lastSearch: Promise<unknown> = Promise.resolve();

/** All searches together read one page per iteration of the event loop. Revocations do not wait for searches. */
function waitForOtherSearches(): Promise<unknown> {
  lastSearch = lastSearch.then(() => nextIteration());
  return lastSearch;
}

const QUERY_PARAMETERS: ReadonlySet<string> = new Set([...SELECTORS, 'client', 'state', 'limit', 'after']);

/** The indexed query for an identity, a name or an address that a directory knows; otherwise a filter on all grants. */
async function resolveSelector(
  deps: AdminApiDeps,
  { field, value }: GrantSelector,
): Promise<Pick<GrantQuery, 'identity' | 'filter'>> {
  if (value === '' || value.length > MAX_SELECTOR_LENGTH)
    throw badRequest(`${field} must have 1 to ${MAX_SELECTOR_LENGTH} characters.`);
  switch (field) {
    case 'identity':
      return { identity: value };
    case 'name':
    case 'email': {
      const identities = await deps.findIdentities(field === 'name' ? 'userName' : 'email', value);
      const [identity] = identities;
      if (identities.length > 1) throw ambiguous(identities);
      return identity === undefined ? { filter: { [field]: value } } : { identity };
    }
    case 'serial': {
      // As `openssl x509 -serial` prints it.
      const serial = value.replace(/^serial=/i, '');
      if (!/^[0-9A-Fa-f:]+$/.test(serial)) throw badRequest('serial must be hexadecimal.');
      return { filter: { serial: normalizeSerial(serial) } };
    }
    case 'fingerprint':
      return { filter: { fingerprint: parseFingerprint(value) } };
    case 'subject':
      return { filter: { subject: value } };
  }
}

/** Hexadecimal, as `openssl x509 -fingerprint -sha256` prints it, or base64url, as in `x5t#S256`. */
function parseFingerprint(text: string): string {
  const hex = text.replace(/^sha256 fingerprint=/i, '').replaceAll(':', '');
  if (/^[0-9A-Fa-f]{64}$/.test(hex)) return Buffer.from(hex, 'hex').toString('base64url');
  if (/^[A-Za-z0-9_-]{43}$/.test(text)) return text;
  throw badRequest('fingerprint must be a SHA-256 digest, hexadecimal or base64url.');
}

async function showGrant(deps: AdminApiDeps, id: string): Promise<JsonResponse> {
  const found = await deps.store.grants.read(id);
  if (found === undefined) throw notFound('No grant has this id.');
  return { status: 200, body: formatGrant(deps, found.record) };
}

async function revokeOne(deps: AdminApiDeps, id: string, operator: Operator): Promise<JsonResponse> {
  let found: StoredRecord<Grant> | undefined;
  try {
    found = await deps.store.grants.read(id);
  } catch (error) {
    // Revoke it even though the request fails.
    await revokeUnread(deps, id, operator);
    throw error;
  }
  if (found === undefined) {
    await revokeUnread(deps, id, operator);
    throw notFound('No grant has this id.');
  }
  await revokeFound(deps, found.record, operator);
  return { status: 200, body: { ended: id } };
}

async function revokeFound(deps: AdminApiDeps, grant: Grant, operator: Operator, details?: LogFields): Promise<void> {
  await revokeGrant(deps, grant);
  const { id, clientId, identity, profile } = grant;
  const fields = { grant: id, client: clientId, identity, name: profile?.name, ...details };
  deps.log.audit('admin_action', { act: 'revoke_grant', ...operator, ...fields });
}

/** A missing record may have been tampered with and may be restored later: revoke the grant anyway. */
async function revokeUnread(deps: AdminApiDeps, id: string, operator: Operator): Promise<void> {
  await deps.store.revocations.announce({
    of: 'grant',
    grantId: id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.ceil(deps.now()) + deps.longestGrant() + 86_400,
  });
  deps.log.audit('admin_action', { act: 'revoke_grant', ...operator, grant: id });
}

async function revokeMany(deps: AdminApiDeps, adminRequest: AdminRequest): Promise<JsonResponse> {
  const operator = getOperator(adminRequest);
  const selection = await resolveSelection(deps, (await adminRequest.readSelection?.()) ?? {});
  if ('jti' in selection) return revokeForeignToken(deps, selection, operator);
  if ('filter' in selection) return revokeFiltered(deps, selection.filter, operator);
  const { holder } = selection;
  // Only the count reads records: an unreadable record must not prevent the revocation.
  const live = await countLiveGrants(deps, holder).catch((error: unknown) => {
    if (error instanceof Fault) return undefined;
    throw error;
  });
  await revokeAllGrants(deps, holder, deps.longestGrant());
  const { of: kind, ...subject } = holder;
  const ended = 'clientId' in subject ? { client: subject.clientId } : subject;
  deps.log.audit('admin_action', { act: `revoke_all_of_${kind}`, ...operator, ...ended });
  // If the directory is unreachable, the revocation has succeeded all the same.
  const isDisabled = holder.of === 'identity' && (await deps.isDisabled(holder.identity).catch(() => false));
  return {
    status: 200,
    body: {
      ended,
      ...(live !== undefined && { live_grants: live }),
      ...(isDisabled && { user_disabled: true }),
      ...('clientId' in subject &&
        deps.hasDocumentClients(subject.clientId) && { document_clients_not_included: true }),
    },
  };
}

/** Revokes one token of a trusted issuer. The admin API does not know until when it is valid. */
async function revokeForeignToken(
  deps: AdminApiDeps,
  { issuer, jti }: ForeignToken,
  operator: Operator,
): Promise<JsonResponse> {
  await revokeForeignTokens(deps, deps.getForeignTokenId(issuer, jti));
  deps.log.audit('admin_action', { act: 'revoke_token', ...operator, issuer, jti });
  return { status: 200, body: { ended: { issuer, jti } } };
}

/** Revokes the grants that were issued for a certificate, one by one. Its identity may have others. */
async function revokeFiltered(deps: AdminApiDeps, filter: GrantFilter, operator: Operator): Promise<JsonResponse> {
  const grants = await findLiveGrants(deps, filter);
  for (const grant of grants)
    await revokeFound(deps, grant, operator, grant.certificate && certificateFields(grant.certificate));
  return { status: 200, body: { ended: filter, live_grants: grants.length } };
}

/**
 * Calls `visit` with the live grants of a query, some perhaps twice. Returns false if there are more pages than this.
 */
async function visitLiveGrants(
  deps: AdminApiDeps,
  query: Pick<GrantQuery, 'identity' | 'filter'>,
  maxPages: number,
  visit: (grant: Grant) => void,
): Promise<boolean> {
  let after: string | undefined;
  for (let pages = 0; pages < maxPages; pages += 1) {
    // In an iteration of its own: the embedded store reads synchronously, in the process that may also serve clients.
    await nextIteration();
    const cursor = after !== undefined && { after };
    const { grants, next } = await deps.store.grantIndex.list({ ...query, limit: MAX_LIMIT, ...cursor });
    for (const grant of grants) if (formatGrant(deps, grant).state === 'live') visit(grant);
    if (next === undefined) return true;
    after = next;
  }
  return false;
}

/** Pages of a scan through all grants: a page reads at least two thousand grants, or a few hundred on Redis. */
const MAX_SCAN_PAGES = 100_000;

async function findLiveGrants(deps: AdminApiDeps, filter: GrantFilter): Promise<readonly Grant[]> {
  const live = new Map<string, Grant>();
  if (await visitLiveGrants(deps, { filter }, MAX_SCAN_PAGES, (grant) => live.set(grant.id, grant)))
    return [...live.values()];
  throw new AdminResponseError(
    createErrorResponse(503, 'temporarily_unavailable', 'There are too many grants to search; nothing was revoked.'),
  );
}

const MAX_PAGES = 100;

/** The number of affected live grants, which reveals a mistyped name; undefined where counting takes too long. */
async function countLiveGrants(deps: AdminApiDeps, holder: GrantHolder): Promise<number | undefined> {
  if (holder.of !== 'identity') return undefined;
  const live = new Set<string>();
  const query = { identity: holder.identity };
  return (await visitLiveGrants(deps, query, MAX_PAGES, ({ id }) => live.add(id))) ? live.size : undefined;
}

interface ForeignToken {
  readonly issuer: string;
  readonly jti: string;
}
type Selection = { readonly holder: GrantHolder } | { readonly filter: GrantFilter } | ForeignToken;

/** Reads the body of a request. */
export async function readSelection({ rawHeaders, readBody }: AdminMessage): Promise<JsonObject> {
  const type = (getSingleHeader(rawHeaders, 'content-type') ?? '').split(';', 1)[0]?.trim().toLowerCase();
  if (type !== 'application/json') throw badRequest('The body must be application/json.');
  const body = await readBody(MAX_BODY, BODY_TIMEOUT_SECONDS);
  if (body.kind !== 'complete') throw badRequest('The body is too large, too slow or incomplete.');
  return parseJsonObject(body.bytes);
}

async function resolveSelection(deps: AdminApiDeps, members: JsonObject): Promise<Selection> {
  if (Object.hasOwn(members, 'issuer')) return readIssuerSelection(deps, members);
  const entries = Object.entries(members);
  const [[field, value] = []] = entries;
  if (entries.length !== 1 || field === undefined || typeof value !== 'string' || value === '')
    throw badRequest(SELECTION_PROBLEM);
  if (field === 'client') {
    // Tokens of an integration that is not in the configuration are rejected anyway.
    if (!deps.hasClient(value)) throw notFound('No such integration.');
    return { holder: { of: 'client', clientId: value } };
  }
  if (!isSelectorField(field)) throw badRequest(SELECTION_PROBLEM);
  const { identity, filter = {} } = await resolveSelector(deps, { field, value });
  if (identity !== undefined) return { holder: { of: 'identity', identity } };
  if (field !== 'name' && field !== 'email') return { filter };
  return { holder: { of: 'identity', identity: await findIdentityInGrants(deps, field, filter) } };
}

/** Reads the selection of a trusted issuer, or of one of its tokens or subjects. */
function readIssuerSelection(deps: AdminApiDeps, members: JsonObject): Selection {
  const { issuer, jti, subject, ...others } = members;
  if (Object.keys(others).length > 0 || (jti !== undefined && subject !== undefined))
    throw badRequest(ISSUER_SELECTION_PROBLEM);
  for (const value of Object.values(members))
    if (typeof value !== 'string' || value === '' || value.length > MAX_SELECTOR_LENGTH)
      throw badRequest(ISSUER_SELECTION_PROBLEM);
  if (typeof issuer !== 'string' || !deps.hasIssuer(issuer)) throw notFound('No such trusted issuer.');
  if (typeof jti === 'string') return { issuer, jti };
  if (typeof subject === 'string')
    return { holder: { of: 'identity', identity: deps.getForeignIdentity(issuer, subject) } };
  return { holder: { of: 'issuer', issuer } };
}

const ISSUER_SELECTION_PROBLEM = `With issuer, the body may have one of jti and subject; each must have 1 to ${MAX_SELECTOR_LENGTH} characters.`;

const isSelectorField = (field: string): field is GrantSelector['field'] =>
  (SELECTORS as readonly string[]).includes(field);
const SELECTION_PROBLEM = `The body must have exactly one of client, issuer, ${SELECTORS.join(', ')}.`;

/** The only identity whose live grants have this name or address: a directory may not be able to find users by it. */
async function findIdentityInGrants(deps: AdminApiDeps, field: 'name' | 'email', filter: GrantFilter): Promise<string> {
  const grants = await findLiveGrants(deps, filter);
  const identities = [...new Set(grants.map(({ identity }) => identity))];
  const [identity] = identities;
  if (identity === undefined)
    throw notFound(
      `No user and no live grant has this ${field}. Revoke users of a trusted issuer by their identity, which is in the log lines of their requests.`,
    );
  if (identities.length > 1) throw ambiguous(identities);
  return identity;
}

/** The caller must choose one of the identities. */
const ambiguous = (identities: readonly string[]): AdminResponseError =>
  new AdminResponseError({
    status: 409,
    body: {
      error: 'ambiguous',
      error_description: `Several users match; use the identity: ${identities.join(', ')}.`,
      identities,
    },
  });

function parseJsonObject(bytes: Buffer): JsonObject {
  try {
    const value = parseStrictJson(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
    if (isJsonObject(value)) return value;
  } catch {
    // Not UTF-8, not JSON, or with a repeated name.
  }
  throw badRequest('The body is not a JSON object.');
}

export type GrantView = ReturnType<typeof formatGrant>;

/** A grant record contains no secret. */
function formatGrant(deps: AdminApiDeps, grant: Grant) {
  const phase = getGrantState(grant, deps.now());
  return {
    id: grant.id,
    client: grant.clientId,
    identity: grant.identity,
    ...grant.profile,
    scope: grant.scope,
    by: grant.grantType,
    state: phase === 'live' && isGrantRevoked(deps, grant) ? 'revoked' : phase,
    issued: Math.floor(grant.issuedAt),
    last_refreshed: Math.floor(grant.rotatedAt),
    refreshes: grant.generation - 1,
    until: Math.floor(grant.refreshUntil),
    ...(grant.certificate !== undefined && {
      ...certificateFields(grant.certificate),
      certificate_issuer: grant.certificate.issuer,
    }),
    ...(grant.exchangedFrom !== undefined && { exchanged_from: grant.exchangedFrom }),
    ...(grant.boundTo !== undefined && { bound_to_certificate: true }),
    ...(grant.revokedAt !== undefined && { revoked: Math.floor(grant.revokedAt) }),
  };
}

export const createErrorResponse = (
  status: number,
  error: string,
  error_description?: string,
  headers: Readonly<Record<string, string>> = {},
): JsonResponse => ({
  status,
  body: { error, ...(error_description !== undefined && { error_description }) },
  headers,
});

class AdminResponseError extends Error {
  readonly response: JsonResponse;

  constructor(response: JsonResponse) {
    super('admin request rejected');
    this.response = response;
  }
}

const badRequest = (description: string): AdminResponseError =>
  new AdminResponseError(createErrorResponse(400, 'invalid_request', description));

const notFound = (description: string): AdminResponseError =>
  new AdminResponseError(createErrorResponse(404, 'not_found', description));
