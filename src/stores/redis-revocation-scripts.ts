import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { type RedisClient, type RedisScript, redisScript } from './redis-client.ts';
import { TIME } from './redis-time.ts';
import type { RevocationEntry } from './revocation-rules.ts';

/**
 * Revocations in Redis, all in one slot:
 *
 *   {gh}:head      hash    epoch, id of the last log entry, floor: tokens issued before it are refused
 *   {gh}:rev       zset    what has ended whole, by keep-until
 *   {gh}:lim       hash    what has a limit: `<limit> <keep until>`
 *   {gh}:revs      stream  every change, with the id of the change before it
 *   {gh}:replicas  hash    who follows the log: `<applied id> <milliseconds of its last beat> <lease>`
 */
export interface RevocationKeys {
  readonly head: string;
  readonly ended: string;
  readonly limits: string;
  readonly log: string;
  readonly replicas: string;
}

export const revocationKeys = (prefix: string): RevocationKeys => ({
  head: `{${prefix}}:head`,
  ended: `{${prefix}}:rev`,
  limits: `{${prefix}}:lim`,
  log: `{${prefix}}:revs`,
  replicas: `{${prefix}}:replicas`,
});

/** What the server says about itself in every answer. */
export interface Head {
  readonly epoch: string | undefined;
  readonly last: string;
  readonly floor: number;
  /** Milliseconds. */
  readonly now: number;
}

export interface Peer {
  readonly id: string;
  readonly applied: string;
  /** Milliseconds of the server's clock. */
  readonly beatAt: number;
  readonly lease: number;
}

export type KeyedEntry = readonly [key: string, entry: RevocationEntry];

export const NO_ENTRY = '0-0';

const PROLOGUE = `${TIME}
local now = time(ARGV[1])
local function head()
  local h = redis.call('HMGET', KEYS[1], 'epoch', 'last', 'floor')
  return {now, h[1], h[2], h[3]}
end
`;

/**
 * ARGV: time, a new epoch, the floor of a replica that knows the earlier revocations, or nothing. Tokens say when they were
 * issued in whole seconds, so the floor is the next second: one issued earlier in this second may have been revoked.
 */
const BEGIN = `
if redis.call('HEXISTS', KEYS[1], 'epoch') == 0 then
  local floor = ARGV[3]
  if floor == '' then floor = string.format('%d', math.floor(now / 1000) + 1) end
  redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'floor', floor)
end
`;

const HEAD = redisScript(`${PROLOGUE}${BEGIN} return head()`);

/** KEYS: head, ended, limits, log, replicas. ARGV from 4: key, limit, keep until, and again. Only changes are logged. */
const ANNOUNCE = redisScript(`${PROLOGUE}${BEGIN}
local changed = {}
for i = 4, #ARGV, 3 do
  local key, limit, till = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local change = false
  if limit == 'inf' then
    change = redis.call('ZADD', KEYS[2], 'GT', 'CH', till, key) == 1
  else
    local known = redis.call('HGET', KEYS[3], key)
    local l, t
    if known then l, t = string.match(known, '^(%S+) (%S+)$') end
    -- What was written by others and is no number is replaced: it must not keep a revocation from being stored.
    if tonumber(l) and tonumber(t) then
      if tonumber(l) > tonumber(limit) then limit = l end
      if tonumber(t) > tonumber(till) then till = t end
    end
    change = l ~= limit or t ~= till
    if change then redis.call('HSET', KEYS[3], key, limit .. ' ' .. till) end
  end
  if change then
    changed[#changed + 1] = key
    changed[#changed + 1] = limit
    changed[#changed + 1] = till
  end
end
if #changed > 0 then
  local before = redis.call('HGET', KEYS[1], 'last') or '${NO_ENTRY}'
  local id = redis.call('XADD', KEYS[4], 'MAXLEN', '~', '100000', '*', 'p', before, 'd', cjson.encode(changed))
  redis.call('HSET', KEYS[1], 'last', id)
else
  -- A WAIT behind this must wait for what was written before, perhaps by another connection.
  redis.call('HSET', KEYS[1], 'again', string.format('%d', now))
end
local answer = head()
answer[5] = redis.call('HGETALL', KEYS[5])
answer[6] = #changed / 3
return answer`);

