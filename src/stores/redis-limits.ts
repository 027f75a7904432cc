import { COUNT_SLICE, type SharedLimits } from '../ports/shared-limits.ts';
import { inBatches } from './redis-batch.ts';
import { type RedisClient, type RedisScript, redisScript } from './redis-client.ts';
import { TIME } from './redis-time.ts';

/**
 * Counts that replicas share. Both kinds are one string with an end of its own:
 *
 *   gh:{<digest>}:l   bucket   `<level> <milliseconds>`
 *   gh:{<digest>}:c   counts   `<slice of time in which they end>:<count> …`
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
    sharers,
  };
}
