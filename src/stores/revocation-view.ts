import type { Epoch } from '../domain/epoch.ts';
import { type Revocable, type RevocationEntry, stricter } from './revocation-rules.ts';
import { SHELF_COUNT, sortedGrants } from './sorted-grants.ts';

/**
 * Everything that is revoked, in the memory of this process: asked on every request, so without a network call
 * and without allocating. Entries only grow stricter; those whose time is over are forgotten.
 */
export interface RevocationView {
  /** The key as in `revocation-rules.ts`: `g:<grant>`, `c:<client>`, `i:<identity>`. */
  add(key: string, entry: RevocationEntry): void;
  isRevoked(bearer: Revocable, now: Epoch): boolean;
  /** Removes what has ended from a part of the view, the next part each time; returns how many. */
  sweep(now: Epoch): number;
  entries(): Iterable<readonly [string, RevocationEntry]>;
  size(): number;
  /** Bytes taken by the ids of grants of our own making. */
  bytes(): number;
}

const SWEEP_SHELVES = 64;

export function revocationView(): RevocationView {
  const grants = sortedGrants();
  // What has not the form of our grant ids, or numbers no word can hold: rare, and kept as it is.
  const odd = new Map<string, RevocationEntry>();
  const clients = new Map<string, RevocationEntry>();
  const identities = new Map<string, RevocationEntry>();
  let nextShelf = 0;

  const merge = (map: Map<string, RevocationEntry>, name: string, entry: RevocationEntry): void => {
    const known = map.get(name);
    map.set(name, known === undefined ? entry : stricter(known, entry));
  };
  const addGrant = (id: string, asked: RevocationEntry): void => {
    // Kept up to a second longer: the words hold whole seconds.
    const entry = { limit: asked.limit, keepUntil: Math.ceil(asked.keepUntil) };
    if (odd.has(id)) return merge(odd, id, entry);
    const known = grants.get(id);
    const merged = known === undefined ? entry : stricter(known, entry);
    if (grants.set(id, merged)) return;
    grants.delete(id);
    odd.set(id, merged);
  };
  const limitOf = (entry: RevocationEntry | undefined, now: Epoch): number =>
    entry !== undefined && now < entry.keepUntil ? entry.limit : 0;

  return {
    add(key, entry) {
      const name = key.slice(2);
      if (key.startsWith('g:')) return addGrant(name, entry);
      return merge(key.startsWith('c:') ? clients : identities, name, entry);
    },
    isRevoked: ({ grantId, generation, clientId, identity, issuedAt }, now) =>
      generation < limitOf(grants.get(grantId), now) ||
      (odd.size > 0 && generation < limitOf(odd.get(grantId), now)) ||
      (clients.size > 0 && issuedAt < limitOf(clients.get(clientId), now)) ||
      (identities.size > 0 && issuedAt < limitOf(identities.get(identity), now)),
    sweep(now) {
      let removed = grants.sweep(now, nextShelf, SWEEP_SHELVES);
      nextShelf = (nextShelf + SWEEP_SHELVES) % SHELF_COUNT;
      if (nextShelf !== 0) return removed;
      for (const map of [odd, clients, identities])
        for (const [name, { keepUntil }] of map)
          if (keepUntil <= now) {
            map.delete(name);
            removed += 1;
          }
      return removed;
    },
    *entries() {
      for (const [id, entry] of grants.entries()) yield [`g:${id}`, entry];
      for (const [id, entry] of odd) yield [`g:${id}`, entry];
      for (const [name, entry] of clients) yield [`c:${name}`, entry];
      for (const [name, entry] of identities) yield [`i:${name}`, entry];
    },
    size: () => grants.size() + odd.size + clients.size + identities.size,
    bytes: () => grants.bytes(),
  };
}
