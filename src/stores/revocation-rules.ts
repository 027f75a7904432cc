import type { Epoch } from '../domain/epoch.ts';
import type { Revocation } from '../ports/revocation-log.ts';

/** What all stores keep of a revocation, under one key per grant, client, identity or trusted issuer. */
export interface RevocationEntry {
  /** Of a grant: tokens of earlier generations are revoked. Otherwise: tokens issued earlier are. */
  readonly limit: number;
  readonly keepUntil: Epoch;
}

export type KeyedEntry = readonly [key: string, entry: RevocationEntry];

export const grantKey = (grantId: string): string => `g:${grantId}`;
export const clientKey = (clientId: string): string => `c:${clientId}`;
export const identityKey = (identity: string): string => `i:${identity}`;
export const issuerKey = (issuer: string): string => `t:${issuer}`;

export function toKeyedEntry(revocation: Revocation): KeyedEntry {
  const { keepUntil } = revocation;
  switch (revocation.of) {
    case 'grant':
      return [grantKey(revocation.grantId), { limit: revocation.belowGeneration, keepUntil }];
    case 'client':
      return [clientKey(revocation.clientId), { limit: revocation.notBefore, keepUntil }];
    case 'identity':
      return [identityKey(revocation.identity), { limit: revocation.notBefore, keepUntil }];
    case 'issuer':
      return [issuerKey(revocation.issuer), { limit: revocation.notBefore, keepUntil }];
  }
}

/** The inverse, for export. */
export function toRevocation([key, { limit, keepUntil }]: KeyedEntry): Revocation {
  const name = key.slice(2);
  if (key.startsWith('g:')) return { of: 'grant', grantId: name, belowGeneration: limit, keepUntil };
  if (key.startsWith('c:')) return { of: 'client', clientId: name, notBefore: limit, keepUntil };
  if (key.startsWith('t:')) return { of: 'issuer', issuer: name, notBefore: limit, keepUntil };
  return { of: 'identity', identity: name, notBefore: limit, keepUntil };
}

/** Entries only become stricter, so they can be merged in any order and any number of times. */
export const mergeEntries = (known: RevocationEntry | undefined, added: RevocationEntry): RevocationEntry =>
  known === undefined
    ? added
    : { limit: Math.max(known.limit, added.limit), keepUntil: Math.max(known.keepUntil, added.keepUntil) };
