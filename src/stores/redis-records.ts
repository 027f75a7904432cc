import { randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator, RecordKind, RecordPlace } from '../ports/record-authenticator.ts';
import type { RecordStore, Version } from '../ports/record-store.ts';
import { KEEP_FOREVER } from '../ports/store.ts';
import { isOver } from './ended-record.ts';
import { isUsableId } from './record-id.ts';
import { inBatches } from './redis-batch.ts';
import { type RedisClient, redisScript } from './redis-client.ts';
import { TIME } from './redis-time.ts';

/**
 * A record is one string: `<version> <keep until, milliseconds, 0 = for ever> <JSON>`. The first two are what the
 * scripts look at. Every record has a slot of its own in a cluster. The process makes all three, and the MAC in the JSON covers
 * them together: scripts store what they are given, and change nothing of it.
 *
 * ioredis sends a command again when its answer was lost. The version a writer brings along is its own and new, so
 * finding it in place means: this very write has happened.
 */

const OVER = `
-- What has no such time is damaged: whoever reads it says so.
local function over(keep, now) return keep and keep ~= '0' and tonumber(keep) <= now end
`;

const KEEP = `
local function keep(key, version, till, json, now)
  local value = version .. ' ' .. till .. ' ' .. json
  if till == '0' then redis.call('SET', key, value)
  elseif over(till, now) then redis.call('DEL', key)
  else redis.call('SET', key, value, 'PX', string.format('%d', tonumber(till) - now)) end
  return 1
end
`;

const READ = redisScript(`${TIME}${OVER}
local now = time(ARGV[1])
local answer = {now}
for i, found in ipairs(redis.call('MGET', unpack(KEYS))) do
  if found and over(string.match(found, '^%S+ (%d+) '), now) then found = false
  elseif not found then
    -- MGET passes over what is no string. That is damage, and not "nothing".
    local why = redis.pcall('GET', KEYS[i])
    if type(why) == 'table' and why.err then found = '! 0 not a string' end
  end
  answer[i + 1] = found
end
return answer`);

/** ARGV: our version, keep until, JSON, time. */
const CREATE = redisScript(`${TIME}${OVER}${KEEP}
local now = time(ARGV[4])
local found = redis.call('GET', KEYS[1])
if found then
  local version, till = string.match(found, '^(%S+) (%d+) ')
  if version == ARGV[1] then return 1 end
  if not over(till, now) then return 0 end
end
return keep(KEYS[1], ARGV[1], ARGV[2], ARGV[3], now)`);

/** ARGV: time; then for each key version seen, our version, keep until, JSON. */
const REPLACE = redisScript(`${TIME}${OVER}${KEEP}
local now = time(ARGV[1])
local answer = {}
-- Of two writers of one record in one batch the second is late.
local written = {}
for i, found in ipairs(redis.call('MGET', unpack(KEYS))) do
  local at = i * 4 - 2
  local version, till
  if found then version, till = string.match(found, '^(%S+) (%d+) ') end
  if version and version == ARGV[at + 1] then answer[i] = 1
  elseif not version or version ~= ARGV[at] or over(till, now) or written[KEYS[i]] then answer[i] = 0
  else
    written[KEYS[i]] = true
    answer[i] = keep(KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], now)
  end
end
return answer`);

/** One letter for each kind of record, at the end of its key. */
export type RedisRecordKind = 'g' | 'd' | 'u' | 'n';
const KINDS: Readonly<Record<RedisRecordKind, RecordKind>> = {
  g: 'grants',
  d: 'devices',
  u: 'userCodes',
  n: 'notes',
};

const FORMAT = 1;

/** A script must not hold up the others for long: this many records take it a fraction of a millisecond. */
const BATCH = 100;

interface Replacement {
  readonly key: string;
  readonly seen: string;
  readonly version: string;
  readonly till: string;
  readonly json: string;
}

export interface RedisRecordsOptions<T> {
  readonly client: RedisClient;
  /** For what writes; the same, unless writes are confirmed by replicas. */
  readonly writer?: RedisClient | undefined;
  readonly prefix: string;
  readonly kind: RedisRecordKind;
  readonly authenticator: RecordAuthenticator;
  /** Awaited before anything is created. */
  readonly beforeCreate?: (id: string, record: T, keepUntil: Epoch) => Promise<void>;
}

