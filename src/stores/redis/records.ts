import { hash, randomBytes } from 'node:crypto';
import type { Epoch, Grant } from '../../domain/grant.ts';
import { type GrantPage, type GrantQuery, matchesQuery } from '../../ports/grant-index.ts';
import type { RecordAuthenticator, RecordKind, RecordLocation } from '../../ports/record-authenticator.ts';
import { KEEP_FOREVER, type RecordStore, type Version } from '../../ports/store.ts';
import {
  checkRecord,
  type FoundRecord,
  formatEnvelope,
  isValidRecordId,
  parseEnvelope,
  requireValidRecordId,
  toStoredRecord,
  unreadableFault,
} from '../record-format.ts';
import { createBatcher } from './batch.ts';
import { defineScript, LUA_TIME, listPrimaries, type RedisClient } from './client.ts';
import { CHECK_ID } from './startup-checks.ts';

/**
 * A record is one string: `<version> <keep until, milliseconds, 0 = forever> <JSON>`. The process composes it, and the MAC
 * in the JSON covers all of it; scripts look at version and expiry only. In a cluster every record has its own slot.
 *
 * ioredis sends a command again when its reply was lost. The version of a write is unique, so finding it in place means
 * that this write has happened.
 */

const LUA_IS_EXPIRED = `
-- A record without an expiry is damaged; reading it reports that.
local function expired(till, now) return till and till ~= '0' and tonumber(till) <= now end
`;

const LUA_STORE = `
local function store(key, version, till, json, now)
  local value = version .. ' ' .. till .. ' ' .. json
  if till == '0' then redis.call('SET', key, value)
  elseif expired(till, now) then redis.call('DEL', key)
  else redis.call('SET', key, value, 'PX', string.format('%d', tonumber(till) - now)) end
  return 1
end
`;

const READ = defineScript(`${LUA_TIME}${LUA_IS_EXPIRED}
local now = time(ARGV[1])
local reply = {now}
for i, found in ipairs(redis.call('MGET', unpack(KEYS))) do
  if found and expired(string.match(found, '^%S+ (%d+) '), now) then found = false
  elseif not found then
    -- MGET returns nothing for a value that is not a string: damaged, not absent.
    local value = redis.pcall('GET', KEYS[i])
    if type(value) == 'table' and value.err then found = '! 0 not a string' end
  end
  reply[i + 1] = found
end
return reply`);

/** ARGV: our version, keep until, JSON, time. */
const CREATE = defineScript(`${LUA_TIME}${LUA_IS_EXPIRED}${LUA_STORE}
local now = time(ARGV[4])
local found = redis.call('GET', KEYS[1])
if found then
  local version, till = string.match(found, '^(%S+) (%d+) ')
  if version == ARGV[1] then return 1 end
  if not expired(till, now) then return 0 end
end
return store(KEYS[1], ARGV[1], ARGV[2], ARGV[3], now)`);

/** ARGV: time; then for each key expected version, our version, keep until, JSON. */
const REPLACE = defineScript(`${LUA_TIME}${LUA_IS_EXPIRED}${LUA_STORE}
local now = time(ARGV[1])
local reply = {}
-- Of two writers of one record in a batch, the second is stale.
local written = {}
for i, found in ipairs(redis.call('MGET', unpack(KEYS))) do
  local at = i * 4 - 2
  local version, till
  if found then version, till = string.match(found, '^(%S+) (%d+) ') end
  if version and version == ARGV[at + 1] then reply[i] = 1
  elseif not version or version ~= ARGV[at] or expired(till, now) or written[KEYS[i]] then reply[i] = 0
  else
    written[KEYS[i]] = true
    reply[i] = store(KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], now)
  end
end
return reply`);

/** The last part of a record's key. */
const KEY_SUFFIXES: Readonly<Record<RecordKind, string>> = {
  grants: 'g',
  devices: 'd',
  userCodes: 'u',
  notes: 'n',
};

/** A script blocks the server: this many records take a fraction of a millisecond. */
const BATCH = 100;

interface Replacement {
  readonly key: string;
  readonly args: readonly string[];
}

export interface RedisRecordsOptions<T> {
  readonly client: RedisClient;
  /** For writes, when they are confirmed by replicas. */
  readonly writer?: RedisClient | undefined;
  readonly prefix: string;
  readonly kind: RecordKind;
  readonly authenticator: RecordAuthenticator;
  /** Awaited before a record is created. */
  readonly beforeCreate?: ((id: string, record: T, keepUntil: Epoch) => Promise<void>) | undefined;
}

