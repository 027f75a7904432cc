import type { Epoch } from '../domain/epoch.ts';
import { getIssuerOfClient } from '../domain/verified-token.ts';
import type { RevocationSubject } from '../ports/revocation-log.ts';
import { isGrantKey, type KeyedEntry, mergeEntries, type RevocationEntry, revokes } from './revocation-rules.ts';
import { createRevokedGrantMap } from './revoked-grant-map.ts';

/** All revocations, in the memory of this process: consulted for every request, without network calls or allocation. */
export function createRevocationView() {
  const grants = createRevokedGrantMap();
  /** Grants whose id or limits the compact map cannot represent: rare. */
  const otherGrants = new Map<string, RevocationEntry>();
  const clients = new Map<string, RevocationEntry>();
  const identities = new Map<string, RevocationEntry>();
  const issuers = new Map<string, RevocationEntry>();
  const maps: Readonly<Record<string, Map<string, RevocationEntry>>> = {
    c: clients,
    i: identities,
    t: issuers,
  };

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
      for (const [id, entry] of otherGrants) yield [`g:${id}`, entry];
      for (const [name, entry] of clients) yield [`c:${name}`, entry];
      for (const [name, entry] of identities) yield [`i:${name}`, entry];
      for (const [name, entry] of issuers) yield [`t:${name}`, entry];
    },
    size: (): number => grants.size() + otherGrants.size + clients.size + identities.size + issuers.size,
    /** Memory used by the compact map of grants. */
    bytes: (): number => grants.bytes(),
  };
}

export type RevocationView = ReturnType<typeof createRevocationView>;
