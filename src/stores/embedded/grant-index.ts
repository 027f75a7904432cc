import type { Epoch } from '../../domain/epoch.ts';
import type { Grant } from '../../domain/grant.ts';
import { type GrantIndex, type GrantPage, type GrantQuery, matchesQuery } from '../../ports/grant-index.ts';
import type { RecordAuthenticator } from '../../ports/record-authenticator.ts';
import { checkRecord } from '../record-format.ts';
import { type Env, type IdentityIndexKey, startAfter } from './env.ts';
import { getIdentityIndexKey, hashIdentity, PLACEHOLDER, parseRecord } from './records.ts';

/** Limits the time for a page, even if nothing matches. */
const MAX_SCANNED = 2_000;

/** Grants are ordered by id with and without the index, so cursors remain valid when the index becomes complete. */
export function createEmbeddedGrantIndex(
  env: Env,
  now: () => Epoch,
  authenticator: RecordAuthenticator,
): GrantIndex {
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
        const isIndexed = identity !== undefined && isIndexComplete(env);
        return buildPage(query, isIndexed ? scanIdentity(identity, query) : scanAll(query));
      }),
  };
}

/** One entry per grant, in one snapshot. A store of an earlier version has no entries. */
const isIndexComplete = (env: Env): boolean =>
  countEntries(env.identityIndex) === countEntries(env.tables.grants);

export const countEntries = (table: { getStats(): object }): number =>
  (table.getStats() as { readonly entryCount: number }).entryCount;

const PAGE_SIZE = 500;

/** Adds missing entries and removes those without a grant, after an earlier version has written to the store. */
export async function buildIdentityIndex(env: Env, isClosing: () => boolean): Promise<void> {
  if (env.readFresh(() => isIndexComplete(env))) return;
  await addMissingEntries(env, isClosing);
  await removeOrphanedEntries(env, isClosing);
}

async function addMissingEntries(env: Env, isClosing: () => boolean): Promise<void> {
  const { grants } = env.tables;
  for (let after: string | undefined; !isClosing(); ) {
    const range = { limit: PAGE_SIZE, versions: true, ...startAfter(after) };
    const rows = env.readFresh(() => [...grants.getRange(range)]);
    await Promise.all(
      rows.map(async ({ key, value, version }) => {
        const indexKey = getIdentityIndexKey('grants', key, parseRecord('grants', key, value).record);
        if (indexKey === undefined) return;
        const add = (): void => void env.identityIndex.put(indexKey, PLACEHOLDER);
        const change = (): Promise<boolean> => grants.ifVersion(key, version ?? 0, add);
        await env.writeQueue.write({ purpose: 'update', bytes: 100, change });
      }),
    );
    after = rows.at(-1)?.key;
    if (rows.length < PAGE_SIZE) return;
  }
}

async function removeOrphanedEntries(env: Env, isClosing: () => boolean): Promise<void> {
  const { grants } = env.tables;
  for (let after: IdentityIndexKey | undefined; !isClosing(); ) {
    const keys = env.readFresh(() => [
      ...env.identityIndex.getKeys({ limit: PAGE_SIZE, ...startAfter(after) }),
    ]);
    const orphans = env.readFresh(() => keys.filter(([, grantId]) => !grants.doesExist(grantId)));
    await Promise.all(
      orphans.map((key) => {
        const remove = (): void => void env.identityIndex.remove(key);
        const change = (): Promise<boolean> => grants.ifNoExists(key[1], remove);
        return env.writeQueue.write({ purpose: 'sweep', bytes: 0, change });
      }),
    );
    after = keys.at(-1);
    if (keys.length < PAGE_SIZE) return;
  }
}
