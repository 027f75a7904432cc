import { randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordStore, Version } from '../ports/record-store.ts';
import { KEEP_FOREVER } from '../ports/store.ts';
import { type RedisClient, redisScript } from './redis-client.ts';

/**
 * A record is one string: `<version> <keep until, milliseconds, 0 = for ever> <JSON>`. The first two are what the
 * scripts look at. Every record has a slot of its own in a cluster.
 *
 * ioredis sends a command again when its answer was lost. The version a writer brings along is its own and new, so
 * finding it in place means: this very write has happened.
 */
const TIME = `
local function time(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function over(keep, now) return keep ~= '0' and tonumber(keep) <= now end
`;

const KEEP = `
local function keep(version, till, json, now)
  local value = version .. ' ' .. till .. ' ' .. json
  if till == '0' then redis.call('SET', KEYS[1], value)
  elseif over(till, now) then redis.call('DEL', KEYS[1])
  else redis.call('SET', KEYS[1], value, 'PX', string.format('%d', tonumber(till) - now)) end
  return 1
end
`;

const READ = redisScript(`${TIME}
local now = time(ARGV[1])
local found = redis.call('GET', KEYS[1])
if not found or over(string.match(found, '^%S+ (%d+) '), now) then return {now} end
return {now, found}`);

/** ARGV: our version, keep until, JSON, time. */
const CREATE = redisScript(`${TIME}${KEEP}
local now = time(ARGV[4])
local found = redis.call('GET', KEYS[1])
if found then
  local version, till = string.match(found, '^(%S+) (%d+) ')
  if version == ARGV[1] then return 1 end
  if not over(till, now) then return 0 end
end
return keep(ARGV[1], ARGV[2], ARGV[3], now)`);

/** ARGV: version seen, our version, keep until, JSON, time. */
const REPLACE = redisScript(`${TIME}${KEEP}
local now = time(ARGV[5])
local found = redis.call('GET', KEYS[1])
if not found then return 0 end
local version, till = string.match(found, '^(%S+) (%d+) ')
if version == ARGV[2] then return 1 end
if version ~= ARGV[1] or over(till, now) then return 0 end
return keep(ARGV[2], ARGV[3], ARGV[4], now)`);

/** One letter for each kind of record, at the end of its key. */
export type RedisRecordKind = 'g' | 'd' | 'u' | 'n';

const FORMAT = 1;
const MAX_ID_LENGTH = 480;

/** What is not well-formed text would not come back as it went in. */
const isUsableId = (id: string): boolean => id.length > 0 && id.length <= MAX_ID_LENGTH && id.isWellFormed();

export interface RedisRecordsOptions {
  readonly client: RedisClient;
  /** For what writes; the same, unless writes are confirmed by replicas. */
  readonly writer?: RedisClient | undefined;
  readonly prefix: string;
  readonly kind: RedisRecordKind;
  /** Awaited before anything is created. */
  readonly beforeCreate?: () => Promise<void>;
}

export function redisRecords<T>(options: RedisRecordsOptions): RecordStore<T> {
  const { client, writer = client, prefix, kind, beforeCreate } = options;
  const keyOf = (id: string): string => `${prefix}:{${id}}:${kind}`;
  // Drawn once for this process, counted for each write: never given twice, and by nobody else.
  const process = randomBytes(12).toString('base64url');
  let writes = 0;
  const nextVersion = (): string => {
    writes += 1;
    return `${process}${writes.toString(36)}`;
  };
  const text = (record: T): string => JSON.stringify({ v: FORMAT, r: record });

  return {
    async read(id) {
      if (!isUsableId(id)) return undefined;
      const answer = await client.run(READ, [keyOf(id)], [client.timeArgument()]);
      const [now, value] = answer as [number, string?];
      client.sawTime(now);
      if (value === undefined) return undefined;
      const { record, version } = unpack(kind, value);
      return { record: record as T, version, now: now / 1_000 };
    },
    async create(id, record, keepUntil) {
      if (!isUsableId(id)) throw new RangeError(`not an id the store can keep: ${id.length} characters`);
      await beforeCreate?.();
      const args = [nextVersion(), milliseconds(keepUntil), text(record), client.timeArgument()];
      return (await writer.run(CREATE, [keyOf(id)], args)) === 1 ? 'created' : 'taken';
    },
    async replace(id, seen, record, keepUntil) {
      if (!isUsableId(id)) return 'stale';
      const args = [seen, nextVersion(), milliseconds(keepUntil), text(record), client.timeArgument()];
      return (await writer.run(REPLACE, [keyOf(id)], args)) === 1 ? 'replaced' : 'stale';
    },
  };
}

const milliseconds = (keepUntil: Epoch): string =>
  keepUntil === KEEP_FOREVER ? '0' : String(Math.max(1, Math.ceil(keepUntil * 1_000)));

/** What cannot be read is a fault: taking it for "not there" would let an id be used twice. */
function unpack(
  kind: RedisRecordKind,
  value: string,
): { readonly record: unknown; readonly version: Version } {
  const first = value.indexOf(' ');
  const second = value.indexOf(' ', first + 1);
  let read: unknown;
  try {
    read = JSON.parse(value.slice(second + 1));
  } catch (error) {
    throw unreadable(kind, 'it is damaged', error);
  }
  if (first < 1 || typeof read !== 'object' || read === null || !('v' in read) || !('r' in read))
    throw unreadable(kind, 'it is damaged');
  if (read.v !== FORMAT)
    throw unreadable(kind, `it has format ${String(read.v)}, and this version knows ${FORMAT}`);
  return { record: read.r, version: value.slice(0, first) as Version };
}

const unreadable = (kind: RedisRecordKind, why: string, cause?: unknown): Fault =>
  new Fault(
    'store_record_unreadable',
    `a record of kind ${kind} cannot be read: ${why}. Was the store written by a newer gatehouse?`,
    { cause },
  );
