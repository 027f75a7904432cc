import { hash } from 'node:crypto';
import type { Epoch } from '../../domain/epoch.ts';
import type { Grant } from '../../domain/grant.ts';
import { type GrantPage, type GrantQuery, matchesQuery } from '../../ports/grant-index.ts';
import { KEEP_FOREVER, type RecordStore } from '../../ports/store.ts';
import { defineScript, LUA_TIME, listPrimaries, type RedisClient } from './client.ts';
import { CHECK_ID } from './startup-checks.ts';

/**
 * Grants by identity: one sorted set for each identity, with grant ids as members and their expiry (milliseconds) as scores.
 * In a cluster, sets and records are in different slots and cannot be written atomically. An entry is written before its
 * grant, so no grant lacks one; an entry without a grant is skipped, and expires.
 */

/** A century. */
const FOREVER_MS = 3_155_760_000_000;

/** ARGV: id, keep until ("inf": forever), time. The set expires with its last entry. */
const ADD = defineScript(`${LUA_TIME}
local now = time(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
local left = last == 'inf' and ${FOREVER_MS} or math.max(1, tonumber(last) - now)
redis.call('PEXPIRE', KEYS[1], string.format('%d', left))
return 1`);

/** ARGV: score and id of the cursor (or empty), limit, time. If the id is gone, it is added briefly to find its rank. */
const READ_PAGE = defineScript(`${LUA_TIME}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time(ARGV[4]))
local from = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZRANK', KEYS[1], ARGV[2])
  if rank then from = rank + 1
  else
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
    from = redis.call('ZRANK', KEYS[1], ARGV[2])
    redis.call('ZREM', KEYS[1], ARGV[2])
  end
end
return redis.call('ZRANGE', KEYS[1], from, from + ARGV[3] - 1, 'WITHSCORES')`);

export function createRedisGrantIndex(
  client: RedisClient,
  prefix: string,
  grants: () => Pick<RecordStore<Grant>, 'read'>,
) {
  const formatIndexKey = (identity: string): string => `${prefix}:{i${hash('sha256', identity, 'base64url')}}:h`;

  const readGrants = async (ids: readonly string[], query: GrantQuery): Promise<readonly Grant[]> => {
    const found = await Promise.all(ids.map((id) => grants().read(id)));
    return found.flatMap((one) => (one !== undefined && matchesQuery(one.record, query) ? [one.record] : []));
  };

  const listByIdentity = async (identity: string, query: GrantQuery): Promise<GrantPage> => {
    const cursor = /^(\d{1,16}|inf) (.*)$/s.exec(query.after ?? '');
    // Cursors come from clients; Redis would report an invalid one as an error.
    if (query.after !== undefined && cursor === null) return { grants: [] };
    const [, score = '', after = ''] = cursor ?? [];
    const args = [score, after, query.limit, client.timeArgument()];
    const rows = (await client.runScript(READ_PAGE, [formatIndexKey(identity)], args)) as readonly string[];
    const ids = rows.filter((_, index) => index % 2 === 0);
    const page = await readGrants(ids, query);
    const last = ids.at(-1);
    if (ids.length < query.limit || last === undefined) return { grants: page };
    return { grants: page, next: `${rows.at(-1)} ${last}` };
  };

  /** Scans all keys, node by node. */
  const listAll = async (query: GrantQuery): Promise<GrantPage> => {
    const [, node, cursor] = /^(\d{1,4}) (\d{1,20})$/.exec(query.after ?? '0 0') ?? [];
    if (cursor === undefined) return { grants: [] };
    const nodeIndex = Number(node);
    const pattern = `${escapeGlob(prefix)}:{*}:g`;
    const nodes = listPrimaries(client.redis);
    const [next, keys] = await client.execute(
      async () => nodes[nodeIndex]?.scan(cursor, 'MATCH', pattern, 'COUNT', query.limit) ?? ['0', []],
    );
    const ids = keys.map((key) => key.slice(prefix.length + 2, -3)).filter((id) => id !== CHECK_ID);
    const page = await readGrants(ids, query);
    if (next !== '0') return { grants: page, next: `${nodeIndex} ${next}` };
    return nodeIndex + 1 < nodes.length ? { grants: page, next: `${nodeIndex + 1} 0` } : { grants: page };
  };

  return {
    /** Called before the grant is created. */
    async add(id: string, { identity }: Grant, keepUntil: Epoch): Promise<void> {
      const keepUntilMs = keepUntil === KEEP_FOREVER ? 'inf' : String(Math.max(1, Math.ceil(keepUntil * 1_000)));
      await client.runScript(ADD, [formatIndexKey(identity)], [id, keepUntilMs, client.timeArgument()]);
    },
    list: (query: GrantQuery) =>
      query.identity === undefined ? listAll(query) : listByIdentity(query.identity, query),
  };
}

const escapeGlob = (text: string): string => text.replace(/[\\*?[\]]/g, String.raw`\$&`);
