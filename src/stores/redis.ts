import type { RedisOptions as IoRedisOptions } from 'ioredis';
import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import type { RecordStore } from '../ports/record-store.ts';
import { KEEP_FOREVER, PASSING_NOTE, type Store, type UserCodeEntry } from '../ports/store.ts';
import { checkRedis, RedisUnfit, refuseToWait } from './redis-checks.ts';
import { COMMAND_TIMEOUT_MS, connectRedis, type RedisClient, redisScript } from './redis-client.ts';
import { clockGuard } from './redis-clock.ts';
import { confirmedClient } from './redis-confirmed.ts';
import { redisGrantIndex } from './redis-grant-index.ts';
import { redisLimits } from './redis-limits.ts';
import { type PresenceOptions, presence } from './redis-presence.ts';
import { type RedisRecordKind, type RedisRecordsOptions, redisRecords } from './redis-records.ts';
import { revocationKeys } from './redis-revocation-scripts.ts';
import { type Ack, type RedisRevocations, redisRevocations } from './redis-revocations.ts';
import { parseRedisUrl } from './redis-url.ts';

export interface RedisOptions extends Pick<PresenceOptions, 'onAway' | 'onBack'> {
  readonly url: string;
  readonly authenticator: RecordAuthenticator;
  readonly connection?: IoRedisOptions;
  /** Begins every key, so that several gatehouses can share one Redis. */
  readonly prefix?: string;
  /** Seconds for which bearer checks go on while the server cannot be reached. */
  readonly maxStaleness: number;
  readonly ack: Ack;
  /** How many replicas of the server must hold a write before it is answered; 0: the server itself is enough. */
  readonly replicas?: number;
  readonly commandTimeout?: number;
  /** In place of the server's clock. */
  readonly clock?: () => Epoch;
  /** Our own clock, held against the server's. */
  readonly wallTime?: () => Epoch;
  /** What went wrong in the background, for the log. */
  readonly onFault?: (fault: Fault) => void;
  /** So many revocations were missing from the server and have been put back. */
  readonly onRestored?: (count: number) => void;
  /** What an operator should hear of at once: data that was lost, clocks that differ. */
  readonly onAlarm?: (what: string) => void;
}

export interface RedisStore extends Store {
  /** What was found at opening and is worth a line in the log. */
  readonly notices: readonly string[];
  sweep(): Promise<number>;
  readonly revocations: RedisRevocations;
}

const TOUCH = redisScript("return redis.call('HSET', KEYS[1], 'again', redis.call('TIME')[1])");

const CONTROL_TIMEOUT_MS = 1_000;
const READER_TIMEOUT_MS = 2_000;
/** Longer than the reader waits for news: a connection that is silent for this long is dead. */
const READER_SILENCE_MS = 1_500;

