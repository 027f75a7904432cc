import type { Epoch } from '../../domain/epoch.ts';
import type { Grant } from '../../domain/grant.ts';
import { type GrantIndex, type GrantPage, type GrantQuery, matchesQuery } from '../../ports/grant-index.ts';
import type { RecordAuthenticator } from '../../ports/record-authenticator.ts';
import { checkRecord } from '../record-format.ts';
import { type Env, type IdentityIndexKey, startAfter } from './env.ts';
import { hashIdentity, parseRecord } from './records.ts';

/** Limits the time for a page, even if nothing matches. */
const MAX_SCANNED = 2_000;

/** Grants are ordered by id, with and without an identity. */
export function createEmbeddedGrantIndex(env: Env, now: () => Epoch, authenticator: RecordAuthenticator): GrantIndex {
  const { grants } = env.tables;

  const readGrant = (id: string, bytes: Buffer, query: GrantQuery): Grant | undefined => {
    const found = parseRecord('grants', id, bytes);
    const grant = found.record as Grant;
    const at = now();
    if (at >= found.keepUntil || !matchesQuery(grant, query)) return undefined;
    return checkRecord(authenticator, found, at) === 'refused' ? undefined : grant;
  };

  const buildPage = (
    query: GrantQuery,
    rows: Iterable<readonly [id: string, bytes: Buffer | undefined]>,
  ): GrantPage => {
    const found: Grant[] = [];
    let scanned = 0;
    let last: string | undefined;
    for (const [id, bytes] of rows) {
      if (last !== undefined && (found.length >= query.limit || scanned >= MAX_SCANNED))
        return { grants: found, next: last };
      scanned += 1;
      last = id;
      const grant = bytes && readGrant(id, bytes, query);
      if (grant !== undefined) found.push(grant);
    }
    return { grants: found };
  };

  function* scanAll({ after }: GrantQuery): Generator<readonly [string, Buffer]> {
    const rows = grants.getRange({ limit: MAX_SCANNED + 1, ...startAfter(after) });
    for (const { key, value } of rows) yield [key, value];
  }

  function* scanIdentity(
    identity: string,
    { after = '' }: GrantQuery,
  ): Generator<readonly [string, Buffer | undefined]> {
    const identityHash = hashIdentity(identity);
    const start: IdentityIndexKey = [identityHash, after];
    for (const [hash, id] of env.identityIndex.getKeys({ start, limit: MAX_SCANNED + 2 })) {
      if (hash !== identityHash) return;
      if (id !== after) yield [id, grants.get(id)];
    }
  }

  return {
    list: async (query) =>
      env.readFresh(() => {
        const { identity } = query;
        return buildPage(query, identity === undefined ? scanAll(query) : scanIdentity(identity, query));
      }),
  };
}

export const countEntries = (table: { getStats(): object }): number =>
  (table.getStats() as { readonly entryCount: number }).entryCount;
