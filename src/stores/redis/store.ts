import type { RedisOptions as IoRedisOptions } from 'ioredis';
import type { DeviceRequest } from '../../domain/device-request.ts';
import type { Epoch, Grant } from '../../domain/grant.ts';
import { Fault } from '../../ports/fault.ts';
import type { RecordAuthenticator, RecordKind } from '../../ports/record-authenticator.ts';
import {
  KEEP_FOREVER,
  type Note,
  type RecordStore,
  type Store,
  TRANSIENT_NOTE_PREFIX,
  type UserCodeEntry,
} from '../../ports/store.ts';
import { type AvailabilityOptions, createAvailabilityMonitor } from './availability.ts';
import { COMMAND_TIMEOUT_MS, connectRedis, createReplicatedClient, defineScript, type RedisClient } from './client.ts';
import { createRedisLimits } from './limits.ts';
import { createRedisGrantIndex, createRedisRecords, type RedisRecordsOptions } from './records.ts';
import { revocationKeys } from './revocation-scripts.ts';
import { type AckMode, openRedisRevocations, type RedisRevocations } from './revocations.ts';
import {
  type ClockGuard,
  checkRedis,
  createClockGuard,
  throwIfPermanent,
  UnsuitableRedisError,
} from './startup-checks.ts';
import { parseRedisUrl } from './url.ts';

export interface RedisStoreOptions extends Pick<AvailabilityOptions, 'onUnreachable' | 'onReachable'> {
  readonly url: string;
  readonly authenticator: RecordAuthenticator;
  readonly connection?: IoRedisOptions;
  /** Begins every key, so that several deployments can share one Redis. */
  readonly prefix?: string;
  /** Seconds for which tokens are accepted while the server is unreachable. */
  readonly maxStaleness: number;
  readonly ack: AckMode;
  /** How many Redis replicas must acknowledge a write; 0: none. */
  readonly replicas?: number;
  readonly commandTimeout?: number;
  /** Replaces the server's clock. */
  readonly clock?: () => Epoch;
  /** The clock of this host, compared with the server's. */
  readonly wallTime?: () => Epoch;
  /** Faults in the background. */
  readonly onFault?: (fault: Fault) => void;
  /** This many revocations were missing from the server and have been restored. */
  readonly onRestored?: (count: number) => void;
  /** For the operator's immediate attention: lost data, clocks that differ. */
  readonly onAlarm?: (message: string) => void;
}

export interface RedisStore extends Store {
  /** Findings at opening, for the log. */
  readonly notices: readonly string[];
  sweep(): Promise<number>;
  readonly revocations: RedisRevocations;
}

const TOUCH = defineScript("return redis.call('HSET', KEYS[1], 'again', redis.call('TIME')[1])");

const CONTROL_TIMEOUT_MS = 1_000;
const READER_TIMEOUT_MS = 2_000;
/** Longer than the reader blocks: a connection that is idle for this long is dead. */
const READER_IDLE_TIMEOUT_MS = 1_500;

/** The store that replicas share. */
export async function openRedisStore(options: RedisStoreOptions): Promise<RedisStore> {
  if (parseRedisUrl(options.url) === undefined)
    throw new UnsuitableRedisError([
      'unsupported URL format; use redis://host:port/database, redis+sentinel://host,host/name or redis+cluster://host,host',
    ]);
  const clients: RedisClient[] = [];
  const closeClients = (): void => {
    for (const client of clients) client.close();
  };
  try {
    return await openStore(options, await openConnections(options, clients), closeClients);
  } catch (error) {
    closeClients();
    if (error instanceof Fault) throwIfPermanent(error);
    throw error;
  }
}

/** Adds every connection to `opened`, so that all are closed if one fails. */
async function openConnections(options: RedisStoreOptions, opened: RedisClient[]) {
  const { url, clock, replicas = 0, commandTimeout = COMMAND_TIMEOUT_MS } = options;
  const health = { isUnresponsive: false };
  const connect = async (name: string, timeout: number, overrides: IoRedisOptions = {}, isProbe = false) => {
    const client = await connectRedis({
      url,
      name: `gatehouse-${name}`,
      commandTimeout: timeout,
      connection: { ...options.connection, ...overrides },
      clock,
      health,
      isProbe,
    });
    opened.push(client);
    return client;
  };
  const connectConfirmed = async (name: string): Promise<RedisClient | undefined> => {
    if (replicas === 0) return undefined;
    // WAIT itself blocks for up to `commandTimeout`.
    return createReplicatedClient(await connect(name, 2 * commandTimeout), replicas, commandTimeout);
  };
  return {
    client: await connect('records', commandTimeout),
    // For revocations, so that they do not wait behind records.
    control: await connect('control', Math.max(CONTROL_TIMEOUT_MS, commandTimeout)),
    // For blocking reads of the revocation log.
    reader: await connect(
      'reader',
      READER_TIMEOUT_MS,
      { enableAutoPipelining: false, maxRetriesPerRequest: 0, socketTimeout: READER_IDLE_TIMEOUT_MS },
      true,
    ),
    // For confirmed writes of records and of revocations.
    writer: await connectConfirmed('writes'),
    announcer: await connectConfirmed('announcements'),
  };
}

