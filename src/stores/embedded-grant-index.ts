import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { type GrantIndex, type GrantPage, type GrantQuery, isAsked } from '../ports/grant-index.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import type { Env, HolderKey } from './embedded-env.ts';
import { EMPTY, holderKey, holderOf, placeOf, unseal } from './embedded-records.ts';
import { isOver } from './ended-record.ts';

/** So many records are looked at for one page, and no more: a page that finds nothing must not take long either. */
const MOST_LOOKED_AT = 2_000;

/** Both ways of looking go by grant id, so a page begun by one can be followed by the other. */
export function embeddedGrantIndex(
  env: Env,
  now: () => Epoch,
  authenticator: RecordAuthenticator,
): GrantIndex {
  const grants = env.tables.grants;

  const grantIn = (id: string, bytes: Buffer, query: GrantQuery): Grant | undefined => {
    const { record, keepUntil, json, hasMac } = unseal('grants', bytes);
    const at = now();
    if (at >= keepUntil || !isAsked(record as Grant, query)) return undefined;
    const outcome = authenticator.check(placeOf('grants', id), json, hasMac, isOver(record, at));
    return outcome === 'refused' ? undefined : (record as Grant);
  };

  const page = (query: GrantQuery, rows: Iterable<readonly [id: string, bytes: Buffer | undefined]>) => {
    const found: Grant[] = [];
    let looked = 0;
    let last: string | undefined;
    for (const [id, bytes] of rows) {
      if (last !== undefined && (found.length >= query.limit || looked >= MOST_LOOKED_AT))
        return { grants: found, next: last } satisfies GrantPage;
      looked += 1;
      last = id;
      const grant = bytes && grantIn(id, bytes, query);
      if (grant !== undefined) found.push(grant);
    }
    return { grants: found };
  };

  function* ofAll({ after }: GrantQuery): Generator<readonly [string, Buffer]> {
    const from = after === undefined ? {} : { start: after, exclusiveStart: true };
    for (const { key, value } of grants.getRange({ limit: MOST_LOOKED_AT + 1, ...from })) yield [key, value];
  }

  function* of(identity: string, { after }: GrantQuery): Generator<readonly [string, Buffer | undefined]> {
    const holder = holderOf(identity);
    const start: HolderKey = [holder, after ?? ''];
    for (const [owner, id] of env.holders.getKeys({ start, limit: MOST_LOOKED_AT + 2 })) {
      if (owner !== holder) return;
      if (id !== after) yield [id, grants.get(id)];
    }
  }

  return {
    list: async (query) =>
      env.fresh(() => {
        const { identity } = query;
        return page(query, identity === undefined || !isWhole(env) ? ofAll(query) : of(identity, query));
      }),
  };
}

/** One entry for each grant, in one snapshot: then none is missing. A store of an earlier gatehouse has no entries. */
const isWhole = (env: Env): boolean => countOf(env.holders) === countOf(env.tables.grants);

const countOf = (table: { getStats(): object }): number =>
  (table.getStats() as { readonly entryCount: number }).entryCount;

const PAGE = 500;

/** Gives every grant its entry and takes away entries without a grant, where an earlier gatehouse has written. */
export async function indexHolders(env: Env, isClosing: () => boolean): Promise<void> {
  if (env.fresh(() => isWhole(env))) return;
  const grants = env.tables.grants;

  for (let after: string | undefined; !isClosing(); ) {
    const from = after === undefined ? {} : { start: after, exclusiveStart: true };
    const rows = env.fresh(() => [...grants.getRange({ limit: PAGE, versions: true, ...from })]);
    await Promise.all(
      rows.map(async ({ key, value, version }) => {
        const holder = holderKey('grants', key, unseal('grants', value).record);
        if (holder === undefined) return undefined;
        const add = (): void => void env.holders.put(holder, EMPTY);
        return env.writes.write({
          purpose: 'upkeep',
          bytes: 100,
          change: () => grants.ifVersion(key, version ?? 0, add),
        });
      }),
    );
    after = rows.at(-1)?.key;
    if (rows.length < PAGE) break;
  }

  for (let after: HolderKey | undefined; !isClosing(); ) {
    const from = after === undefined ? {} : { start: after, exclusiveStart: true };
    const keys = env.fresh(() => [...env.holders.getKeys({ limit: PAGE, ...from })]);
    const stray = env.fresh(() => keys.filter((key) => !stands(env, key)));
    await Promise.all(
      stray.map((key) =>
        env.writes.write({
          purpose: 'sweep',
          bytes: 0,
          change: () => grants.ifNoExists(key[1], () => void env.holders.remove(key)),
        }),
      ),
    );
    after = keys.at(-1);
    if (keys.length < PAGE) break;
  }
}

function stands(env: Env, [, id]: HolderKey): boolean {
  return env.tables.grants.doesExist(id);
}
