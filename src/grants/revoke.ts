import { type Grant, getGrantRecordExpiry, markRevoked } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { Fault } from '../ports/fault.ts';
import type { StoredRecord } from '../ports/record-store.ts';
import type { AccessTokenReference } from '../ports/token-issuer.ts';
import type { GrantDeps } from './deps.ts';

type RevokeDeps = Pick<GrantDeps, 'store' | 'now' | 'log'> & Partial<Pick<GrantDeps, 'integrations'>>;

const MAX_RACES = 64;

/** Was the grant revoked, even if its record does not show it yet? */
export const isGrantRevoked = (
  { store }: Pick<GrantDeps, 'store'>,
  {
    id,
    clientId,
    identity,
    issuedAt,
    issuedAfter,
    exchangedFrom,
  }: Pick<Grant, 'id' | 'clientId' | 'identity' | 'issuedAt' | 'issuedAfter' | 'exchangedFrom'>,
): boolean =>
  // Above every generation: an entry that supersedes older tokens does not match.
  store.revocations.isRevoked({
    grantId: id,
    generation: Number.MAX_SAFE_INTEGER,
    clientId,
    identity,
    issuedAt,
    ...(issuedAfter !== undefined && { issuedAfter }),
    ...(exchangedFrom !== undefined && { exchangedFrom }),
  });

/** Announces the revocation first, then updates the record: after a crash in between the tokens are rejected. */
export async function revokeGrant(deps: RevokeDeps, grant: Grant): Promise<void> {
  await deps.store.revocations.announce({
    of: 'grant',
    grantId: grant.id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: getGrantRecordExpiry(grant),
  });
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await deps.store.grants.read(grant.id);
    if (found === undefined || found.record.revokedAt !== undefined) return;
    const revokedGrant = markRevoked(found.record, found.now);
    if (
      (await deps.store.grants.replace(grant.id, found.version, revokedGrant, getGrantRecordExpiry(revokedGrant))) ===
      'replaced'
    )
      return;
  }
  throw new Fault('overloaded', `grant ${grant.id} has too many concurrent updates`);
}

/** Ten years: such entries are few. */
const MIN_RETENTION = 10 * 365 * 86_400;

/** The holder whose grants are revoked. */
export type GrantHolder =
  | { readonly of: 'identity'; readonly identity: string }
  | { readonly of: 'client'; readonly clientId: string }
  | { readonly of: 'issuer'; readonly issuer: string };

/**
 * Revokes what was issued so far: all grants of an identity or a client, or all tokens of a trusted issuer. The times in tokens of trusted
 * issuers have a resolution of one second, so those issued in the current second are revoked too. The entry is kept longer than
 * `longestGrant` (seconds), because the records are not updated and older settings may have allowed longer grants. The caller writes the
 * audit event.
 */
export async function revokeAllGrants(
  deps: Pick<GrantDeps, 'store' | 'now'>,
  holder: GrantHolder,
  longestGrant: number,
): Promise<void> {
  // With a clock that is behind, the newest tokens of trusted issuers would survive.
  const now = Math.floor(Math.max(deps.now(), deps.store.time?.() ?? 0));
  const keepUntil = now + Math.max(longestGrant, MIN_RETENTION) + 86_400;
  await deps.store.revocations.announce({ ...holder, notBefore: now + 1, keepUntil });
}

/**
 * Revokes the tokens of a trusted issuer with this id, whenever they were issued: those with one `jti`, or of one session.
 * The caller writes the audit event.
 */
export const revokeForeignTokens = (
  { store, now }: Pick<GrantDeps, 'store' | 'now'>,
  id: string,
  retention = MIN_RETENTION,
): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId: id,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.ceil(now()) + retention,
  });

interface RevokeOptions {
  /** For the audit event: the presented credential. */
  readonly by: 'access_token' | 'refresh_token';
  /** If set, grants of other clients are not revoked. */
  readonly clientId?: string;
}

/** Revokes the grant of an authentic token, even if the token itself is no longer valid. */
export async function revokeByToken(
  deps: RevokeDeps,
  { grantId, expires }: Pick<AccessTokenReference, 'grantId' | 'expires'>,
  { by, clientId }: RevokeOptions,
): Promise<Outcome<Grant | undefined>> {
  // Used when the record cannot be read. An attacker could restore an earlier version of it, so the entry is kept until
  // no grant that exists today can be refreshed.
  const longestGrant = Math.max(0, ...(deps.integrations?.values() ?? []).map(({ grantLifetime }) => grantLifetime));
  const revocation = {
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: Math.max(expires, Math.ceil(deps.now()) + longestGrant) + 86_400,
  } as const;
  let found: StoredRecord<Grant> | undefined;
  try {
    found = await deps.store.grants.read(grantId);
  } catch (error) {
    // The request fails, but this process rejects the token from now on, and announces that once the store responds.
    deps.store.revocations.announce(revocation).catch(() => {});
    throw error;
  }
  if (found === undefined) {
    // Without a record nothing can be refreshed, but the access token must be revoked.
    await deps.store.revocations.announce(revocation);
    return ok(undefined);
  }
  const { record } = found;
  if (clientId !== undefined && clientId !== record.clientId) return refused({ reason: 'client_mismatch', grantId });
  await revokeGrant(deps, record);
  if (record.revokedAt === undefined)
    deps.log.audit('grant_revoked', {
      grant: grantId,
      client: record.clientId,
      identity: record.identity,
      by,
    });
  return ok(record);
}