/** KEYS: head, replicas. ARGV: time, replica, applied id, lease. */
const BEAT = redisScript(`${PROLOGUE}
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. string.format('%d', now) .. ' ' .. ARGV[4])
local answer = head()
answer[5] = redis.call('HLEN', KEYS[2])
return answer`);

const PEERS = redisScript(`${PROLOGUE}
local answer = head()
answer[5] = redis.call('HGETALL', KEYS[2])
return answer`);

/** Whoever knows all that was revoked before says so: tokens older than this epoch count again. ARGV: time, floor. */
const VOUCH = redisScript(`${PROLOGUE}
local floor = redis.call('HGET', KEYS[1], 'floor')
if floor and tonumber(floor) > tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], 'floor', ARGV[2]) end
return head()`);

/**
 * KEYS: head, ended, limits, replicas. ARGV: time, cursor, milliseconds of the caller's clock. A bounded piece of what is over by
 * both clocks: a clock that was set ahead must not forget revocations of tokens that are still valid. Returns the next cursor.
 */
const SWEEP = redisScript(`${PROLOGUE}
local sure = math.min(now, tonumber(ARGV[3])) / 1000
local seconds = string.format('%.3f', sure)
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', seconds, 'LIMIT', 0, 1000)
if #over > 0 then redis.call('ZREM', KEYS[2], unpack(over)) end
local page = redis.call('HSCAN', KEYS[3], ARGV[2], 'COUNT', 200)
for i = 1, #page[2], 2 do
  local till = tonumber(string.match(page[2][i + 1], ' (%S+)$'))
  -- What is no number stays: it is not known what it ended, or until when.
  if till and till <= sure then redis.call('HDEL', KEYS[3], page[2][i]) end
end
local replicas = redis.call('HGETALL', KEYS[4])
for i = 1, #replicas, 2 do
  local beat, lease = string.match(replicas[i + 1], ' (%S+) (%S+)$')
  beat, lease = tonumber(beat), tonumber(lease)
  if not beat or not lease or beat + lease + 60000 < now then redis.call('HDEL', KEYS[4], replicas[i]) end
end
return page[1]`);

/** The scripts above, with names and types. What writes goes by `writer`, which may confirm it. */
export function revocationServer(client: RedisClient, keys: RevocationKeys, writer = client) {
  const call = async (script: RedisScript, over: readonly string[], args: readonly (string | number)[]) =>
    (await client.run(script, over, [client.timeArgument(), ...args])) as readonly unknown[];
  const write = async (script: RedisScript, over: readonly string[], args: readonly (string | number)[]) =>
    (await writer.run(script, over, [client.timeArgument(), ...args])) as readonly unknown[];
  const headOf = (answer: readonly unknown[]): Head => {
    const head = readHead(answer);
    client.sawTime(head.now);
    return head;
  };
  const { head, ended, limits, log, replicas } = keys;
  return {
    begin: async (epoch: string, floor: string): Promise<Head> =>
      headOf(await write(HEAD, [head], [epoch, floor])),
    async announce(epoch: string, floor: string, entries: readonly KeyedEntry[]) {
      const words = entries.flatMap(([key, { limit, keepUntil }]) => [
        key,
        limit === Number.POSITIVE_INFINITY ? 'inf' : String(limit),
        String(keepUntil),
      ]);
      const answer = await write(ANNOUNCE, [head, ended, limits, log, replicas], [epoch, floor, ...words]);
      return { ...headOf(answer), peers: peersOf(answer[4]), changed: Number(answer[5]) };
    },
    async beat(replica: string, applied: string, lease: number) {
      const answer = await write(BEAT, [head, replicas], [replica, applied, lease]);
      return { ...headOf(answer), followers: Number(answer[4]) };
    },
    epoch: async (): Promise<string | null> => client.ask((redis) => redis.hget(head, 'epoch')),
    async peers() {
      const answer = await call(PEERS, [head, replicas], []);
      return { ...headOf(answer), peers: peersOf(answer[4]) };
    },
    vouch: async (floor: number): Promise<Head> => headOf(await write(VOUCH, [head], [floor])),
    async sweep(cursor: string, ours: Epoch): Promise<string> {
      const args = [client.timeArgument(), cursor, Math.floor(ours * 1_000)];
      return String(await client.run(SWEEP, [head, ended, limits, replicas], args));
    },
    leave: async (replica: string): Promise<void> =>
      void (await client.ask((redis) => redis.hdel(replicas, replica))),
    /** Everything in the snapshot that stays from beginning to end; what comes meanwhile is in the log. */
    async *snapshot(): AsyncGenerator<readonly KeyedEntry[]> {
      const grants = (cursor: string) => client.ask((redis) => redis.zscan(ended, cursor, 'COUNT', PAGE));
      for await (const page of pages(grants))
        yield inPairs(page, (text) => ({ limit: Number.POSITIVE_INFINITY, keepUntil: Number(text) }));
      const others = (cursor: string) => client.ask((redis) => redis.hscan(limits, cursor, 'COUNT', PAGE));
      for await (const page of pages(others))
        yield inPairs(page, (text) => {
          const [limit, keepUntil] = text.split(' ').map(Number);
          return entry(limit, keepUntil);
        });
    },
  };
}

