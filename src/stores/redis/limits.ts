import { COUNT_SLICE_SECONDS, type PendingEntry, type SharedLimits } from '../../ports/shared-limits.ts';
import { createBatcher } from './batch.ts';
import { defineScript, LUA_TIME, type RedisClient, type RedisScript } from './client.ts';

/**
 * Counters shared by replicas. All keys expire:
 *
 *   gh:{<digest>}:l   bucket   `<level> <milliseconds>`
 *   gh:{<digest>}:c   counts   `<time slice in which they expire>:<count> …`
 *   gh:{<digest>}:pe  pending  sorted set of `<network>:<network>:…<expires>:<id>`, all of score 0: sorted by network
 *   gh:{<digest>}:pt  pending  the same entries by expiry
 *   gh:{<digest>}:pn  pending  the widest networks by their number of entries
 *
 * ioredis sends a command again once if its reply was lost. Such a command may count twice, or return a slot twice: a limit may
 * be wrong by one request for each lost connection.
 */

const defineCounter = (lua: string): RedisScript => defineScript(lua, { isIdempotent: false });

const LUA_NOW = `${LUA_TIME}
local now = time(ARGV[1])
`;

/** ARGV: time; then for each key burst, per second, amount, 1 if debt is allowed. A key may occur twice. */
const TAKE = defineCounter(`${LUA_NOW}
local reply = {}
for i, key in ipairs(KEYS) do
  local at = i * 4 - 2
  local burst, rate, amount = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local found = redis.call('MGET', key)[1]
  local level, since
  if found then level, since = string.match(found, '^(%S+) (%d+)$') end
  level = tonumber(level) or burst
  if since then level = math.min(burst, level + math.max(0, now - tonumber(since)) * rate / 1000) end
  reply[i] = string.format('%.6f', level)
  if amount < 0 or level >= amount or ARGV[at + 3] == '1' then
    level = math.max(-burst, math.min(burst, level - amount))
    local left = math.ceil((burst - level) / rate * 1000)
    if left <= 0 then redis.call('DEL', key)
    elseif amount ~= 0 then
      redis.call('SET', key, string.format('%.6f %d', level, now), 'PX', string.format('%d', left))
    end
  end
end
return reply`);

/** ARGV: time, milliseconds of a slice; then for each key maximum, milliseconds of the window, amount. */
const COUNT = defineCounter(`${LUA_NOW}
local length = tonumber(ARGV[2])
local reply = {}
for i, key in ipairs(KEYS) do
  local at = i * 3
  local max, amount = tonumber(ARGV[at]), tonumber(ARGV[at + 2])
  local slice = math.ceil((now + tonumber(ARGV[at + 1])) / length)
  local before, own, last, kept = 0, 0, slice, {}
  for name, count in string.gmatch(redis.call('MGET', key)[1] or '', '(%d+):(-?%d+)') do
    local ends = tonumber(name)
    if ends * length > now then
      before = before + tonumber(count)
      last = math.max(last, ends)
      if ends == slice then own = tonumber(count)
      else kept[#kept + 1] = name .. ':' .. count end
    end
  end
  before = math.max(0, before)
  reply[i] = before
  if amount < 0 or (amount > 0 and before + amount <= max) then
    kept[#kept + 1] = string.format('%d:%d', slice, own + math.max(amount, -before))
    redis.call('SET', key, table.concat(kept, ' '), 'PX', string.format('%d', last * length - now))
  end
end
return reply`);

/**
 * KEYS: entries, times, widest networks. The number of entries of a network is the distance between two ranks. Inside the
 * widest networks, the largest network is searched at 16 evenly spaced entries: one with more than a sixteenth of the
 * entries is always found.
 */
const LUA_PENDING = `${LUA_NOW}
local function rank(bound)
  local found = redis.call('ZRANGE', KEYS[1], bound, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  if found then return redis.call('ZRANK', KEYS[1], found) end
  local last = redis.call('ZRANGE', KEYS[1], -1, -1)[1]
  return last and redis.call('ZRANK', KEYS[1], last) + 1 or 0
end
local function span(network)
  return rank('[' .. network), rank('(' .. network .. '~')
end
local function size(network)
  local from, to = span(network)
  return to - from
end
local function count(entry)
  local widest = string.match(entry, '^[^:]+:')
  local entries = size(widest)
  if entries > 0 then redis.call('ZADD', KEYS[3], entries, widest) else redis.call('ZREM', KEYS[3], widest) end
end
local function remove(entry)
  redis.call('ZREM', KEYS[2], entry)
  if redis.call('ZREM', KEYS[1], entry) > 0 then count(entry) end
end
`;

