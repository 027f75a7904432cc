import { setTimeout as pause } from 'node:timers/promises';
import type { RedisOptions as IoRedisOptions } from 'ioredis';
import type { Settings } from '../config/schema.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { StartError } from '../lib/start-error.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { observe } from '../observability/metric-registry.ts';
import type { Metrics } from '../observability/metrics.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import { MIGRATION_NOTE, type RecordStore, type Store } from '../ports/store.ts';
import { openEmbeddedStore } from '../stores/embedded/store.ts';
import { createAvailabilityMonitor } from '../stores/redis/availability.ts';
import type { RedisStore } from '../stores/redis/store.ts';
import { createRestoredRevocationsReporter } from './record-authentication.ts';

export interface OpenedStore extends Store {
  readonly notices: readonly string[];
  /** Removes expired records and returns their number. Also runs periodically. */
  sweep(): Promise<number>;
}

interface OpenStoreOptions {
  readonly settings: Settings;
  readonly log: Logger;
  readonly now: () => number;
  readonly authenticator: RecordAuthenticator;
  /** Omitted: restored revocations are not reported. */
  readonly metrics?: Metrics;
  readonly role: 'standalone' | 'owner' | 'worker';
  /** Milliseconds for one Redis command. */
  readonly commandTimeout?: number | undefined;
  /** Redis is unreachable at start. Called after each attempt; opening is retried. */
  readonly onUnreachable?: (fault: Fault) => Promise<void>;
}

export async function openStore(options: OpenStoreOptions): Promise<OpenedStore> {
  const { log } = options;
  const store = await (options.settings.store.type === 'redis'
    ? openRedisUnchecked(options, rejectIncompleteMigration)
    : openEmbedded(options));
  for (const notice of store.notices) log.warn('store_warning', { notice });
  return store;
}

async function openEmbedded({ settings, log, role, now, authenticator }: OpenStoreOptions): Promise<OpenedStore> {
  const { path, mapSize } = settings.store;
  const onFault = (fault: Fault): void => log.error('store_error', errorFields(fault));
  try {
    return await openEmbeddedStore({ path, mapSize, role, now, authenticator, onFault });
  } catch (error) {
    if (error instanceof Fault) throw new StartError([`store.path: ${error.message}`], { cause: error });
    throw error;
  }
}

const RETRY_MS = 500;

/** Retries while Redis is unreachable; an unsuitable Redis is a `StartError`. `verify` may refuse it, such as for an incomplete migration. */
export async function openRedisUnchecked(
  options: Omit<OpenStoreOptions, 'role'>,
  verify?: (store: RedisStore) => Promise<void>,
): Promise<RedisStore> {
  const { settings, log, now, authenticator, metrics, commandTimeout, onUnreachable } = options;
  // Loaded on first use: the embedded store does not need it.
  const [{ openRedisStore }, { UnsuitableRedisError }, { formatRedisAddress }] = await Promise.all([
    import('../stores/redis/store.ts'),
    import('../stores/redis/startup-checks.ts'),
    import('../stores/redis/url.ts'),
  ]);
  const { url = '', prefix, maxStaleness, durability, replicas, ack } = settings.store;
  const connection = createRedisOptions(settings);
  const address = formatRedisAddress(url);
  const logUnreachable = (reason: string, seconds: number, note?: string): void =>
    log.error('store_unreachable', {
      address,
      reason,
      ...(seconds >= 1 && { unreachable_s: Math.round(seconds) }),
      ...(note !== undefined && { note }),
    });
  const logReachable = (seconds: number): void =>
    log.warn('store_reachable', { address, unreachable_s: Math.round(seconds * 10) / 10 });
  const open = async (): Promise<RedisStore> => {
    try {
      const store = await openRedisStore({
        url,
        prefix,
        connection,
        maxStaleness,
        ack,
        replicas: durability === 'replicated' ? replicas : 0,
        wallTime: now,
        authenticator,
        ...(metrics !== undefined && { onRestored: createRestoredRevocationsReporter(log, metrics) }),
        ...(commandTimeout !== undefined && { commandTimeout }),
        onUnreachable: logUnreachable,
        onReachable: logReachable,
        onFault: (fault) => log.error('store_error', errorFields(fault)),
        onAlarm: (alarm) => log.error('store_alert', { what: alarm }),
      });
      // With the retries: Redis may become unreachable between two commands.
      await verify?.(store).catch(async (error: unknown) => {
        await store.close();
        throw error;
      });
      return store;
    } catch (error) {
      if (!(error instanceof UnsuitableRedisError)) throw error;
      throw new StartError(
        error.problems.map((problem) => `store.url: ${problem}`),
        { cause: error },
      );
    }
  };
  const startedAt = performance.now();
  let wasUnreachable = false;
  const report = (reason: string, seconds: number): void =>
    logUnreachable(reason, seconds, 'retrying until Redis is reachable; no request is served before');
  const store = await retryWhileUnreachable(open, report, async (fault) => {
    wasUnreachable = true;
    await onUnreachable?.(fault);
  });
  if (wasUnreachable) logReachable((performance.now() - startedAt) / 1_000);
  return store;
}