export type RevocationServer = ReturnType<typeof revocationServer>;

/** While a server reads a page it answers nobody. */
const PAGE = 2_000;

/** All that a SCAN finds; the next page is asked for while one is worked on. */
async function* pages(
  ask: (cursor: string) => Promise<readonly [cursor: string, elements: readonly string[]]>,
): AsyncGenerator<readonly string[]> {
  let coming = ask('0');
  for (;;) {
    const [next, page] = await coming;
    if (next === '0') {
      yield page;
      return;
    }
    coming = ask(next);
    // It is awaited below; whoever has stopped by then leaves no rejection behind.
    coming.catch(() => {});
    yield page;
  }
}

function inPairs(flat: readonly string[], read: (text: string) => RevocationEntry): readonly KeyedEntry[] {
  const pairs: KeyedEntry[] = [];
  for (let at = 0; at < flat.length; at += 2) pairs.push([flat[at] ?? '', read(flat[at + 1] ?? '')]);
  return pairs;
}

/** What cannot be read must not let a revoked token pass. */
function entry(limit: number | undefined, keepUntil: number | undefined): RevocationEntry {
  if (limit === undefined || keepUntil === undefined || Number.isNaN(limit) || Number.isNaN(keepUntil))
    throw new Fault(
      'store_record_unreadable',
      'a revocation cannot be read. Was it written by a newer gatehouse?',
    );
  return { limit, keepUntil };
}

/** One entry of the log: the id of the one before it, and what changed. */
export function readLogEntry(fields: readonly string[]): {
  readonly previous: string;
  readonly entries: readonly KeyedEntry[];
} {
  const field = (name: string): string => fields[fields.indexOf(name) + 1] ?? '';
  const flat = JSON.parse(field('d')) as readonly string[];
  const entries: KeyedEntry[] = [];
  for (let at = 0; at < flat.length; at += 3)
    entries.push([
      flat[at] ?? '',
      entry(flat[at + 1] === 'inf' ? Number.POSITIVE_INFINITY : Number(flat[at + 1]), Number(flat[at + 2])),
    ]);
  return { previous: field('p'), entries };
}

function readHead([now, epoch, last, floor]: readonly unknown[]): Head {
  return {
    now: Number(now),
    epoch: typeof epoch === 'string' ? epoch : undefined,
    last: typeof last === 'string' ? last : NO_ENTRY,
    floor: typeof floor === 'string' ? Number(floor) : 0,
  };
}

function peersOf(flat: unknown): readonly Peer[] {
  const words = flat as readonly string[];
  const peers: Peer[] = [];
  for (let at = 0; at < words.length; at += 2) {
    const [applied = NO_ENTRY, beatAt, lease] = (words[at + 1] ?? '').split(' ');
    peers.push({ id: words[at] ?? '', applied, beatAt: Number(beatAt), lease: Number(lease) });
  }
  return peers;
}

/** Ids of a stream are `<milliseconds>-<number>`: below zero when `a` came before `b`. */
export function compareIds(a: string, b: string): number {
  const [aTime = 0, aCount = 0] = a.split('-').map(Number);
  const [bTime = 0, bCount = 0] = b.split('-').map(Number);
  return aTime - bTime || aCount - bCount;
}
