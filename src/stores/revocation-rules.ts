import { type Epoch, getIssuerOfClient } from '../domain/grant.ts';
import type { Revocation, RevocationSubject } from '../ports/store.ts';
import { createRevokedGrantMap } from './revoked-grant-map.ts';

/** What all stores keep of a revocation, under one key per grant, client, identity or trusted issuer. */
export interface RevocationEntry {
  /**
   * For a grant, tokens of earlier generations are revoked. Otherwise this is the number of the revocation, and
   * gatehouse's tokens with a lower `issuedAfter` are revoked.
   */
  readonly limit: number;
  /** Tokens of trusted issuers with an earlier `issuedAt` are revoked. Entries of grants don't have it. */
  readonly notBefore?: Epoch;
  readonly keepUntil: Epoch;
}

export type KeyedEntry = readonly [key: string, entry: RevocationEntry];

export const grantKey = (grantId: string): string => `g:${grantId}`;
export const clientKey = (clientId: string): string => `c:${clientId}`;
export const identityKey = (identity: string): string => `i:${identity}`;
export const issuerKey = (issuer: string): string => `t:${issuer}`;

/** In place of a number that the store assigns. */
export const NEXT_NUMBER = Number.POSITIVE_INFINITY;

/**
 * Greater than all numbers before. The time makes it greater also than numbers that a store lost when a backup was restored or a failover
 * lost writes. In whole milliseconds; the clock may be wrong.
 */
export const getNextNumber = (last: number, now: Epoch): number => Math.max(last + 1, Math.floor(now * 1_000));

/** Whether the revocation of a client, an identity or a trusted issuer applies to a token of it. */
export const revokes = (
  { limit, notBefore = Number.POSITIVE_INFINITY }: RevocationEntry,
  { issuer, issuedAt, issuedAfter = 0 }: Pick<RevocationSubject, 'issuer' | 'issuedAt' | 'issuedAfter'>,
): boolean => (issuer === undefined ? issuedAfter < limit : issuedAt < notBefore);

export const isGrantKey = (key: string): boolean => key.startsWith('g:');

export function toKeyedEntry(revocation: Revocation): KeyedEntry {
  const { keepUntil } = revocation;
  if (revocation.of === 'grant')
    return [grantKey(revocation.grantId), { limit: revocation.belowGeneration, keepUntil }];
  const { number: limit = NEXT_NUMBER, notBefore } = revocation;
  const entry = { limit, notBefore, keepUntil };
  if (revocation.of === 'client') return [clientKey(revocation.clientId), entry];
  return [revocation.of === 'identity' ? identityKey(revocation.identity) : issuerKey(revocation.issuer), entry];
}

/** The inverse, for export. */
export function toRevocation([key, { limit, notBefore = 0, keepUntil }]: KeyedEntry): Revocation {
  const name = key.slice(2);
  if (isGrantKey(key)) return { of: 'grant', grantId: name, belowGeneration: limit, keepUntil };
  const revocation = { number: limit, notBefore, keepUntil };
  if (key.startsWith('c:')) return { of: 'client', clientId: name, ...revocation };
  if (key.startsWith('t:')) return { of: 'issuer', issuer: name, ...revocation };
  return { of: 'identity', identity: name, ...revocation };
}

/** Entries only become stricter, so they can be merged in any order and any number of times. */
export const mergeEntries = (known: RevocationEntry | undefined, added: RevocationEntry): RevocationEntry =>
  known === undefined
    ? added
    : {
        limit: Math.max(known.limit, added.limit),
        keepUntil: Math.max(known.keepUntil, added.keepUntil),
        ...(added.notBefore !== undefined && {
          notBefore: Math.max(known.notBefore ?? 0, added.notBefore),
        }),
      };

/** All revocations, in the memory of this process: consulted for every request, without network calls or allocation. */
export function createRevocationView() {
  const grants = createRevokedGrantMap();
  /** Grants whose id or limits the compact map cannot represent: rare. */
  const otherGrants = new Map<string, RevocationEntry>();
  const clients = new Map<string, RevocationEntry>();
  const identities = new Map<string, RevocationEntry>();
  const issuers = new Map<string, RevocationEntry>();
  const maps: Readonly<Record<string, Map<string, RevocationEntry>>> = { c: clients, i: identities, t: issuers };

  const merge = (map: Map<string, RevocationEntry>, name: string, entry: RevocationEntry): void =>
    void map.set(name, mergeEntries(map.get(name), entry));
  const addGrant = (id: string, { limit, keepUntil }: RevocationEntry): void => {
    // The compact map holds whole seconds.
    const entry = { limit, keepUntil: Math.ceil(keepUntil) };
    if (otherGrants.has(id)) return merge(otherGrants, id, entry);
    const merged = mergeEntries(grants.get(id), entry);
    if (grants.set(id, merged)) return;
    grants.delete(id);
    otherGrants.set(id, merged);
  };
  const getActiveLimit = (entry: RevocationEntry | undefined, now: Epoch): number =>
    entry !== undefined && now < entry.keepUntil ? entry.limit : 0;
  const isHolderRevoked = (entry: RevocationEntry | undefined, subject: RevocationSubject, now: Epoch): boolean =>
    entry !== undefined && now < entry.keepUntil && revokes(entry, subject);

  return {
    /** The key as in `revocation-rules.ts`: `g:<grant>`, `c:<client>`, `i:<identity>`, `t:<trusted issuer>`. */
    add(key: string, entry: RevocationEntry): void {
      const name = key.slice(2);
      if (isGrantKey(key)) addGrant(name, entry);
      else merge(maps[key.charAt(0)] ?? identities, name, entry);
    },
    isRevoked(subject: RevocationSubject, now: Epoch): boolean {
      const { grantId, generation, clientId, identity, issuer, sessionId, exchangedFrom } = subject;
      return (
        generation < getActiveLimit(grants.get(grantId), now) ||
        (otherGrants.size > 0 && generation < getActiveLimit(otherGrants.get(grantId), now)) ||
        (sessionId !== undefined &&
          generation < getActiveLimit(grants.get(sessionId) ?? otherGrants.get(sessionId), now)) ||
        (clients.size > 0 &&
          (isHolderRevoked(clients.get(clientId), subject, now) ||
            (exchangedFrom !== undefined && isHolderRevoked(clients.get(exchangedFrom), subject, now)))) ||
        (identities.size > 0 && isHolderRevoked(identities.get(identity), subject, now)) ||
        (issuers.size > 0 &&
          isHolderRevoked(issuers.get(issuer ?? getIssuerOfClient(exchangedFrom ?? '')), subject, now))
      );
    },
    /** Removes expired entries and returns how many. Each call covers only a part of the grants. */
    sweep(now: Epoch): number {
      let removed = grants.sweep(now);
      for (const map of [otherGrants, clients, identities, issuers])
        for (const [name, { keepUntil }] of map)
          if (keepUntil <= now) {
            map.delete(name);
            removed += 1;
          }
      return removed;
    },
    *entries(): Generator<KeyedEntry> {
      for (const [id, entry] of grants.entries()) yield [`g:${id}`, entry];
      for (const [kind, map] of Object.entries({ g: otherGrants, ...maps }))
        for (const [name, entry] of map) yield [`${kind}:${name}`, entry];
    },
    size: (): number => grants.size() + otherGrants.size + clients.size + identities.size + issuers.size,
    /** Memory used by the compact map of grants. */
    bytes: (): number => grants.bytes(),
  };
}

export type RevocationView = ReturnType<typeof createRevocationView>;
