import type { Bearer } from '../domain/bearer.ts';
import { type Grant, keepGrantUntil, revoked } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { Found } from '../ports/record-store.ts';
import type { GrantDesk } from './desk.ts';

type RevokeDesk = Pick<GrantDesk, 'store' | 'now' | 'log'>;

const MAX_RACES = 64;

/** Was this grant ended by an announcement that its record may not show yet? */
export const isEnded = (desk: Pick<GrantDesk, 'store'>, grant: Grant): boolean =>
  desk.store.revocations.isRevoked({
    grantId: grant.id,
    // Above every generation: only an entry that ends the whole grant counts, not one that supersedes a token.
    generation: Number.MAX_SAFE_INTEGER,
    clientId: grant.clientId,
    identity: grant.identity,
    issuedAt: grant.issuedAt,
  });

/**
 * Ends a grant everywhere. Announced first, then the record is sealed: a crash in between leaves its tokens
 * refused, never accepted.
 */
export async function endGrant(desk: RevokeDesk, grant: Grant): Promise<void> {
  await desk.store.revocations.announce({
    of: 'grant',
    grantId: grant.id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: keepGrantUntil(grant),
  });
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await desk.store.grants.read(grant.id);
    if (found === undefined || found.record.revokedAt !== undefined) return;
    const sealed = revoked(found.record, found.now);
    if (
      (await desk.store.grants.replace(grant.id, found.version, sealed, keepGrantUntil(sealed))) ===
      'replaced'
    )
      return;
  }
  throw new Fault('overloaded', `grant ${grant.id} is being changed too often at once`);
}

/** Ends the grant an authentic access token belongs to, whatever has become of the token itself. */
export async function revokeByBearer(desk: RevokeDesk, bearer: Bearer): Promise<void> {
  // What is known of the grant when its record is not there.
  const endOfBearer = {
    of: 'grant',
    grantId: bearer.grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: bearer.expires + 86_400,
  } as const;
  let found: Found<Grant> | undefined;
  try {
    found = await desk.store.grants.read(bearer.grantId);
  } catch (error) {
    // The caller hears that we failed; the token stops working here all the same.
    await desk.store.revocations.announce(endOfBearer);
    throw error;
  }
  // The record is gone, so nothing can be refreshed; the access token must still stop working.
  if (found === undefined) return desk.store.revocations.announce(endOfBearer);
  const before = found.record.revokedAt !== undefined;
  await endGrant(desk, found.record);
  if (!before)
    desk.log.audit('grant_revoked', {
      grant: bearer.grantId,
      client: bearer.clientId,
      identity: bearer.identity,
      by: 'its access token',
    });
}
