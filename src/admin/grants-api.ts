import type { IncomingMessage } from 'node:http';
import { type Grant, getGrantState } from '../domain/grant.ts';
import { type GrantHolder, isGrantRevoked, revokeAllGrants, revokeGrant } from '../grants/revoke.ts';
import type { JsonResponse } from '../http/json-response.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import { readBody } from '../http/read-body.ts';
import { isJsonObject, type JsonObject, parseStrictJson } from '../lib/strict-json.ts';
import type { Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { StoredRecord } from '../ports/record-store.ts';
import type { Store } from '../ports/store.ts';
import { createErrorResponse } from './responses.ts';

export interface AdminApiDeps {
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => number;
  /** Seconds that a revocation of a client or an identity must be kept. */
  readonly longestGrant: () => number;
  /** An integration, or a client of a trusted issuer: `<issuer>/<client id>`. */
  readonly hasClient: (clientId: string) => boolean;
  readonly hasIssuer: (name: string) => boolean;
  /** All identities with this user name. Throws a `Fault` when a directory is unreachable. */
  readonly findIdentities: (name: string) => Promise<readonly string[]>;
}

/** An authenticated request. */
export interface AdminRequest {
  readonly method: string;
  /** Below /admin/v1, such as /grants. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly request: IncomingMessage;
  /** The operator's name for the audit log. */
  readonly by: string;
}

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
  const [, resource, id = '', action] =
    /^\/(grants|revoke)(?:\/([^/]+))?(?:\/(revoke))?$/.exec(request.path) ?? [];
  if (resource === undefined || (resource === 'revoke' && id !== '')) throw notFound('No such resource.');
  if (resource === 'revoke') return allowMethod('POST', request, () => revokeMany(deps, request));
  if (id === '') return allowMethod('GET', request, () => listGrants(deps, request.query));
  if (!GRANT_ID.test(id)) throw badRequest('A grant id consists of letters, digits, - and _.');
  return action === undefined
    ? allowMethod('GET', request, () => showGrant(deps, id))
    : allowMethod('POST', request, () => revokeOne(deps, id, request.by));
}

const allowMethod = async (
  method: 'GET' | 'POST',
  request: AdminRequest,
  handle: () => Promise<JsonResponse>,
): Promise<JsonResponse> =>
  request.method === method || (request.method === 'HEAD' && method === 'GET')
    ? handle()
    : createErrorResponse(405, 'method_not_allowed', `This resource supports ${method}.`, { allow: method });

async function listGrants(deps: AdminApiDeps, query: URLSearchParams): Promise<JsonResponse> {
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
  const [name, clientId, after] = [readSingle('name'), readSingle('client'), readSingle('after')];
  if (after !== undefined && !CURSOR.test(after))
    throw badRequest('after must be the next of a previous page.');
  if (name !== undefined && readSingle('identity') !== undefined)
    throw badRequest('Use either name or identity, not both.');
  const identity = name === undefined ? readSingle('identity') : await resolveIdentity(deps, name);
  const page = await deps.store.grantIndex.list({
    limit: Number(limit),
    ...(identity !== undefined && { identity }),
    ...(clientId !== undefined && { clientId }),
    ...(after !== undefined && { after }),
  });
  const grants = page.grants.map((grant) => formatGrant(deps, grant));
  return {
    status: 200,
    body: {
      grants: state === 'all' ? grants : grants.filter((grant) => grant.state === 'live'),
      ...(page.next !== undefined && { next: page.next }),
    },
  };
}

const QUERY_PARAMETERS: ReadonlySet<string> = new Set([
  'identity',
  'name',
  'client',
  'state',
  'limit',
  'after',
]);

async function showGrant(deps: AdminApiDeps, id: string): Promise<JsonResponse> {
  const found = await deps.store.grants.read(id);
  if (found === undefined) throw notFound('No grant has this id.');
  return { status: 200, body: formatGrant(deps, found.record) };
}

async function revokeOne(deps: AdminApiDeps, id: string, by: string): Promise<JsonResponse> {
  let found: StoredRecord<Grant> | undefined;
  try {
    found = await deps.store.grants.read(id);
  } catch (error) {
    // Revoke it even though the request fails.
    await revokeUnread(deps, id, by);
    throw error;
  }
  if (found === undefined) {
    await revokeUnread(deps, id, by);
    throw notFound('No grant has this id.');
  }
  const { record } = found;
  await revokeGrant(deps, record);
  deps.log.audit('admin_action', {
    act: 'revoke_grant',
    by,
    grant: id,
    client: record.clientId,
    identity: record.identity,
  });
  return { status: 200, body: { ended: id } };
}

/** A missing record may have been tampered with and may be restored later: revoke the grant anyway. */
async function revokeUnread(deps: AdminApiDeps, id: string, by: string): Promise<void> {
  await deps.store.revocations.announce({
    of: 'grant',
    grantId: id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.ceil(deps.now()) + deps.longestGrant() + 86_400,
  });
  deps.log.audit('admin_action', { act: 'revoke_grant', by, grant: id });
}