export function redisRecords<T>(options: RedisRecordsOptions<T>): RecordStore<T> {
  const { client, writer = client, prefix, kind, authenticator, beforeCreate } = options;
  const keyOf = (id: string): string => `${prefix}:{${id}}:${kind}`;
  // Drawn once for this process, counted for each write: never given twice, and by nobody else.
  const process = randomBytes(12).toString('base64url');
  let writes = 0;
  const nextVersion = (): string => {
    writes += 1;
    return `${process}${writes.toString(36)}`;
  };
  const placeOf = (id: string, version: string, till: string): RecordPlace => ({
    kind: KINDS[kind],
    id,
    context: `${version} ${till}`,
  });
  const text = (id: string, version: string, till: string, record: unknown): string =>
    authenticator.seal(placeOf(id, version, till), JSON.stringify({ v: FORMAT, r: record }));

  const most = client.isCluster ? 1 : BATCH;
  const readOne = inBatches(most, async (keys: readonly string[]) => {
    const [now, ...values] = (await client.run(READ, keys, [client.timeArgument()])) as [
      number,
      ...unknown[],
    ];
    client.sawTime(now);
    return keys.map((_, index) => ({ now, value: values[index] }));
  });
  const replaceOne = inBatches(most, async (asks: readonly Replacement[]) => {
    const words = asks.flatMap(({ seen, version, till, json }) => [seen, version, till, json]);
    const keys = asks.map(({ key }) => key);
    return (await writer.run(REPLACE, keys, [client.timeArgument(), ...words])) as readonly number[];
  });

  const swap = async (id: string, seen: string, till: string, record: unknown) => {
    const version = nextVersion();
    const json = text(id, version, till, record);
    const done = (await replaceOne({ key: keyOf(id), seen, version, till, json })) === 1;
    return done ? (version as Version) : undefined;
  };
  /** True when there was a note that fails authentication, and this one is in its place. */
  const replaceRefused = async (id: string, till: string, record: T): Promise<boolean> => {
    const { value } = await readOne(keyOf(id));
    if (typeof value !== 'string') return false;
    const { json, hasMac, ...found } = unpack(kind, value);
    const outcome = authenticator.check(placeOf(id, found.version, found.till), json, hasMac, false);
    return outcome === 'refused' && (await swap(id, found.version, till, record)) !== undefined;
  };
  /** The record with a MAC. A server that cannot write now keeps it as it is. */
  const rewrite = async (id: string, { version, till, record }: Unpacked): Promise<Version | undefined> => {
    try {
      return await swap(id, version, till, record);
    } catch (error) {
      if (error instanceof Fault) return version;
      throw error;
    }
  };

  return {
    async read(id) {
      if (!isUsableId(id)) return undefined;
      for (let tries = 0; tries < MAX_TRIES; tries += 1) {
        const { now, value } = await readOne(keyOf(id));
        if (typeof value !== 'string') return undefined;
        const found = unpack(kind, value);
        const { record, version, till, json, hasMac } = found;
        const place = placeOf(id, version, till);
        const outcome = authenticator.check(place, json, hasMac, isOver(record, now / 1_000));
        if (outcome === 'refused') return undefined;
        const seen = outcome === 'authentic' ? version : await rewrite(id, found);
        if (seen !== undefined) return { record: record as T, version: seen, now: now / 1_000 };
      }
      throw new Fault('overloaded', 'too many writers for one record');
    },
    async create(id, record, keepUntil) {
      if (!isUsableId(id)) throw new RangeError(`not an id the store can keep: ${id.length} characters`);
      await beforeCreate?.(id, record, keepUntil);
      const [version, till] = [nextVersion(), milliseconds(keepUntil)];
      const args = [version, till, text(id, version, till, record), client.timeArgument()];
      if ((await writer.run(CREATE, [keyOf(id)], args)) === 1) return 'created';
      return kind === 'n' && (await replaceRefused(id, till, record)) ? 'created' : 'taken';
    },
    async replace(id, seen, record, keepUntil) {
      if (!isUsableId(id)) return 'stale';
      return (await swap(id, seen, milliseconds(keepUntil), record)) === undefined ? 'stale' : 'replaced';
    },
  };
}

/** Another writer may come first; more often than this is no race but a fault. */
const MAX_TRIES = 50;

const milliseconds = (keepUntil: Epoch): string =>
  keepUntil === KEEP_FOREVER ? '0' : String(Math.max(1, Math.ceil(keepUntil * 1_000)));

interface Unpacked {
  readonly record: unknown;
  readonly version: Version;
  readonly till: string;
  readonly json: string;
  readonly hasMac: boolean;
}

/** What cannot be read is a fault: taking it for "not there" would let an id be used twice. */
function unpack(kind: RedisRecordKind, value: string): Unpacked {
  const first = value.indexOf(' ');
  const second = value.indexOf(' ', first + 1);
  const json = value.slice(second + 1);
  let read: unknown;
  try {
    read = JSON.parse(json);
  } catch (error) {
    throw unreadable(kind, 'it is damaged', error);
  }
  if (first < 1 || typeof read !== 'object' || read === null || !('v' in read) || !('r' in read))
    throw unreadable(kind, 'it is damaged');
  if (read.v !== FORMAT)
    throw unreadable(kind, `it has format ${String(read.v)}, and this version knows ${FORMAT}`);
  if (typeof read.r !== 'object' || read.r === null) throw unreadable(kind, 'it is damaged');
  return {
    record: read.r,
    version: value.slice(0, first) as Version,
    till: value.slice(first + 1, second),
    json,
    hasMac: 'm' in read,
  };
}

const unreadable = (kind: RedisRecordKind, why: string, cause?: unknown): Fault =>
  new Fault(
    'store_record_unreadable',
    `a record of kind ${kind} cannot be read: ${why}. Was the store written by a newer gatehouse?`,
    { cause },
  );
