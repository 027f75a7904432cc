import { hash } from 'node:crypto';
import { once } from 'node:events';
import { Cluster, Command, type RedisOptions as IoRedisOptions, Redis } from 'ioredis';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { parseRedisUrl } from './redis-url.ts';

/** A few lines that run in one step on the server. They know nothing of OAuth, so they hardly ever change. */
export interface RedisScript {
  readonly lua: string;
  readonly sha: string;
}

export const redisScript = (lua: string): RedisScript => ({ lua, sha: hash('sha1', lua) });

export interface RedisClientOptions {
  readonly url: string;
  /** Milliseconds within which every command is answered, or given up. */
  readonly commandTimeout: number;
  /** What this connection is for: shown by CLIENT LIST. */
  readonly name: string;
  /** Further settings of the connection: password, TLS. */
  readonly connection?: IoRedisOptions | undefined;
  /** Judges windows and leases in place of the server's own clock. */
  readonly clock?: (() => Epoch) | undefined;
}

/** One connection to the server that says what went wrong in our words. */
export interface RedisClient {
  readonly redis: Redis;
  /** One script can touch the records of one slot only. */
  readonly isCluster: boolean;
  run(script: RedisScript, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown>;
  ask<T>(command: (redis: Redis) => Promise<T>): Promise<T>;
  /** What scripts take as the present time: empty lets them ask the server. */
  timeArgument(): string;
  /** An answer brought the server's clock along. */
  sawTime(milliseconds: number): void;
  /** The server's clock, as near as the last answer tells. */
  storeTime(): Epoch;
  close(): void;
}

export const COMMAND_TIMEOUT_MS = 250;

/** Opens the connection; throws a `Fault` when the server cannot be reached or does not let us in. */
export async function connectRedis(options: RedisClientOptions): Promise<RedisClient> {
  const { commandTimeout, clock } = options;
  const redis = withFairTimeouts(clientFor(options));
  /** Server time minus our monotonic clock: a step of our own wall clock moves nothing. */
  let offset = Date.now() - performance.now();
  const storeTime = (): Epoch => clock?.() ?? (performance.now() + offset) / 1_000;

  let lastError: Error | undefined;
  redis.on('error', (error: Error) => {
    lastError = error;
  });

  // ioredis gives up for good when a failover is told while it connects; whoever follows Redis must not.
  let wanted = false;
  let endings = 0;
  redis.on('ready', () => {
    endings = 0;
  });
  redis.on('end', () => {
    endings += 1;
    const again = (): void => void (wanted && redis.connect().catch(() => {}));
    if (wanted) setTimeout(again, backOff(endings)).unref();
  });

  /** Each command is one promise and one handler: a process makes tens of thousands of them in a second. */
  const recover = async <T>(
    error: unknown,
    again: () => Promise<T>,
    script?: () => Promise<T>,
  ): Promise<T> => {
    try {
      // The server was restarted, failed over or told to forget its scripts. EVAL also makes it remember.
      if (script !== undefined && says(error, 'NOSCRIPT')) return await script();
      // A demoted server: the connection is made anew, which finds its successor, and our scripts bear a second time.
      // The successor has never seen them.
      if (!says(error, 'READONLY')) throw error;
      await isReady(redis, commandTimeout);
      return await (script ?? again)();
    } catch (last) {
      throw redisFault(last);
    }
  };
  const run: RedisClient['run'] = ({ sha, lua }, keys, args) => {
    const evaluate = (): Promise<unknown> =>
      keys.length > 1
        ? sendAlone(redis, ['evalsha', sha, String(keys.length), ...keys, ...args])
        : redis.evalsha(sha, keys.length, ...keys, ...args);
    return evaluate().catch((error: unknown) =>
      recover(error, evaluate, () => redis.eval(lua, keys.length, ...keys, ...args)),
    );
  };
  const ask: RedisClient['ask'] = (command) =>
    command(redis).catch((error: unknown) => recover(error, () => command(redis)));

  try {
    await within(CONNECT_MS, redis.connect());
    const [seconds, micros] = await redis.time();
    offset = Number(seconds) * 1_000 + Number(micros) / 1_000 - performance.now();
    wanted = true;
  } catch (error) {
    redis.disconnect();
    throw redisFault(lastError ?? error);
  }
  return {
    redis,
    isCluster: redis instanceof Cluster,
    run,
    ask,
    timeArgument: () => (clock === undefined ? '' : String(Math.round(clock() * 1_000))),
    sawTime(milliseconds) {
      offset = milliseconds - performance.now();
    },
    storeTime,
    close() {
      wanted = false;
      redis.disconnect();
    },
  };
}

/**
 * After a stall of the event loop (garbage collection, CPU throttling) timers fire before replies are read that arrived in
 * time. Rejecting in the check phase instead of the timers phase reads the socket first.
 */
function withFairTimeouts(redis: Redis): Redis {
  const send = redis.sendCommand.bind(redis);
  redis.sendCommand = (command, ...rest) => {
    (command as unknown as TimedCommand).setTimeout = setFairTimeout;
    return send(command, ...rest);
  };
  return redis;
}

/** ioredis clears this timer when the command is settled. */
interface TimedCommand extends Pick<Command, 'isSettled' | 'reject' | 'setTimeout'> {
  _commandTimeoutTimer?: NodeJS.Timeout;
}

function setFairTimeout(this: TimedCommand, ms: number): void {
  const giveUp = (): void => {
    if (!this.isSettled) this.reject(new Error('Command timed out'));
  };
  this._commandTimeoutTimer ??= setTimeout(() => setImmediate(giveUp), ms);
}

const AS_TEXT = { replyEncoding: 'utf8' } as const;

/**
 * Sends a command outside ioredis' pipelines, which a batch of ours does not need. V8 keeps pipelines and commands,
 * with all they carry, until a full garbage collection (they are assigned functions that point back to them), and each
 * small collection copies them. What was answered is of no use to ioredis, so it lets go of it. A
 * command that failed may still wait in its queue.
 */
function sendAlone(redis: Redis, [name = '', ...args]: readonly (string | number)[]): Promise<unknown> {
  const command = new Command(String(name), args, AS_TEXT);
  const answer = redis.sendCommand(command) as Promise<unknown>;
  return answer.then((value) => {
    command.args = [];
    command.resolve = command.reject = letGo;
    command.promise = NOTHING;
    return value;
  });
}

const letGo = (): void => {};
const NOTHING: Promise<unknown> = Promise.resolve();

/** Sentinels and clusters are asked in turn, without end: opening has one. */
const CONNECT_MS = 5_000;

/** One server, one that Sentinels name, or a cluster: all are asked in the same words. */
function clientFor(options: RedisClientOptions): Redis {
  const place = parseRedisUrl(options.url);
  if (place === undefined) throw new Fault('store_unavailable', 'Redis: its URL has no form we know');
  const { kind, hosts, tls, username, password, database, name } = place;
  const [first = { host: '127.0.0.1', port: 6_379 }] = hosts;
  const settings = {
    ...(settingsOf(options) as object),
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    ...(tls && { tls: {} }),
    db: database,
    ...(options.connection as object),
    replyMapping: 'legacy',
  } as const;
  if (kind === 'cluster') {
    const { lazyConnect: _, retryStrategy: __, ...ofNodes } = settings as IoRedisOptions & typeof settings;
    return new Cluster([...hosts], {
      lazyConnect: true,
      enableAutoPipelining: ofNodes.enableAutoPipelining === true,
      enableOfflineQueue: false,
      clusterRetryStrategy: backOff,
      slotsRefreshTimeout: 2_000,
      redisOptions: ofNodes,
    }) as unknown as Redis;
  }
  if (kind === 'single') return new Redis({ ...settings, ...first });
  return new Redis({
    ...settings,
    sentinels: [...hosts],
    ...(name !== undefined && { name }),
    sentinelCommandTimeout: options.commandTimeout * 2,
    sentinelRetryStrategy: backOff,
    // A failover is heard of before the old primary says READONLY.
    failoverDetector: true,
    ...(tls && { enableTLSForSentinelMode: true, sentinelTLS: settings.tls }),
  });
}

async function within<T>(limitMs: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error('connecting timed out')), limitMs);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

