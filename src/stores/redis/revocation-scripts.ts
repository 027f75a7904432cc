import type { Epoch } from '../../domain/grant.ts';
import { unreadableFault } from '../record-format.ts';
import { isGrantKey, type KeyedEntry } from '../revocation-rules.ts';
import { chunk } from './batch.ts';
import { defineScript, LUA_TIME, type RedisClient, type RedisScript } from './client.ts';

/**
 * Revocations in Redis, all in one slot:
 *
 *   {gh}:head      hash    epoch, id of the last log entry, floor: tokens issued before it are rejected, number of the last
 *                          revocation of a client, an identity or a trusted issuer
 *   {gh}:rev       zset    ended grants, by keep-until
 *   {gh}:lim       hash    other revocations: `<limit> <keep until> <not before>`
 *   {gh}:revs      stream  every change, with the id of the previous change
 *   {gh}:replicas  hash    followers of the log: `<applied id> <milliseconds of the last heartbeat> <lease>`
 */
export const revocationKeys = (prefix: string) => ({
  head: `{${prefix}}:head`,
  ended: `{${prefix}}:rev`,
  limits: `{${prefix}}:lim`,
  log: `{${prefix}}:revs`,
  replicas: `{${prefix}}:replicas`,
});

export type RevocationKeys = ReturnType<typeof revocationKeys>;

/** Part of every reply. */
export interface LogHead {
  readonly epoch: string | undefined;
  readonly lastId: string;
  readonly floor: number;
  /** The number of the last revocation of a client, an identity or a trusted issuer. */
  readonly number: number;
  /** Milliseconds. */
  readonly now: number;
}

/** What a replica knows if the server has lost it. */
export interface KnownState {
  /** Empty when the replica may have missed revocations. */
  readonly floor: string;
  readonly number: number;
}

export interface Peer {
  readonly id: string;
  readonly applied: string;
  /** Milliseconds of the server's clock. */
  readonly heartbeatAt: number;
  readonly lease: number;
}

export const NO_ENTRY = '0-0';

/** Above it, a number is damaged: adding one to it would not change it. */
const MAX_NUMBER = 2 ** 52;

const LUA_PROLOGUE = `${LUA_TIME}
local now = time(ARGV[1])
local function head()
  local h = redis.call('HMGET', KEYS[1], 'epoch', 'last', 'floor', 'number')
  return {now, h[1], h[2], h[3], h[4]}
end
`;

/**
 * ARGV: time, a new epoch, the floor of a replica that knows all earlier revocations, or nothing. `iat` is in whole
 * seconds, so the floor is the next second: a token issued earlier in this second may have been revoked.
 */
const LUA_INITIALIZE = `
if redis.call('HEXISTS', KEYS[1], 'epoch') == 0 then
  local floor = ARGV[3]
  if floor == '' then floor = string.format('%d', math.floor(now / 1000) + 1) end
  redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'floor', floor)
end
`;

const INITIALIZE = defineScript(`${LUA_PROLOGUE}${LUA_INITIALIZE} return head()`);

/**
 * KEYS: head, ended, limits, log, replicas. ARGV from 4: the highest number that the caller knows; key, limit, keep until and not-before of
 * each entry. The limit "next" becomes the next number, as in `getNextNumber`. Only changes are logged.
 */
const ANNOUNCE = defineScript(`${LUA_PROLOGUE}${LUA_INITIALIZE}
local changed = {}
local stored = tonumber(redis.call('HGET', KEYS[1], 'number') or 0) or 0
if stored > ${MAX_NUMBER} then stored = 0 end
local number = math.max(stored, tonumber(ARGV[4]))
for i = 5, #ARGV, 4 do
  local key, limit, till, from = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local change = false
  if limit == 'inf' then
    change = redis.call('ZADD', KEYS[2], 'GT', 'CH', till, key) == 1
  else
    if limit == 'next' then
      number = math.max(number + 1, now)
      limit = string.format('%.0f', number)
    elseif string.sub(key, 1, 2) ~= 'g:' then
      number = math.max(number, tonumber(limit))
    end
    local known = redis.call('HGET', KEYS[3], key)
    local l, t, f
    if known then l, t, f = string.match(known, '^(%S+) (%S+) (%S+)$') end
    -- A damaged value is replaced: it must not prevent a revocation.
    if tonumber(l) and tonumber(t) and tonumber(f) then
      if tonumber(l) > tonumber(limit) then limit = l end
      if tonumber(t) > tonumber(till) then till = t end
      if tonumber(f) > tonumber(from) then from = f end
    end
    change = l ~= limit or t ~= till or f ~= from
    if change then redis.call('HSET', KEYS[3], key, limit .. ' ' .. till .. ' ' .. from) end
  end
  if change then
    changed[#changed + 1] = key
    changed[#changed + 1] = limit
    changed[#changed + 1] = till
    changed[#changed + 1] = from
  end
end
if number ~= stored then redis.call('HSET', KEYS[1], 'number', string.format('%.0f', number)) end
if #changed > 0 then
  local before = redis.call('HGET', KEYS[1], 'last') or '${NO_ENTRY}'
  local id = redis.call('XADD', KEYS[4], 'MAXLEN', '~', '100000', '*', 'p', before, 'd', cjson.encode(changed))
  redis.call('HSET', KEYS[1], 'last', id)
else
  -- Written so that a following WAIT also covers earlier writes, perhaps of another connection.
  redis.call('HSET', KEYS[1], 'again', string.format('%d', now))
end
local reply = head()
reply[6] = redis.call('HGETALL', KEYS[5])
reply[7] = #changed / 4
return reply`);

