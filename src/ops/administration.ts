import type { IncomingMessage } from 'node:http';
import { type Grant, phaseOf } from '../domain/grant.ts';
import { endAllOf, endGrant, type Holder, isEnded } from '../grants/revoke.ts';
import type { Answer } from '../http/answer.ts';
import { readBody } from '../http/body.ts';
import { JsonError, type JsonObject, parseStrictJson } from '../http/strict-json.ts';
import type { Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { Found } from '../ports/record-store.ts';
import type { Store } from '../ports/store.ts';

export interface AdministrationDeps {
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => number;
  /** Seconds: for so long the end of a whole client or identity is remembered. */
  readonly longestGrant: () => number;
  readonly knowsClient: (clientId: string) => boolean;
  /** Who has this user name, in all directories. Throws a `Fault` when one of them cannot be asked. */
  readonly identitiesNamed: (name: string) => Promise<readonly string[]>;
}

/** One request of somebody who may administer. `by` is who, for the audit log. */
export interface AdminRequest {
  readonly method: string;
  /** Below /admin/v1, such as /grants. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly request: IncomingMessage;
  readonly by: string;
}

const MOST = 1_000;
const USUAL = 100;
const MAX_BODY = 4_096;
const BODY_SECONDS = 5;
const ID = /^[A-Za-z0-9_-]{1,64}$/;
/** Of any store: a grant id, or numbers before one. */
const CURSOR = /^[A-Za-z0-9_ -]{1,96}$/;

/** Looks at grants and ends them, for an operator. */
export async function administer(deps: AdministrationDeps, asked: AdminRequest): Promise<Answer> {
  try {
    return await route(deps, asked);
  } catch (error) {
    if (error instanceof BadRequest) return problem(400, 'invalid_request', error.message);
    if (error instanceof NotOne) return error.answer;
    if (!(error instanceof Fault)) throw error;
    deps.log.error('administration_failed', { code: error.code });
    return {
      ...problem(
        503,
        'temporarily_unavailable',
        `${error.code === 'directory_unavailable' ? 'A directory' : 'The store'} is away. Nothing is claimed; try again.`,
      ),
      headers: { 'retry-after': String(error.retryAfter) },
    };
  }
}

async function route(deps: AdministrationDeps, asked: AdminRequest): Promise<Answer> {
  const [, what, id = '', act] = /^\/(grants|revoke)(?:\/([^/]+))?(?:\/(revoke))?$/.exec(asked.path) ?? [];
  if (what === undefined || (what === 'revoke' && id !== '')) return unknown;
  if (what === 'revoke') return only('POST', asked, () => endMany(deps, asked));
  if (id === '') return only('GET', asked, () => list(deps, asked.query));
  if (!ID.test(id)) throw new BadRequest('A grant id is letters, digits, - and _.');
  return act === undefined
    ? only('GET', asked, () => show(deps, id))
    : only('POST', asked, () => endOne(deps, id, asked.by));
}

const only = async (
  method: 'GET' | 'POST',
  asked: AdminRequest,
  work: () => Promise<Answer>,
): Promise<Answer> =>
  asked.method === method || (asked.method === 'HEAD' && method === 'GET')
    ? work()
    : { ...problem(405, 'method_not_allowed', `This is asked by ${method}.`), headers: { allow: method } };

async function list(deps: AdministrationDeps, query: URLSearchParams): Promise<Answer> {
  const one = (name: string): string | undefined => {
    const [first, second] = query.getAll(name);
    if (second !== undefined) throw new BadRequest(`${name} is given twice.`);
    return first;
  };
  for (const name of query.keys())
    if (!QUERY.has(name)) throw new BadRequest(`There is no parameter ${name.slice(0, 32)}.`);
  const state = one('state') ?? 'live';
  if (state !== 'live' && state !== 'all') throw new BadRequest('state is live or all.');
  const limit = one('limit') ?? String(USUAL);
  if (!/^[1-9]\d{0,3}$/.test(limit) || Number(limit) > MOST)
    throw new BadRequest(`limit is a number from 1 to ${MOST}.`);
  const [name, clientId, after] = [one('name'), one('client'), one('after')];
  if (after !== undefined && !CURSOR.test(after)) throw new BadRequest('after is the next of another page.');
  if (name !== undefined && one('identity') !== undefined)
    throw new BadRequest('name and identity are given; one of them is enough.');
  const identity = name === undefined ? one('identity') : await identityNamed(deps, name);
  const page = await deps.store.grantIndex.list({
    limit: Number(limit),
    ...(identity !== undefined && { identity }),
    ...(clientId !== undefined && { clientId }),
    ...(after !== undefined && { after }),
  });
  const grants = page.grants.map((grant) => view(deps, grant));
  return {
    status: 200,
    body: {
      grants: state === 'all' ? grants : grants.filter((grant) => grant.state === 'live'),
      ...(page.next !== undefined && { next: page.next }),
    },
  };
}

const QUERY: ReadonlySet<string> = new Set(['identity', 'name', 'client', 'state', 'limit', 'after']);

async function show(deps: AdministrationDeps, id: string): Promise<Answer> {
  const found = await deps.store.grants.read(id);
  return found === undefined ? noSuchGrant : { status: 200, body: view(deps, found.record) };
}

async function endOne(deps: AdministrationDeps, id: string, by: string): Promise<Answer> {
  let found: Found<Grant> | undefined;
  try {
    found = await deps.store.grants.read(id);
  } catch (error) {
    // The caller gets an error; tokens of the grant are refused all the same.
    await endUnread(deps, id, by);
    throw error;
  }
  if (found === undefined) {
    await endUnread(deps, id, by);
    return noSuchGrant;
  }
  const { record } = found;
  await endGrant(deps, record);
  deps.log.audit('admin_act', {
    act: 'end grant',
    by,
    grant: id,
    client: record.clientId,
    identity: record.identity,
  });
  return { status: 200, body: { ended: id } };
}

/** A record that is absent may have been altered, and be put back as it was: the grant is ended all the same. */
async function endUnread(deps: AdministrationDeps, id: string, by: string): Promise<void> {
  await deps.store.revocations.announce({
    of: 'grant',
    grantId: id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.ceil(deps.now()) + deps.longestGrant() + 86_400,
  });
  deps.log.audit('admin_act', { act: 'end grant', by, grant: id });
}

async function endMany(deps: AdministrationDeps, { request, by }: AdminRequest): Promise<Answer> {
  const holder = await holderIn(deps, request);
  // Counting reads records, ending does not: one that cannot be read must not keep the others from being ended.
  const live = await countLive(deps, holder).catch((error: unknown) => {
    if (error instanceof Fault) return undefined;
    throw error;
  });
  await endAllOf(deps, holder, deps.longestGrant());
  const { of: _, ...whose } = holder;
  deps.log.audit('admin_act', {
    act: `end all of ${holder.of}`,
    by,
    ...('clientId' in whose ? { client: whose.clientId } : { identity: whose.identity }),
  });
  return {
    status: 200,
    body: {
      ended: holder.of === 'client' ? { client: holder.clientId } : whose,
      ...(live !== undefined && { live_grants: live }),
    },
  };
}

const MOST_PAGES = 100;

/** How many live grants it meets, so that a name that was typed wrong is noticed; undefined where counting takes too long. */
async function countLive(deps: AdministrationDeps, holder: Holder): Promise<number | undefined> {
  if (holder.of === 'client') return undefined;
  const live = new Set<string>();
  let after: string | undefined;
  for (let pages = 0; pages < MOST_PAGES; pages += 1) {
    const query = { identity: holder.identity, limit: MOST, ...(after !== undefined && { after }) };
    const { grants, next } = await deps.store.grantIndex.list(query);
    for (const grant of grants) if (view(deps, grant).state === 'live') live.add(grant.id);
    if (next === undefined) return live.size;
    after = next;
  }
  return undefined;
}

async function holderIn(deps: AdministrationDeps, request: IncomingMessage): Promise<Holder> {
  const type = (request.headers['content-type'] ?? '').split(';', 1)[0]?.trim().toLowerCase();
  if (type !== 'application/json') throw new BadRequest('The body must be application/json.');
  const body = await readBody(request, MAX_BODY, BODY_SECONDS);
  if (body.kind !== 'whole') throw new BadRequest('The body is too large, too slow or broken.');
  const named = Object.entries(objectIn(body.bytes));
  const [[by, value] = []] = named;
  if (named.length !== 1 || typeof value !== 'string' || value === '' || !HOLDERS.has(by ?? ''))
    throw new BadRequest('The body names exactly one of "client", "identity" and "name".');
  if (by === 'identity') return { of: 'identity', identity: value };
  if (by === 'name') return { of: 'identity', identity: await identityNamed(deps, value) };
  // Tokens of an integration that was taken out of the configuration are refused without this.
  if (!deps.knowsClient(value)) throw new NotOne(problem(404, 'not_found', 'There is no such integration.'));
  return { of: 'client', clientId: value };
}

const HOLDERS: ReadonlySet<string> = new Set(['client', 'identity', 'name']);
const LONGEST_NAME = 256;

/** The one person of this user name. Where there are several, the caller says which by the identity. */
async function identityNamed(deps: AdministrationDeps, name: string): Promise<string> {
  if (name === '' || name.length > LONGEST_NAME)
    throw new BadRequest(`name is a user name of at most ${LONGEST_NAME} characters.`);
  const identities = await deps.identitiesNamed(name);
  const [identity] = identities;
  if (identity === undefined)
    throw new NotOne(problem(404, 'not_found', 'No directory knows anybody of this user name.'));
  if (identities.length === 1) return identity;
  const several = `Several people have this user name; name one by its identity: ${identities.join(', ')}.`;
  throw new NotOne({
    status: 409,
    body: { error: 'ambiguous', error_description: several, identities },
  });
}

function objectIn(bytes: Buffer): JsonObject {
  try {
    const value = parseStrictJson(bytes.toString('utf8'));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as JsonObject;
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
  }
  throw new BadRequest('The body is not a JSON object.');
}

/** What an operator sees of a grant: no secret is in its record. */
function view(deps: AdministrationDeps, grant: Grant) {
  const phase = phaseOf(grant, deps.now());
  return {
    id: grant.id,
    client: grant.clientId,
    identity: grant.identity,
    scope: grant.scope,
    by: grant.grantType,
    state: phase === 'live' && isEnded(deps, grant) ? 'revoked' : phase,
    issued: Math.floor(grant.issuedAt),
    last_refreshed: Math.floor(grant.rotatedAt),
    refreshes: grant.generation - 1,
    until: Math.floor(grant.refreshUntil),
    ...(grant.boundTo !== undefined && { bound_to_certificate: true }),
    ...(grant.revokedAt !== undefined && { revoked: Math.floor(grant.revokedAt) }),
  };
}

class BadRequest extends Error {}

/** Whom the caller means is not known, or not only one. */
class NotOne extends Error {
  readonly answer: Answer;

  constructor(answer: Answer) {
    super('not one');
    this.answer = answer;
  }
}

const problem = (status: number, error: string, error_description: string): Answer => ({
  status,
  body: { error, error_description },
});

const unknown = problem(404, 'not_found', 'There is nothing at this address.');
const noSuchGrant = problem(404, 'not_found', 'There is no grant of this id (any more).');