const RECONNECT_MS = { first: 20, most: 1_000 };

const backOff = (times: number): number =>
  Math.min(RECONNECT_MS.first * 2 ** Math.min(times - 1, 10), RECONNECT_MS.most);

const settingsOf = ({ commandTimeout, name }: RedisClientOptions): IoRedisOptions => ({
  lazyConnect: true,
  connectionName: name,
  // Our user may tell its name and nothing else by CLIENT.
  disableClientInfo: true,
  enableAutoPipelining: true,
  // What cannot be sent now fails now: nothing piles up while the server is away.
  enableOfflineQueue: false,
  commandTimeout,
  connectTimeout: 2_000,
  // A server that has stopped answering is left, so that what was sent to it does not pile up either.
  socketTimeout: commandTimeout * 4,
  // Commands whose answer was lost are sent again once: all of ours bear it.
  maxRetriesPerRequest: 1,
  retryStrategy: backOff,
  reconnectOnError: (error) => says(error, 'READONLY'),
});

async function isReady(redis: Redis, withinMs: number): Promise<void> {
  // The reconnection begins after the refusal was told.
  await once(redis, 'ready', { signal: AbortSignal.timeout(withinMs) });
}

const says = (error: unknown, word: string): boolean =>
  error instanceof Error && error.message.startsWith(word);

/**
 * Never "not there", whatever the server says. The error itself stays behind: it carries the command's
 * arguments, and those of AUTH are secrets.
 */
export function redisFault(error: unknown): Fault {
  if (error instanceof Fault) return error;
  const message = error instanceof Error ? error.message : 'unknown error';
  const cause = new Error(message);
  if (message.startsWith('OOM')) return new Fault('store_full', 'Redis has no memory left', { cause });
  return new Fault('store_unavailable', `Redis: ${reasonOf(message)}`, { cause });
}

const REASONS: readonly (readonly [RegExp, string])[] = [
  [/^LOADING/, 'it is still loading its data'],
  [/^MASTERDOWN/, 'its primary is down'],
  [/^NOREPLICAS/, 'it has too few replicas to write'],
  [/^READONLY/, 'it is a read-only replica'],
  [/^(?:CLUSTERDOWN|TRYAGAIN)/, 'the cluster is not complete'],
  [/^BUSY/, 'it is busy with a script'],
  [/^MISCONF/, 'it cannot save to its disk and refuses writes'],
  [/^(?:WRONGPASS|NOAUTH|ERR AUTH)/, 'it does not accept our name or password'],
  [/^NOPERM/, 'our user may not do this'],
  [/timed out|timeout|ETIMEDOUT/i, 'it does not answer in time'],
  [/ECONNREFUSED/, 'nobody listens there'],
  [/ENOTFOUND|EAI_AGAIN/, 'its name is not known'],
  [/EHOSTUNREACH|ENETUNREACH/, 'there is no way to it in the network'],
  [/writeable|closed|aborted|ECONNRESET|EPIPE|max retries/i, 'the connection is down'],
];

const reasonOf = (message: string): string =>
  REASONS.find(([pattern]) => pattern.test(message))?.[1] ?? message.slice(0, 200);
