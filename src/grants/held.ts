import { type Grant, phaseOf } from '../domain/grant.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import type { GrantDesk } from './desk.ts';
import { grantFields } from './issue.ts';
import { endGrant, isEnded } from './revoke.ts';

type HeldDesk = Pick<GrantDesk, 'store' | 'now' | 'log'>;

const PAGE = 25;
const ENOUGH = 20;
/** So many pages without a live grant, and whoever looks is asked to go on. */
const MOST_PAGES = 20;

export interface HeldGrants {
  /** Those that still work, the newest first. */
  readonly grants: readonly Grant[];
  readonly next?: string;
}

const isLive = (desk: HeldDesk, grant: Grant): boolean =>
  phaseOf(grant, desk.now()) === 'live' && !isEnded(desk, grant);

/** What an identity has given to integrations and what still stands, in pages. */
export async function grantsHeldBy(desk: HeldDesk, identity: string, after?: string): Promise<HeldGrants> {
  const found = new Map<string, Grant>();
  let next = after;
  for (let pages = 0; pages < MOST_PAGES && found.size < ENOUGH; pages += 1) {
    const query = { identity, limit: PAGE, ...(next !== undefined && { after: next }) };
    const page = await desk.store.grantIndex.list(query);
    for (const grant of page.grants) if (isLive(desk, grant)) found.set(grant.id, grant);
    next = page.next;
    if (next === undefined) break;
  }
  const grants = [...found.values()].toSorted((a, b) => b.issuedAt - a.issuedAt || (a.id < b.id ? -1 : 1));
  return { grants, ...(next !== undefined && { next }) };
}

/** A grant of this identity that still works. Another's looks like one that is not there. */
export async function heldGrant(desk: HeldDesk, identity: string, grantId: string): Promise<Outcome<Grant>> {
  const found = await desk.store.grants.read(grantId);
  if (found === undefined || found.record.identity !== identity) return refused({ reason: 'grant_unknown' });
  return isLive(desk, found.record) ? granted(found.record) : refused({ reason: 'grant_revoked' });
}

/** This identity has said yes to a device that has not come for its grant yet, and still can. */
export async function isAwaited(desk: HeldDesk, identity: string, requestId: string): Promise<boolean> {
  const request = (await desk.store.devices.read(requestId))?.record;
  if (request?.state !== 'confirmed' || request.identity !== identity) return false;
  // The grant takes the request's id.
  return desk.now() < request.expires && (await desk.store.grants.read(requestId)) === undefined;
}

/** Its owner ends it. Done twice it is done. */
export async function revokeHeld(desk: HeldDesk, identity: string, grantId: string): Promise<Outcome<Grant>> {
  const held = await heldGrant(desk, identity, grantId);
  if (!held.ok) return held;
  await endGrant(desk, held.value);
  desk.log.audit('grant_revoked', { ...grantFields(held.value), by: 'its owner' });
  return held;
}