/** KEYS: head, replicas. ARGV: time, replica, applied id, lease. */
const HEARTBEAT = defineScript(`${LUA_PROLOGUE}
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. string.format('%d', now) .. ' ' .. ARGV[4])
local reply = head()
reply[6] = redis.call('HLEN', KEYS[2])
return reply`);

const PEERS = defineScript(`${LUA_PROLOGUE}
local reply = head()
reply[6] = redis.call('HGETALL', KEYS[2])
return reply`);

/** For a replica that knows all earlier revocations: accepts tokens issued before this epoch. ARGV: time, floor. */
const LOWER_FLOOR = defineScript(`${LUA_PROLOGUE}
local floor = redis.call('HGET', KEYS[1], 'floor')
if floor and tonumber(floor) > tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], 'floor', ARGV[2]) end
return head()`);

/**
 * KEYS: head, ended, limits, replicas. ARGV: time, cursor, milliseconds of the caller's clock. Removes a bounded number of
 * entries that have expired by both clocks, since a clock that is ahead would remove revocations of valid tokens. Returns
 * the next cursor.
 */
const SWEEP = defineScript(`${LUA_PROLOGUE}
local safe = math.min(now, tonumber(ARGV[3])) / 1000
local seconds = string.format('%.3f', safe)
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', seconds, 'LIMIT', 0, 1000)
if #expired > 0 then redis.call('ZREM', KEYS[2], unpack(expired)) end
local page = redis.call('HSCAN', KEYS[3], ARGV[2], 'COUNT', 200)
for i = 1, #page[2], 2 do
  local till = tonumber(string.match(page[2][i + 1], '^%S+ (%S+) %S+$'))
  -- A damaged entry is kept.
  if till and till <= safe then redis.call('HDEL', KEYS[3], page[2][i]) end
end
local replicas = redis.call('HGETALL', KEYS[4])
for i = 1, #replicas, 2 do
  local seen, lease = string.match(replicas[i + 1], ' (%S+) (%S+)$')
  seen, lease = tonumber(seen), tonumber(lease)
  if not seen or not lease or seen + lease + 60000 < now then redis.call('HDEL', KEYS[4], replicas[i]) end
end
return page[1]`);