/** The store that replicas share. Three connections: for records, for revocations, and for reading their log. */
export async function openRedis(options: RedisOptions): Promise<RedisStore> {
  const {
    url,
    authenticator,
    connection,
    clock: givenClock,
    prefix = 'gh',
    replicas = 0,
    commandTimeout = COMMAND_TIMEOUT_MS,
  } = options;
  const there = presence(options);
  if (parseRedisUrl(url) === undefined)
    throw new RedisUnfit([
      'its form is not known; write redis://host:port/database, redis+sentinel://host,host/name or redis+cluster://host,host',
    ]);
  const clients: RedisClient[] = [];
  const connect = async (name: string, timeout: number, more: IoRedisOptions = {}): Promise<RedisClient> => {
    const settings = { ...connection, ...more } as IoRedisOptions;
    const client = await connectRedis({
      url,
      name: `gatehouse-${name}`,
      commandTimeout: timeout,
      connection: settings,
      clock: givenClock,
    });
    clients.push(client);
    return client;
  };
  try {
    const client = await connect('records', commandTimeout);
    const control = await connect('control', Math.max(CONTROL_TIMEOUT_MS, commandTimeout));
    const reader = await connect('reader', READER_TIMEOUT_MS, {
      enableAutoPipelining: false,
      maxRetriesPerRequest: 0,
      socketTimeout: READER_SILENCE_MS,
    });
    const notices = await checkRedis({
      client: control,
      prefix,
      wallTime: options.wallTime,
      replicated: replicas > 0,
    });
    const confirmed = async (name: string): Promise<RedisClient | undefined> =>
      replicas === 0
        ? undefined
        : confirmedClient({
            // WAIT itself blocks for `commandTimeout` at most; its reply has as long again.
            client: await connect(name, 2 * commandTimeout),
            replicas,
            timeout: commandTimeout,
          });
    const writer = await confirmed('writes');
    const used = usedMark(control, prefix);
    const records = <T>(
      kind: RedisRecordKind,
      beforeCreate?: RedisRecordsOptions<T>['beforeCreate'],
    ): RecordStore<T> =>
      redisRecords<T>({
        client,
        writer,
        prefix,
        kind,
        authenticator,
        ...(beforeCreate && { beforeCreate }),
      });
    const notes = rememberedNotes(records<Readonly<Record<string, string>>>('n'));
    const grantIndex = redisGrantIndex({ client, prefix, grants: () => grants });
    const grants = records<Grant>('g', async (id, grant, keepUntil) => {
      await Promise.all([used.mark(), grantIndex.enter(id, grant, keepUntil)]);
    });
    const { wallTime } = options;
    const revocations = await redisRevocations({
      control,
      // Beats and announcements wait for replicas too, and not behind the writes of records.
      writer: (await confirmed('announcements')) ?? control,
      reader,
      prefix,
      maxStaleness: options.maxStaleness,
      ack: options.ack,
      onRestored: (count) => options.onRestored?.(count),
      onFault: there.failed,
      onBeat: there.answered,
      issuingTime: () => Math.min(client.storeTime(), wallTime?.() ?? Number.POSITIVE_INFINITY),
      async onDataLoss() {
        options.onAlarm?.(
          'Redis has lost its data, or is another one: what was revoked is put back, grants are gone',
        );
        used.forget();
        await notes.putBack();
      },
    });
    const clock = clockGuard({
      ours: options.wallTime,
      theirs: () => control.storeTime(),
      tell: options.onAlarm,
    });
    /** A full server still serves every grant that it holds. */
    const writable = async (): Promise<void> => {
      try {
        await client.run(TOUCH, [revocationKeys(prefix).head], []);
      } catch (error) {
        if (!(error instanceof Fault && error.code === 'store_full')) throw error;
      }
    };
    return {
      notices,
      grants: {
        async read(id) {
          const found = await grants.read(id);
          // An emptied server knows no grant: that is our loss, until it is sure to be the state of things.
          if (found === undefined) await revocations.requireSame();
          return found;
        },
        async create(id, grant, keepUntil) {
          clock.require();
          return grants.create(id, grant, keepUntil);
        },
        async replace(id, seen, grant, keepUntil) {
          // An end needs no clock.
          if (grant.revokedAt === undefined) clock.require();
          return grants.replace(id, seen, grant, keepUntil);
        },
      },
      grantIndex,
      devices: records<DeviceRequest>('d', async () => {
        clock.require();
        await used.mark();
      }),
      userCodes: records<UserCodeEntry>('u'),
      notes: notes.records,
      revocations,
      limits: redisLimits({ client, prefix, sharers: () => revocations.followers() }),
      time: () => client.storeTime(),
      revocationLag: () => revocations.staleness(),
      sweep: async () => revocations.sweep(),
      isEmpty: () => used.isUnset(),
      // A WAIT waits for what its own connection wrote: a write of ours comes after all that was read.
      settled: async () => void (await writer?.run(TOUCH, [revocationKeys(prefix).head], [])),
      async probe() {
        await writable();
        if (revocations.staleness() > options.maxStaleness)
          throw new Fault('store_unavailable', 'what was revoked is not known for sure');
        clock.require();
      },
      async close() {
        clock.stop();
        await revocations.stop();
        for (const one of clients) one.close();
      },
    };
  } catch (error) {
    for (const one of clients) one.close();
    if (error instanceof Fault) refuseToWait(error);
    throw error;
  }
}

/** Says that grants or device requests were ever kept here: set once by each process, before its first. */
function usedMark(client: RedisClient, prefix: string) {
  const { head } = revocationKeys(prefix);
  let marked: Promise<unknown> | undefined;
  return {
    async mark(): Promise<void> {
      marked ??= client.ask((redis) => redis.hset(head, 'used', 1));
      try {
        await marked;
      } catch (error) {
        marked = undefined;
        throw error;
      }
    },
    forget(): void {
      marked = undefined;
    },
    isUnset: async (): Promise<boolean> => (await client.ask((redis) => redis.hexists(head, 'used'))) === 0,
  };
}

type Notes = RecordStore<Readonly<Record<string, string>>>;

/** Notes are few and say what the store is; a server that lost them is told again. */
function rememberedNotes(stored: Notes): { readonly records: Notes; putBack(): Promise<void> } {
  const known = new Map<string, Readonly<Record<string, string>>>();
  const remember = (id: string, record: Readonly<Record<string, string>>): void => {
    if (!id.startsWith(PASSING_NOTE)) known.set(id, { ...record });
  };
  return {
    records: {
      async read(id) {
        const found = await stored.read(id);
        if (found !== undefined) remember(id, found.record);
        return found;
      },
      async create(id, record, keepUntil) {
        const outcome = await stored.create(id, record, keepUntil);
        if (outcome === 'created') remember(id, record);
        return outcome;
      },
      async replace(id, seen, record, keepUntil) {
        const outcome = await stored.replace(id, seen, record, keepUntil);
        if (outcome === 'replaced') remember(id, record);
        return outcome;
      },
    },
    async putBack() {
      for (const [id, record] of known) await stored.create(id, record, KEEP_FOREVER);
    },
  };
}