/** Repeats what fails because the store is unreachable; `onUnreachable` is called after each attempt, `report` seldom. */
export async function retryWhileUnreachable<T>(
  work: () => Promise<T>,
  report: (reason: string, seconds: number) => void,
  onUnreachable: (fault: Fault) => Promise<void>,
): Promise<T> {
  const availability = createAvailabilityMonitor({ onUnreachable: report });
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Fault) || error.code !== 'store_unavailable') throw error;
      availability.reportFailure(error);
      await onUnreachable(error);
      await pause(RETRY_MS);
    }
  }
}

async function rejectIncompleteMigration({ notes }: OpenedStore): Promise<void> {
  const migration = await notes.read(MIGRATION_NOTE);
  if (migration?.record['state'] === 'begun')
    throw new StartError([
      'store.url: a migration into this Redis is incomplete, so grants are missing; run `gatehouse restore` again until it succeeds',
    ]);
}

export function createRedisOptions({ store: { password, tls } }: Settings): IoRedisOptions {
  return {
    ...(password !== undefined && { password }),
    ...(tls !== undefined && {
      tls: {
        ca: readSettingFile('store.tls.ca', tls.ca),
        cert: readSettingFile('store.tls.certificate', tls.certificate),
        key: readSettingFile('store.tls.key', tls.key),
        ...(tls.serverName !== undefined && { servername: tls.serverName }),
      },
    }),
  };
}

/** Wraps a store with metrics of latency and errors. */
export function instrumentStore<S extends Store>(store: S, metrics: Metrics): S {
  const createTimer = (op: string): (<T>(work: () => Promise<T>) => Promise<T>) => {
    const seconds = metrics.histogram('gatehouse_store_operation_duration_seconds', op);
    const errors = metrics.counter('gatehouse_store_errors_total', op);
    return async (work) => {
      const startedAt = performance.now();
      try {
        return await work();
      } catch (error) {
        errors.value += 1;
        throw error;
      } finally {
        observe(seconds, (performance.now() - startedAt) / 1_000);
      }
    };
  };
  const instrumentRecords = <T>(name: string, recordStore: RecordStore<T>): RecordStore<T> => {
    const read = createTimer(`${name}.read`);
    const create = createTimer(`${name}.create`);
    const replace = createTimer(`${name}.replace`);
    return {
      ...recordStore,
      read: (id) => read(() => recordStore.read(id)),
      create: (...args) => create(() => recordStore.create(...args)),
      replace: (...args) => replace(() => recordStore.replace(...args)),
    };
  };
  const timeAnnounce = createTimer('revocations.announce');
  const { revocations } = store;
  return {
    ...store,
    grants: instrumentRecords('grants', store.grants),
    devices: instrumentRecords('devices', store.devices),
    userCodes: instrumentRecords('userCodes', store.userCodes),
    revocations: {
      ...revocations,
      isRevoked: (bearer) => revocations.isRevoked(bearer),
      getLastNumber: () => revocations.getLastNumber(),
      announce: (revocation) => timeAnnounce(() => revocations.announce(revocation)),
    },
  };
}
