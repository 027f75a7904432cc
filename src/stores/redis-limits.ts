import { COUNT_SLICE, type PendingEntry, type SharedLimits } from '../ports/shared-limits.ts';
import { inBatches } from './redis-batch.ts';
import { type RedisClient, type RedisScript, redisScript } from './redis-client.ts';
import { TIME } from './redis-time.ts';

/**
 * Counts that replicas share. All keys expire by themselves:
 *
 *   gh:{<digest>}:l   bucket   `<level> <milliseconds>`
 *   gh:{<digest>}:c   counts   `<slice of time in which they end>:<count> …`
 *   gh:{<digest>}:pe  pending  sorted set of `<network>:<network>:…<expires>:<id>`, all of score 0: sorted by network
 *   gh:{<digest>}:pt  pending  the same entries by the time at which they end
 *   gh:{<digest>}:pn  pending  widest networks by the number of their entries
 *
 * A command that is sent again because its answer was lost counts twice: a limit may err on the strict side.
 */

const NOW = `${TIME}
local now = time(ARGV[1])
`;

/** ARGV: time; then for each key burst, per second, amount, 1 if it is owed. One after another: a key may come twice. */
const DRAW = redisScript(`${NOW}
local answer = {}
for i, key in ipairs(KEYS) do
  local at = i * 4 - 2
  local burst, rate, amount = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local found = redis.call('MGET', key)[1]
  local level, since
  if found then level, since = string.match(found, '^(%S+) (%d+)$') end
  level = tonumber(level) or burst
  if since then level = math.min(burst, level + math.max(0, now - tonumber(since)) * rate / 1000) end
  answer[i] = string.format('%.6f', level)
  if amount < 0 or level >= amount or ARGV[at + 3] == '1' then
    level = math.max(-burst, math.min(burst, level - amount))
    local left = math.ceil((burst - level) / rate * 1000)
    if left <= 0 then redis.call('DEL', key)
    elseif amount ~= 0 then
      redis.call('SET', key, string.format('%.6f %d', level, now), 'PX', string.format('%d', left))
    end
  end
end
return answer`);

/** ARGV: time, milliseconds of a slice; then for each key most, milliseconds to stand, amount. */
const COUNT = redisScript(`${NOW}
local length = tonumber(ARGV[2])
local answer = {}
for i, key in ipairs(KEYS) do
  local at = i * 3
  local most, amount = tonumber(ARGV[at]), tonumber(ARGV[at + 2])
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
  answer[i] = before
  if amount < 0 or (amount > 0 and before + amount <= most) then
    kept[#kept + 1] = string.format('%d:%d', slice, own + math.max(amount, -before))
    redis.call('SET', key, table.concat(kept, ' '), 'PX', string.format('%d', last * length - now))
  end
end
return answer`);

/**
 * KEYS: entries, times, widest networks. The number of entries of a network is the distance between two ranks. Below the
 * widest networks the largest is looked for at 16 evenly spaced entries: a network that has more than a sixteenth
 * of the one around it is always met.
 */
const PENDING = `${NOW}
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

/** ARGV: time, most, most of the narrowest network, milliseconds, entry; then its networks, from wide to narrow. */
const ADMIT = redisScript(`${PENDING}
local most, narrow, ends, entry = tonumber(ARGV[2]), tonumber(ARGV[3]), now + tonumber(ARGV[4]), ARGV[5]
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
if size('') >= most then
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
const RELEASE = redisScript(`${PENDING}
remove(ARGV[2])
return 1`);

const BATCH = 50;
/** Lua's numbers are doubles. */
const NO_LIMIT = 2 ** 52;

interface Ask {
  readonly key: string;
  readonly words: readonly (string | number)[];
}

export interface RedisLimitsOptions {
  readonly client: RedisClient;
  readonly prefix: string;
  readonly sharers: () => number;
}

export function redisLimits({ client, prefix, sharers }: RedisLimitsOptions): SharedLimits {
  const most = client.isCluster ? 1 : BATCH;
  const asker = (script: RedisScript, ...first: readonly number[]) =>
    inBatches(most, async (asks: readonly Ask[]) => {
      const keys = asks.map(({ key }) => key);
      const words = [client.timeArgument(), ...first, ...asks.flatMap((one) => one.words)];
      return (await client.run(script, keys, words)) as readonly unknown[];
    });
  const pendingKeys = (limit: string): string[] =>
    ['pe', 'pt', 'pn'].map((kind) => `${prefix}:{${limit}}:${kind}`);
  const [drawn, counted] = [asker(DRAW), asker(COUNT, COUNT_SLICE * 1_000)];
  return {
    async draw(bucket, { burst, perSecond }, amount, owed = false) {
      const words = [burst, perSecond, amount, owed ? 1 : 0];
      return Number(await drawn({ key: `${prefix}:{${bucket}}:l`, words }));
    },
    async count(name, { most: limit = NO_LIMIT, seconds }, amount) {
      const words = [limit, Math.ceil(seconds * 1_000), amount];
      return Number(await counted({ key: `${prefix}:{${name}}:c`, words }));
    },
    async admit(limit, entry, { most: largest, perNetwork = NO_LIMIT, seconds }) {
      const { text, networks } = written(entry);
      const words = [
        client.timeArgument(),
        largest,
        perNetwork,
        Math.ceil(seconds * 1_000),
        text,
        ...networks,
      ];
      const [admitted, displaced] = (await client.run(ADMIT, pendingKeys(limit), words)) as [number, string];
      if (admitted !== 1) return { admitted: false };
      return displaced === ''
        ? { admitted: true }
        : { admitted: true, displaced: displaced.slice(displaced.lastIndexOf(':') + 1) };
    },
    async release(limit, entry) {
      await client.run(RELEASE, pendingKeys(limit), [client.timeArgument(), written(entry).text]);
    },
    sharers,
  };
}

/** An entry as it is sorted: by its networks, then by its end. */
function written({ id, networks, expires }: PendingEntry): {
  readonly text: string;
  readonly networks: readonly string[];
} {
  const paths = networks.map((_, depth) => `${networks.slice(0, depth + 1).join(':')}:`);
  const end = Math.max(0, Math.ceil(expires)).toString().padStart(12, '0');
  return { text: `${paths.at(-1) ?? ''}${end}:${id}`, networks: paths };
}
