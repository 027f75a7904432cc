import type { Epoch } from '../domain/epoch.ts';
import type { Revocation, RevocationSubject } from '../ports/revocation-log.ts';

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
  switch (revocation.of) {
    case 'client':
      return [clientKey(revocation.clientId), entry];
    case 'identity':
      return [identityKey(revocation.identity), entry];
    case 'issuer':
      return [issuerKey(revocation.issuer), entry];
  }
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
