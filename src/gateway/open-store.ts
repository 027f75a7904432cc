import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import type { RedisOptions as IoRedisOptions } from 'ioredis';
import type { Settings } from '../config/schema.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import { MOVE_NOTE, type Store } from '../ports/store.ts';
import { openEmbedded } from '../stores/embedded.ts';
import type { RedisStore } from '../stores/redis.ts';
import { StartError } from './start-error.ts';

/** A store of either kind. */
export interface OpenedStore extends Store {
  readonly notices: readonly string[];
  /** Removes what has ended; returns how many. Runs by itself. */
  sweep(): Promise<number>;
}

export interface OpenStoreOptions {
  readonly settings: Settings;
  readonly log: Logger;
  readonly now: () => number;
  readonly authenticator: RecordAuthenticator;
  /** So many revocations were missing from Redis and have been put back. */
  readonly onRestored?: (count: number) => void;
  readonly role: 'alone' | 'owner' | 'worker';
  /** Milliseconds that a command may take. */
  readonly commandTimeout?: number | undefined;
  /** The server is not there yet; called once, and we go on waiting for it. */
  readonly onWaiting?: (why: Fault) => Promise<void>;
}

export async function openStore(options: OpenStoreOptions): Promise<OpenedStore> {
  const { log } = options;
  const store = await (options.settings.store.type === 'redis' ? openShared(options) : openOwn(options));
  for (const notice of store.notices) log.warn('store_notice', { notice });
  return store;
}

async function openOwn({ settings, log, now, authenticator, role }: OpenStoreOptions): Promise<OpenedStore> {
  try {
    return await openEmbedded({
      path: settings.store.path,
      mapSize: settings.store.mapSize,
      role,
      now,
      authenticator,
      onFault: (fault) => log.error('store_fault', errorFields(fault)),
    });
  } catch (error) {
    if (error instanceof Fault) throw new StartError([`store.path: ${error.message}`], { cause: error });
    throw error;
  }
}

const TRY_AGAIN_MS = 500;

/** A server that is away is waited for: it comes back by itself. One that is unfit is told to the operator. */
const openShared = (options: OpenStoreOptions): Promise<OpenedStore> =>
  openSharedAsItIs(options, refuseHalfMoved);

/** The server with whatever is in it. */
export async function openSharedAsItIs(
  {
    settings,
    log,
    now,
    authenticator,
    onRestored,
    commandTimeout,
    onWaiting,
  }: Omit<OpenStoreOptions, 'role'>,
  check?: (store: RedisStore) => Promise<void>,
): Promise<RedisStore> {
  // Loaded with the first use: whoever keeps to the embedded store does not pay for it.
  const [{ openRedis }, { RedisUnfit }, { placeInWords }] = await Promise.all([
    import('../stores/redis.ts'),
    import('../stores/redis-checks.ts'),
    import('../stores/redis-url.ts'),
  ]);
  const { url = '', prefix, maxStaleness, durability, replicas, ack } = settings.store;
  const connection = connectionOf(settings);
  const address = placeInWords(url);
  const tellAway = (reason: string, seconds: number): void =>
    log.error('store_away', { address, reason, ...(seconds >= 1 && { for_s: Math.round(seconds) }) });
  const tellBack = (seconds: number): void =>
    log.warn('store_back', { address, away_s: Math.round(seconds * 10) / 10 });
  const beganAt = performance.now();
  for (let tries = 0; ; tries += 1) {
    try {
      const store = await openRedis({
        url,
        prefix,
        connection,
        maxStaleness,
        ack,
        replicas: durability === 'replicated' ? replicas : 0,
        wallTime: now,
        authenticator,
        ...(onRestored !== undefined && { onRestored }),
        ...(commandTimeout !== undefined && { commandTimeout }),
        onAway: tellAway,
        onBack: tellBack,
        onFault: (fault) => log.error('store_fault', errorFields(fault)),
        onAlarm: (what) => log.error('store_alarm', { what }),
      });
      // Within the loop: a server that goes away between two commands is waited for like any other.
      await check?.(store).catch(async (error: unknown) => {
        await store.close();
        throw error;
      });
      if (tries > 0) tellBack((performance.now() - beganAt) / 1_000);
      return store;
    } catch (error) {
      if (error instanceof RedisUnfit)
        throw new StartError(
          error.problems.map((problem) => `store.url: ${problem}`),
          { cause: error },
        );
      if (!(error instanceof Fault) || error.code !== 'store_unavailable') throw error;
      if (tries === 0) {
        tellAway(error.message.replace(/^Redis: /, ''), 0);
        await onWaiting?.(error);
      }
      await pause(TRY_AGAIN_MS);
    }
  }
}

async function refuseHalfMoved({ notes }: OpenedStore): Promise<void> {
  const move = await notes.read(MOVE_NOTE);
  if (move?.record['state'] === 'begun')
    throw new StartError([
      'store.url: a move into this Redis has begun and not ended, so grants are missing; run `gatehouse restore` again until it ends well',
    ]);
}

function connectionOf({ store: { password, tls } }: Settings): IoRedisOptions {
  const read = (setting: string, file: string | undefined): string | undefined => {
    try {
      return file === undefined ? undefined : readFileSync(file, 'utf8');
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new StartError([`store.tls.${setting}: ${file} cannot be read (${code})`], { cause: error });
    }
  };
  return {
    ...(password !== undefined && { password }),
    ...(tls !== undefined && {
      tls: {
        ca: read('ca', tls.ca),
        cert: read('certificate', tls.certificate),
        key: read('key', tls.key),
        ...(tls.serverName !== undefined && { servername: tls.serverName }),
      },
    }),
  };
}
