import { type Grant, getGrantState } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import type { GrantDeps } from './deps.ts';
import { grantFields } from './issue.ts';
import { isGrantRevoked, revokeGrant } from './revoke.ts';

type UserGrantDeps = Pick<GrantDeps, 'store' | 'now' | 'log'>;

const PAGE_SIZE = 25;
const TARGET_COUNT = 20;
/** Pages read for one request; the user can ask for more. */
const MAX_PAGES = 20;

const isLive = (deps: UserGrantDeps, grant: Grant): boolean =>
  getGrantState(grant, deps.now()) === 'live' && !isGrantRevoked(deps, grant);

/** The valid grants of an identity, paginated; newest first. */
export async function listLiveGrants(deps: UserGrantDeps, identity: string, after?: string) {
  const found = new Map<string, Grant>();
  let next = after;
  for (let pages = 0; pages < MAX_PAGES && found.size < TARGET_COUNT; pages += 1) {
    const query = { identity, limit: PAGE_SIZE, ...(next !== undefined && { after: next }) };
    const page = await deps.store.grantIndex.list(query);
    for (const grant of page.grants) if (isLive(deps, grant)) found.set(grant.id, grant);
    next = page.next;
    if (next === undefined) break;
  }
  const grants = [...found.values()].toSorted((a, b) => b.issuedAt - a.issuedAt || (a.id < b.id ? -1 : 1));
  return { grants, ...(next !== undefined && { next }) };
}

/** A valid grant of this identity. Grants of others are reported as unknown. */
export async function readLiveGrant(deps: UserGrantDeps, identity: string, grantId: string): Promise<Outcome<Grant>> {
  const found = await deps.store.grants.read(grantId);
  if (found === undefined || found.record.identity !== identity) return refused({ reason: 'grant_unknown' });
  return isLive(deps, found.record) ? ok(found.record) : refused({ reason: 'grant_revoked' });
}

/** Has this identity confirmed a device that can still exchange its code? */
export async function isAwaitingExchange(deps: UserGrantDeps, identity: string, requestId: string): Promise<boolean> {
  const request = (await deps.store.devices.read(requestId))?.record;
  if (request?.state !== 'confirmed' || request.identity !== identity) return false;
  // The grant takes the request's id.
  return deps.now() < request.expires && (await deps.store.grants.read(requestId)) === undefined;
}

/** Idempotent. */
export async function revokeOwnGrant(deps: UserGrantDeps, identity: string, grantId: string): Promise<Outcome<Grant>> {
  const owned = await readLiveGrant(deps, identity, grantId);
  if (!owned.ok) return owned;
  await revokeGrant(deps, owned.value);
  deps.log.audit('grant_revoked', { ...grantFields(owned.value), by: 'owner' });
  return owned;
}