export function createRedisRecords<T>(options: RedisRecordsOptions<T>): RecordStore<T> {
  const { client, writer = client, prefix, kind, authenticator, beforeCreate } = options;
  const formatKey = (id: string): string => `${prefix}:{${id}}:${KEY_SUFFIXES[kind]}`;
  const writerId = randomBytes(12).toString('base64url');
  let writes = 0;

  /** A new version of a record: its parts as they are stored. */
  const seal = (id: string, record: unknown, keepUntilMs: string): readonly string[] => {
    writes += 1;
    const version = `${writerId}${writes.toString(36)}`;
    const json = authenticator.seal(toLocation(kind, id, version, keepUntilMs), formatEnvelope(record));
    return [version, keepUntilMs, json];
  };

  const maxBatch = client.isCluster ? 1 : BATCH;
  const readValue = createBatcher(maxBatch, async (keys: readonly string[]) => {
    const reply = (await client.runScript(READ, keys, [client.timeArgument()])) as [number, ...unknown[]];
    const [nowMs, ...values] = reply;
    client.recordServerTime(nowMs);
    return keys.map((_, index) => ({ now: nowMs / 1_000, value: values[index] }));
  });
  const runReplace = createBatcher(maxBatch, async (replacements: readonly Replacement[]) => {
    const keys = replacements.map(({ key }) => key);
    const args = [client.timeArgument(), ...replacements.flatMap((one) => one.args)];
    return (await writer.runScript(REPLACE, keys, args)) as readonly number[];
  });

  const find = async (id: string) => {
    const { now, value } = await readValue(formatKey(id));
    return { now, found: typeof value === 'string' ? parseRecord(kind, id, value) : undefined };
  };
  /** False if the record has another version than `replaced`. */
  const replace = async (id: string, replaced: Version, record: unknown, keepUntilMs: string): Promise<boolean> => {
    const args = [replaced, ...seal(id, record, keepUntilMs)];
    return (await runReplace({ key: formatKey(id), args })) === 1;
  };
  /** Replaces a note that fails authentication. */
  const replaceRefusedNote = async (id: string, record: T, keepUntilMs: string): Promise<boolean> => {
    const { found, now } = await find(id);
    if (found === undefined || checkRecord(authenticator, found, now) !== 'refused') return false;
    return replace(id, found.version, record, keepUntilMs);
  };

  return {
    async read(id) {
      if (!isValidRecordId(id)) return undefined;
      const { found, now } = await find(id);
      return found && toStoredRecord<T>(authenticator, found, now);
    },
    async create(id, record, keepUntil) {
      requireValidRecordId(id);
      await beforeCreate?.(id, record, keepUntil);
      const keepUntilMs = toMilliseconds(keepUntil);
      const args = [...seal(id, record, keepUntilMs), client.timeArgument()];
      if ((await writer.runScript(CREATE, [formatKey(id)], args)) === 1) return 'created';
      return kind === 'notes' && (await replaceRefusedNote(id, record, keepUntilMs)) ? 'created' : 'taken';
    },
    async replace(id, replaced, record, keepUntil) {
      if (!isValidRecordId(id)) return 'stale';
      return (await replace(id, replaced, record, toMilliseconds(keepUntil))) ? 'replaced' : 'stale';
    },
  };
}

const toMilliseconds = (keepUntil: Epoch): string =>
  keepUntil === KEEP_FOREVER ? '0' : String(Math.max(1, Math.ceil(keepUntil * 1_000)));

const toLocation = (kind: RecordKind, id: string, version: string, keepUntilMs: string): RecordLocation => ({
  kind,
  id,
  context: `${version} ${keepUntilMs}`,
});

function parseRecord(kind: RecordKind, id: string, value: string): FoundRecord {
  const first = value.indexOf(' ');
  const second = value.indexOf(' ', first + 1);
  if (first < 1) throw unreadableFault(kind, 'it is damaged');
  const version = value.slice(0, first) as Version;
  const keepUntilMs = value.slice(first + 1, second);
  const location = toLocation(kind, id, version, keepUntilMs);
  return { ...parseEnvelope(kind, value.slice(second + 1)), location, version };
}

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
