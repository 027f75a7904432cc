import type { Bearer } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Revocation } from '../ports/revocation-log.ts';

/**
 * What both kinds of store agree on about revocations: one entry per grant, client or identity, holding one
 * number that only grows stricter, and the time until which it must be remembered.
 */
export interface RevocationEntry {
  /** Of a grant: the generation below which tokens are dead. Of a client or identity: the not-before time. */
  readonly limit: number;
  readonly keepUntil: Epoch;
}

export type Revocable = Pick<Bearer, 'grantId' | 'generation' | 'clientId' | 'identity' | 'issuedAt'>;

export const grantKey = (grantId: string): string => `g:${grantId}`;
export const clientKey = (clientId: string): string => `c:${clientId}`;
export const identityKey = (identity: string): string => `i:${identity}`;

export function keyOf(revocation: Revocation): string {
  switch (revocation.of) {
    case 'grant':
      return grantKey(revocation.grantId);
    case 'client':
      return clientKey(revocation.clientId);
    case 'identity':
      return identityKey(revocation.identity);
  }
}

export const entryOf = (revocation: Revocation): RevocationEntry => ({
  limit: revocation.of === 'grant' ? revocation.belowGeneration : revocation.notBefore,
  keepUntil: revocation.keepUntil,
});

/** The way back, for export. */
export function revocationOf(key: string, { limit, keepUntil }: RevocationEntry): Revocation {
  const name = key.slice(2);
  if (key.startsWith('g:')) return { of: 'grant', grantId: name, belowGeneration: limit, keepUntil };
  if (key.startsWith('c:')) return { of: 'client', clientId: name, notBefore: limit, keepUntil };
  return { of: 'identity', identity: name, notBefore: limit, keepUntil };
}

/** Entries only grow stricter, so announcements can arrive in any order and any number of times. */
export const stricter = (a: RevocationEntry, b: RevocationEntry): RevocationEntry => ({
  limit: Math.max(a.limit, b.limit),
  keepUntil: Math.max(a.keepUntil, b.keepUntil),
});