async function revokeMany(deps: AdminApiDeps, { request, by }: AdminRequest): Promise<JsonResponse> {
  const holder = await readHolder(deps, request);
  // Only the count reads records: an unreadable record must not prevent the revocation.
  const live = await countLiveGrants(deps, holder).catch((error: unknown) => {
    if (error instanceof Fault) return undefined;
    throw error;
  });
  await revokeAllGrants(deps, holder, deps.longestGrant());
  const { of: kind, ...subject } = holder;
  const ended = 'clientId' in subject ? { client: subject.clientId } : subject;
  deps.log.audit('admin_action', { act: `revoke_all_of_${kind}`, by, ...ended });
  return {
    status: 200,
    body: {
      ended,
      ...(live !== undefined && { live_grants: live }),
    },
  };
}

const MAX_PAGES = 100;

/** The number of affected live grants, which reveals a mistyped name; undefined where counting takes too long. */
async function countLiveGrants(deps: AdminApiDeps, holder: GrantHolder): Promise<number | undefined> {
  if (holder.of !== 'identity') return undefined;
  const live = new Set<string>();
  let after: string | undefined;
  for (let pages = 0; pages < MAX_PAGES; pages += 1) {
    const query = { identity: holder.identity, limit: MAX_LIMIT, ...(after !== undefined && { after }) };
    const { grants, next } = await deps.store.grantIndex.list(query);
    for (const grant of grants) if (formatGrant(deps, grant).state === 'live') live.add(grant.id);
    if (next === undefined) return live.size;
    after = next;
  }
  return undefined;
}

async function readHolder(deps: AdminApiDeps, request: IncomingMessage): Promise<GrantHolder> {
  const type = (getSingleHeader(request.rawHeaders, 'content-type') ?? '')
    .split(';', 1)[0]
    ?.trim()
    .toLowerCase();
  if (type !== 'application/json') throw badRequest('The body must be application/json.');
  const body = await readBody(request, MAX_BODY, BODY_TIMEOUT_SECONDS);
  if (body.kind !== 'complete') throw badRequest('The body is too large, too slow or incomplete.');
  const entries = Object.entries(parseJsonObject(body.bytes));
  const [[field, value] = []] = entries;
  if (entries.length !== 1 || typeof value !== 'string' || value === '' || !HOLDER_FIELDS.has(field ?? ''))
    throw badRequest('The body must have exactly one of "client", "identity", "issuer" and "name".');
  if (field === 'identity') return { of: 'identity', identity: value };
  if (field === 'name') return { of: 'identity', identity: await resolveIdentity(deps, value) };
  if (field === 'issuer') {
    if (!deps.hasIssuer(value)) throw notFound('No such trusted issuer.');
    return { of: 'issuer', issuer: value };
  }
  // Tokens of an integration that is not in the configuration are rejected anyway.
  if (!deps.hasClient(value)) throw notFound('No such integration.');
  return { of: 'client', clientId: value };
}

const HOLDER_FIELDS: ReadonlySet<string> = new Set(['client', 'identity', 'issuer', 'name']);
const MAX_NAME_LENGTH = 256;

/** The only user with this name; if there are several, the caller must use the identity. */
async function resolveIdentity(deps: AdminApiDeps, name: string): Promise<string> {
  if (name === '' || name.length > MAX_NAME_LENGTH)
    throw badRequest(`name must be a user name of at most ${MAX_NAME_LENGTH} characters.`);
  const identities = await deps.findIdentities(name);
  const [identity] = identities;
  if (identity === undefined) throw notFound('No directory has a user with this name.');
  if (identities.length === 1) return identity;
  const description = `Several users have this name; use the identity: ${identities.join(', ')}.`;
  throw new AdminResponseError({
    status: 409,
    body: { error: 'ambiguous', error_description: description, identities },
  });
}

function parseJsonObject(bytes: Buffer): JsonObject {
  try {
    const value = parseStrictJson(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
    if (isJsonObject(value)) return value;
  } catch {
    // Not UTF-8, not JSON, or with a repeated name.
  }
  throw badRequest('The body is not a JSON object.');
}

/** A grant record contains no secret. */
function formatGrant(deps: AdminApiDeps, grant: Grant) {
  const phase = getGrantState(grant, deps.now());
  return {
    id: grant.id,
    client: grant.clientId,
    identity: grant.identity,
    scope: grant.scope,
    by: grant.grantType,
    state: phase === 'live' && isGrantRevoked(deps, grant) ? 'revoked' : phase,
    issued: Math.floor(grant.issuedAt),
    last_refreshed: Math.floor(grant.rotatedAt),
    refreshes: grant.generation - 1,
    until: Math.floor(grant.refreshUntil),
    ...(grant.exchangedFrom !== undefined && { exchanged_from: grant.exchangedFrom }),
    ...(grant.boundTo !== undefined && { bound_to_certificate: true }),
    ...(grant.revokedAt !== undefined && { revoked: Math.floor(grant.revokedAt) }),
  };
}

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