/** ARGV: time, total limit, limit of the narrowest network, milliseconds, entry; then its networks, widest first. */
const ADMIT = defineCounter(`${LUA_PENDING}
local total, narrow, ends, entry = tonumber(ARGV[2]), tonumber(ARGV[3]), now + tonumber(ARGV[4]), ARGV[5]
local function largest(network)
  if network == '' then
    local found = redis.call('ZRANGE', KEYS[3], 0, 0, 'REV', 'WITHSCORES')
    return found[1], tonumber(found[2]) or 0
  end
  local from, to = span(network)
  local name, entries = nil, 0
  for at = from, to - 1, math.max(1, math.floor((to - from) / 16)) do
    local member = redis.call('ZRANGE', KEYS[1], at, at)[1]
    local inside = network .. string.match(string.sub(member, #network + 1), '^[^:]+:')
    local found = inside == name and entries or size(inside)
    if found > entries then name, entries = inside, found end
  end
  return name, entries
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do remove(member) end
if size(ARGV[#ARGV]) >= narrow then return {0, ''} end
local displaced = ''
if size('') >= total then
  local around, victim = '', nil
  for at = 6, #ARGV do
    local own = size(ARGV[at])
    local name, entries = largest(around)
    if entries >= own + 2 then
      victim = name
      for _ = at + 1, #ARGV do victim = largest(victim) end
      break
    end
    if own == 0 then break end
    around = ARGV[at]
  end
  if not victim then return {0, ''} end
  displaced = redis.call('ZRANGE', KEYS[1], '[' .. victim, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  remove(displaced)
end
redis.call('ZADD', KEYS[1], 0, entry)
redis.call('ZADD', KEYS[2], ends, entry)
count(entry)
local last = tonumber(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, string.format('%d', math.max(1000, last - now))) end
return {1, displaced}`);

/** ARGV: time, entry. */
const RELEASE = defineScript(`${LUA_PENDING}
remove(ARGV[2])
return 1`);

const BATCH = 50;
/** Lua's numbers are doubles. */
const NO_LIMIT = 2 ** 52;

export function createRedisLimits(client: RedisClient, prefix: string, processCount: () => number): SharedLimits {
  const maxBatch = client.isCluster ? 1 : BATCH;
  const createScriptBatcher = (script: RedisScript, ...leadingArgs: readonly number[]) =>
    createBatcher(maxBatch, async (items: readonly (readonly [key: string, ...args: readonly number[]])[]) => {
      const keys = items.map(([key]) => key);
      const args = [client.timeArgument(), ...leadingArgs, ...items.flatMap(([, ...rest]) => rest)];
      return (await client.runScript(script, keys, args)) as readonly unknown[];
    });
  const pendingKeys = (limit: string): string[] => ['pe', 'pt', 'pn'].map((kind) => `${prefix}:{${limit}}:${kind}`);
  const runTake = createScriptBatcher(TAKE);
  const runCount = createScriptBatcher(COUNT, COUNT_SLICE_SECONDS * 1_000);
  return {
    async take(bucket, { burst, perSecond }, amount, allowDebt = false) {
      return Number(await runTake([`${prefix}:{${bucket}}:l`, burst, perSecond, amount, allowDebt ? 1 : 0]));
    },
    async count(name, { max = NO_LIMIT, seconds }, amount) {
      return Number(await runCount([`${prefix}:{${name}}:c`, max, Math.ceil(seconds * 1_000), amount]));
    },
    async admit(limit, entry, { total, perNetwork = NO_LIMIT, seconds }) {
      const { text, networks } = formatEntry(entry);
      const limits = [total, perNetwork, Math.ceil(seconds * 1_000)];
      const args = [client.timeArgument(), ...limits, text, ...networks];
      const reply = await client.runScript(ADMIT, pendingKeys(limit), args);
      const [admitted, evicted] = reply as readonly [number, string];
      if (admitted !== 1) return { admitted: false };
      if (evicted === '') return { admitted: true };
      return { admitted: true, evicted: evicted.slice(evicted.lastIndexOf(':') + 1) };
    },
    async release(limit, entry) {
      await client.runScript(RELEASE, pendingKeys(limit), [client.timeArgument(), formatEntry(entry).text]);
    },
    processCount,
  };
}

/** An entry as it is sorted: by its networks, then by its expiry. */
function formatEntry({ id, networks, expires }: PendingEntry) {
  const paths = networks.map((_, depth) => `${networks.slice(0, depth + 1).join(':')}:`);
  const expiry = Math.max(0, Math.ceil(expires)).toString().padStart(12, '0');
  return { text: `${paths.at(-1) ?? ''}${expiry}:${id}`, networks: paths };
}