/** Typed calls of these scripts. Writes go through `writer`, which may wait for replicas. */
export function createRevocationScripts(client: RedisClient, keys: RevocationKeys, writer = client) {
  const { head, ended, limits, log, replicas } = keys;
  const run = async (
    script: RedisScript,
    scriptKeys: readonly string[],
    args: readonly (string | number)[],
    target = writer,
  ) => {
    const reply = await target.runScript(script, scriptKeys, [client.timeArgument(), ...args]);
    const [now, epoch, lastId, floor, number, ...rest] = reply as readonly unknown[];
    const logHead: LogHead = {
      now: Number(now),
      epoch: typeof epoch === 'string' ? epoch : undefined,
      lastId: typeof lastId === 'string' ? lastId : NO_ENTRY,
      floor: typeof floor === 'string' ? Number(floor) : 0,
      number: typeof number === 'string' && Number(number) <= MAX_NUMBER ? Number(number) : 0,
    };
    client.recordServerTime(logHead.now);
    return { logHead, rest };
  };
  return {
    initialize: async (epoch: string, floor: string): Promise<LogHead> =>
      (await run(INITIALIZE, [head], [epoch, floor])).logHead,
    async announce(epoch: string, known: KnownState, entries: readonly KeyedEntry[]) {
      const args = entries.flatMap(([key, { limit, keepUntil, notBefore = 0 }]) => [
        key,
        Number.isFinite(limit) ? String(limit) : isGrantKey(key) ? 'inf' : 'next',
        String(keepUntil),
        String(notBefore),
      ]);
      const scriptKeys = [head, ended, limits, log, replicas];
      const { logHead, rest } = await run(ANNOUNCE, scriptKeys, [epoch, known.floor, known.number, ...args]);
      return { ...logHead, peers: parsePeers(rest[0]), changed: Number(rest[1]) };
    },
    async heartbeat(replica: string, applied: string, lease: number) {
      const { logHead, rest } = await run(HEARTBEAT, [head, replicas], [replica, applied, lease]);
      return { ...logHead, followerCount: Number(rest[0]) };
    },
    epoch: async (): Promise<string | null> => client.execute((redis) => redis.hget(head, 'epoch')),
    async peers() {
      const { logHead, rest } = await run(PEERS, [head, replicas], [], client);
      return { ...logHead, peers: parsePeers(rest[0]) };
    },
    lowerFloor: async (floor: number): Promise<void> => void (await run(LOWER_FLOOR, [head], [floor])),
    async sweep(cursor: string, localTime: Epoch): Promise<string> {
      const args = [client.timeArgument(), cursor, Math.floor(localTime * 1_000)];
      return String(await client.runScript(SWEEP, [head, ended, limits, replicas], args));
    },
    leave: async (replica: string): Promise<void> =>
      void (await client.execute((redis) => redis.hdel(replicas, replica))),
    /** All entries that exist from beginning to end; later ones are in the log. */
    async *snapshot(): AsyncGenerator<readonly KeyedEntry[]> {
      const scanEnded = (cursor: string) => client.execute((redis) => redis.zscan(ended, cursor, 'COUNT', SCAN_COUNT));
      for await (const page of scanPages(scanEnded))
        yield chunk(page, 2).map(([key, till]) => parseEntry(key, 'inf', till));
      const scanLimits = (cursor: string) =>
        client.execute((redis) => redis.hscan(limits, cursor, 'COUNT', SCAN_COUNT));
      for await (const page of scanPages(scanLimits))
        yield chunk(page, 2).map(([key, text = '']) => parseEntry(key, ...text.split(' ', 3)));
    },
  };
}

export type RevocationScripts = ReturnType<typeof createRevocationScripts>;

/** A page blocks the server while it is read. */
const SCAN_COUNT = 2_000;

/** All pages of a SCAN; the next one is requested while one is processed. */
async function* scanPages(
  scan: (cursor: string) => Promise<readonly [cursor: string, elements: readonly string[]]>,
): AsyncGenerator<readonly string[]> {
  let nextReply = scan('0');
  for (;;) {
    const [next, page] = await nextReply;
    if (next === '0') {
      yield page;
      return;
    }
    nextReply = scan(next);
    // Awaited above, unless the caller stops iterating.
    nextReply.catch(() => {});
    yield page;
  }
}

/** An unreadable entry must not be ignored: a revoked token would be accepted. */
function parseEntry(key: string, limitText?: string, keepUntilText?: string, notBeforeText = '0'): KeyedEntry {
  const limit = limitText === 'inf' ? Number.POSITIVE_INFINITY : Number(limitText);
  const keepUntil = Number(keepUntilText);
  const notBefore = Number(notBeforeText);
  if (Number.isNaN(limit) || Number.isNaN(keepUntil) || Number.isNaN(notBefore))
    throw unreadableFault('revocations', 'it is damaged');
  return [key, isGrantKey(key) ? { limit, keepUntil } : { limit, keepUntil, notBefore }];
}

/** One entry of the log: the id of its predecessor, and what changed. */
export function readLogEntry(fields: readonly string[]): {
  readonly previous: string;
  readonly entries: readonly KeyedEntry[];
} {
  const getField = (name: string): string => fields[fields.indexOf(name) + 1] ?? '';
  const changes = chunk(JSON.parse(getField('d')) as readonly string[], 4);
  return {
    previous: getField('p'),
    entries: changes.map(([key, ...values]) => parseEntry(key, ...values)),
  };
}

const parsePeers = (flat: unknown): readonly Peer[] =>
  chunk(flat as readonly string[], 2).map(([id, text = '']) => {
    const [applied = NO_ENTRY, heartbeatAt, lease] = text.split(' ');
    return { id, applied, heartbeatAt: Number(heartbeatAt), lease: Number(lease) };
  });

/** Stream ids are `<milliseconds>-<number>`; negative when `a` comes before `b`. */
export function compareIds(a: string, b: string): number {
  const [aTime = 0, aCount = 0] = a.split('-').map(Number);
  const [bTime = 0, bCount = 0] = b.split('-').map(Number);
  return aTime - bTime || aCount - bCount;
}
