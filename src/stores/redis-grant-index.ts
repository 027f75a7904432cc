import { hash } from 'node:crypto';
import type { Cluster, Redis } from 'ioredis';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { type GrantIndex, type GrantPage, type GrantQuery, isAsked } from '../ports/grant-index.ts';
import type { RecordStore } from '../ports/record-store.ts';
import { KEEP_FOREVER } from '../ports/store.ts';
import { CHECK_ID } from './redis-checks.ts';
import { type RedisClient, redisScript } from './redis-client.ts';
import { TIME } from './redis-time.ts';

/**
 * Grants by identity: one sorted set for each identity, its members grant ids, their scores the times until which the
 * records are kept (milliseconds). An entry is written before its grant, so no grant is without one; an entry
 * without a grant (its maker was interrupted, or is just about to make it) is passed over and goes at its time.
 * Sets and records lie in different slots of a cluster, so they are never touched in one step.
 */

/** A century: no record is kept longer. */
const FOREVER_MS = 3_155_760_000_000;

/** ARGV: id, keep until ("inf" for ever), time. The set lives as long as its last entry. */
const ENTER = redisScript(`${TIME}
local now = time(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
local left = last == 'inf' and ${FOREVER_MS} or math.max(1, tonumber(last) - now)
redis.call('PEXPIRE', KEYS[1], string.format('%d', left))
return 1`);

/** ARGV: score and id after which to go on (or empty), how many, time. An id that has gone is put back to find its place. */
const PAGE = redisScript(`${TIME}
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

export interface RedisGrantIndex extends GrantIndex {
  /** Before the grant itself is made. */
  enter(id: string, grant: Grant, keepUntil: Epoch): Promise<void>;
}

export interface RedisGrantIndexOptions {
  readonly client: RedisClient;
  readonly prefix: string;
  readonly grants: () => Pick<RecordStore<Grant>, 'read'>;
}

export function redisGrantIndex({ client, prefix, grants }: RedisGrantIndexOptions): RedisGrantIndex {
  const setOf = (identity: string): string => `${prefix}:{i${hash('sha256', identity, 'base64url')}}:h`;

  const read = async (ids: readonly string[], query: GrantQuery): Promise<readonly Grant[]> => {
    const found = await Promise.all(ids.map((id) => grants().read(id)));
    return found.flatMap((one) => (one !== undefined && isAsked(one.record, query) ? [one.record] : []));
  };

  const ofIdentity = async (identity: string, query: GrantQuery): Promise<GrantPage> => {
    const [score = '', after = ''] = splitOnce(query.after ?? '');
    // A cursor may have gone through strange hands; the server would take it for a failure of ours.
    if (query.after !== undefined && !/^(?:\d{1,16}|inf)$/.test(score)) return { grants: [] };
    const args = [score, after, query.limit, client.timeArgument()];
    const rows = (await client.run(PAGE, [setOf(identity)], args)) as readonly string[];
    const ids = rows.filter((_, index) => index % 2 === 0);
    const page = await read(ids, query);
    const last = ids.at(-1);
    if (ids.length < query.limit || last === undefined) return { grants: page };
    return { grants: page, next: `${rows.at(-1)} ${last}` };
  };

  /** Looks through all keys, server after server. */
  const ofAll = async (query: GrantQuery): Promise<GrantPage> => {
    const [server = '0', cursor = '0'] = splitOnce(query.after ?? '');
    if (!/^\d{1,4}$/.test(server) || !/^\d{1,20}$/.test(cursor)) return { grants: [] };
    const at = Number(server);
    const { keys, next, servers } = await client.ask(async (redis) => {
      const all = serversOf(redis);
      const one = all[at];
      if (one === undefined) return { keys: [], next: '0', servers: all.length };
      const pattern = `${globbed(prefix)}:{*}:g`;
      const [after, found] = await one.scan(
        cursor === '' ? '0' : cursor,
        'MATCH',
        pattern,
        'COUNT',
        query.limit,
      );
      return { keys: found, next: after, servers: all.length };
    });
    const page = await read(
      keys.map((key) => key.slice(prefix.length + 2, -3)).filter((id) => id !== CHECK_ID),
      query,
    );
    if (next !== '0') return { grants: page, next: `${at} ${next}` };
    return at + 1 < servers ? { grants: page, next: `${at + 1} 0` } : { grants: page };
  };

  return {
    async enter(id, { identity }, keepUntil) {
      const till = keepUntil === KEEP_FOREVER ? 'inf' : String(Math.max(1, Math.ceil(keepUntil * 1_000)));
      await client.run(ENTER, [setOf(identity)], [id, till, client.timeArgument()]);
    },
    list: (query) => (query.identity === undefined ? ofAll(query) : ofIdentity(query.identity, query)),
  };
}

/** In an order that stays, so that a page begun on one can be gone on with. */
function serversOf(redis: Redis): readonly Redis[] {
  if (!redis.isCluster) return [redis];
  const place = ({ options: { host = '', port = 0 } }: Redis): string => `${host}:${port}`;
  return (redis as unknown as Cluster).nodes('master').toSorted((a, b) => (place(a) < place(b) ? -1 : 1));
}

const globbed = (text: string): string => text.replace(/[\\*?[\]]/g, String.raw`\$&`);

function splitOnce(text: string): [string?, string?] {
  const at = text.indexOf(' ');
  return at < 0 ? [] : [text.slice(0, at), text.slice(at + 1)];
}
