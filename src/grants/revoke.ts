import { type Grant, keepGrantUntil, revoked } from '../domain/grant.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { Fault } from '../ports/fault.ts';
import type { Found } from '../ports/record-store.ts';
import type { AccessHandle } from '../ports/token-mint.ts';
import type { GrantDesk } from './desk.ts';

type RevokeDesk = Pick<GrantDesk, 'store' | 'now' | 'log'> & Partial<Pick<GrantDesk, 'integrations'>>;

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

/** Ten years. Such ends are few. */
const REMEMBERED = 10 * 365 * 86_400;

/** Whose tokens are all to end. */
export type Holder =
  | { readonly of: 'identity'; readonly identity: string }
  | { readonly of: 'client'; readonly clientId: string };

/**
 * Ends all that an identity or a client holds, of whichever grant. Tokens tell the second they were issued in: those of
 * this very second end too. What is issued from the next second on counts. `longest` is how many seconds a grant can
 * last today; the end is remembered for longer than that, since their records are not touched, and they may have been
 * given under settings that let them live longer. Whoever asked for it is in the caller's audit line.
 */
export async function endAllOf(
  desk: Pick<GrantDesk, 'store' | 'now'>,
  holder: Holder,
  longest: number,
): Promise<void> {
  // `iat` is at most the store's time: a clock of ours that is behind must not spare the newest tokens.
  const now = Math.floor(Math.max(desk.now(), desk.store.time?.() ?? 0));
  const keepUntil = now + Math.max(longest, REMEMBERED) + 86_400;
  await desk.store.revocations.announce({ ...holder, notBefore: now + 1, keepUntil });
}

export interface RevokeTerms {
  /** For the audit line: what was shown. */
  readonly by: 'its access token' | 'its refresh token';
  /** Who says that it is theirs, where somebody says so: another client's grant is left alone. */
  readonly clientId?: string;
}

/**
 * Ends the grant that an authentic token belongs to, whatever has become of the token itself. `expires` is when the
 * last of its access tokens may end, as far as the token tells.
 */
export async function revokeByToken(
  desk: RevokeDesk,
  { grantId, expires }: Pick<AccessHandle, 'grantId' | 'expires'>,
  { by, clientId }: RevokeTerms,
): Promise<Outcome<Grant | undefined>> {
  // What is known of the grant when its record is not there. It may have been altered, and an earlier version be put back: the
  // end is remembered until no grant of today can still be refreshed.
  const longest = Math.max(
    0,
    ...(desk.integrations?.values() ?? []).map(({ grantLifetime }) => grantLifetime),
  );
  const endOfToken = {
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.max(expires, Math.ceil(desk.now()) + longest) + 86_400,
  } as const;
  let found: Found<Grant> | undefined;
  try {
    found = await desk.store.grants.read(grantId);
  } catch (error) {
    // The caller hears that we failed; the token stops working here all the same.
    await desk.store.revocations.announce(endOfToken);
    throw error;
  }
  if (found === undefined) {
    // The record is gone, so nothing can be refreshed; the access token must still stop working.
    await desk.store.revocations.announce(endOfToken);
    return granted(undefined);
  }
  const { record } = found;
  if (clientId !== undefined && clientId !== record.clientId)
    return refused({ reason: 'client_mismatch', grantId });
  await endGrant(desk, record);
  if (record.revokedAt === undefined)
    desk.log.audit('grant_revoked', {
      grant: grantId,
      client: record.clientId,
      identity: record.identity,
      by,
    });
  return granted(record);
}