async function openStore(
  options: RedisStoreOptions,
  { client, control, reader, writer, announcer = control }: Awaited<ReturnType<typeof openConnections>>,
  closeClients: () => void,
): Promise<RedisStore> {
  const { authenticator, prefix = 'gh', maxStaleness, ack, wallTime } = options;
  const availability = createAvailabilityMonitor(options);
  const notices = await checkRedis({ client: control, prefix, wallTime, replicated: writer !== undefined });
  const usedMarker = createUsedMarker(control, prefix);
  const createRecords = <T>(kind: RecordKind, beforeCreate?: RedisRecordsOptions<T>['beforeCreate']): RecordStore<T> =>
    createRedisRecords<T>({ client, writer, prefix, kind, authenticator, beforeCreate });
  const notes = createRestorableNotes(createRecords<Note>('notes'));
  const grantIndex = createRedisGrantIndex(client, prefix, () => grants);
  const grants = createRecords<Grant>('grants', async (id, grant, keepUntil) => {
    await Promise.all([usedMarker.mark(), grantIndex.add(id, grant, keepUntil)]);
  });
  const revocations = await openRedisRevocations({
    control,
    writer: announcer,
    reader,
    prefix,
    maxStaleness,
    ack,
    onRestored: (count) => options.onRestored?.(count),
    onFault: (fault) => availability.reportFailure(fault),
    onHeartbeat: () => availability.reportSuccess(),
    issuingTime: () => Math.min(client.storeTime(), wallTime?.() ?? Number.POSITIVE_INFINITY),
    async onDataLoss() {
      options.onAlarm?.('Redis lost its data or was replaced: revocations are restored, grants are lost');
      usedMarker.reset();
      await notes.restore();
    },
  });
  const clock = createClockGuard(wallTime, control.storeTime, options.onAlarm);
  const touch = (target: RedisClient | undefined) => target?.runScript(TOUCH, [revocationKeys(prefix).head], []);
  return {
    notices,
    grants: createGuardedGrants(grants, clock, revocations),
    grantIndex,
    devices: createRecords<DeviceRequest>('devices', async () => {
      clock.requireAgreement();
      await usedMarker.mark();
    }),
    userCodes: createRecords<UserCodeEntry>('userCodes'),
    notes: notes.records,
    revocations,
    limits: createRedisLimits(client, prefix, revocations.followerCount),
    time: () => client.storeTime(),
    findClockProblem: clock.findProblem,
    revocationLag: revocations.staleness,
    listReplicas: revocations.listReplicas,
    sweep: revocations.sweep,
    isEmpty: usedMarker.isUnset,
    // WAIT covers the writes of its own connection only: a write here comes after everything that was read.
    waitUntilDurable: async () => void (await touch(writer)),
    async probe() {
      try {
        await touch(client);
      } catch (error) {
        // A full server still serves the grants it holds.
        if (!(error instanceof Fault && error.code === 'store_full')) throw error;
      }
      if (revocations.staleness() > maxStaleness)
        throw new Fault('store_unavailable', 'the revocation list is out of date');
    },
    async close() {
      clock.stop();
      await revocations.stop();
      closeClients();
    },
  };
}

const createGuardedGrants = (
  grants: RecordStore<Grant>,
  clock: ClockGuard,
  revocations: RedisRevocations,
): RecordStore<Grant> => ({
  async read(id) {
    const found = await grants.read(id);
    // A server that lost its data reports every grant as absent.
    if (found === undefined) await revocations.requireSameHistory();
    return found;
  },
  async create(id, grant, keepUntil) {
    clock.requireAgreement();
    return grants.create(id, grant, keepUntil);
  },
  async replace(id, expected, grant, keepUntil) {
    // Ending a grant does not depend on clocks.
    if (grant.revokedAt === undefined) clock.requireAgreement();
    return grants.replace(id, expected, grant, keepUntil);
  },
});

/** Records that the store was used: each process sets it once, before its first grant or device request. */
function createUsedMarker(client: RedisClient, prefix: string) {
  const { head } = revocationKeys(prefix);
  let marked: Promise<unknown> | undefined;
  return {
    async mark(): Promise<void> {
      marked ??= client.execute((redis) => redis.hset(head, 'used', 1));
      try {
        await marked;
      } catch (error) {
        marked = undefined;
        throw error;
      }
    },
    reset(): void {
      marked = undefined;
    },
    isUnset: async (): Promise<boolean> => (await client.execute((redis) => redis.hexists(head, 'used'))) === 0,
  };
}

/** Remembers notes, which are few, to restore them to a server that lost its data. */
function createRestorableNotes(stored: RecordStore<Note>) {
  const seen = new Map<string, Note>();
  const remember = <T>(id: string, record: Note | undefined, outcome: T): T => {
    if (record !== undefined && !id.startsWith(TRANSIENT_NOTE_PREFIX)) seen.set(id, { ...record });
    return outcome;
  };
  const records: RecordStore<Note> = {
    async read(id) {
      const found = await stored.read(id);
      return remember(id, found?.record, found);
    },
    async create(id, record, keepUntil) {
      const outcome = await stored.create(id, record, keepUntil);
      return remember(id, outcome === 'created' ? record : undefined, outcome);
    },
    async replace(id, expected, record, keepUntil) {
      const outcome = await stored.replace(id, expected, record, keepUntil);
      return remember(id, outcome === 'replaced' ? record : undefined, outcome);
    },
  };
  return {
    records,
    async restore(): Promise<void> {
      for (const [id, record] of seen) await stored.create(id, record, KEEP_FOREVER);
    },
  };
}
