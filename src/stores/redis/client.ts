import { hash } from 'node:crypto';
import { Cluster, Command, type RedisOptions as IoRedisOptions, Redis } from 'ioredis';
import type { Epoch } from '../../domain/grant.ts';
import { withTimeout } from '../../lib/promises.ts';
import { Fault } from '../../ports/fault.ts';
import { createBatcher } from './batch.ts';
import { limitReplies } from './reply-limits.ts';
import { parseRedisUrl } from './url.ts';

/** A Lua script, executed atomically by the server. Scripts know nothing of OAuth. */
export interface RedisScript {
  readonly lua: string;
  readonly sha: string;
  /** Executing it twice has the effect of executing it once. */
  readonly isIdempotent: boolean;
}

export const defineScript = (lua: string, { isIdempotent = true } = {}): RedisScript => ({
  lua,
  sha: hash('sha1', lua),
  isIdempotent,
});

interface RedisClientOptions {
  readonly url: string;
  /** Milliseconds after which a command fails. */
  readonly commandTimeout: number;
  /** Shown by CLIENT LIST. */
  readonly name: string;
  /** Further settings of the connection: password, TLS. */
  readonly connection?: IoRedisOptions | undefined;
  /** Replaces the server's clock. */
  readonly clock?: (() => Epoch) | undefined;
  /** Shared by the connections to one server; omitted: of this connection only. */
  readonly health?: ServerHealth;
  /** Always wait for `commandTimeout`: this connection finds out that the server responds again. */
  readonly isProbe?: boolean;
}

interface ServerHealth {
  /** A command has timed out, and there was no reply since. */
  isUnresponsive: boolean;
}

/** A connection whose errors are `Fault`s. */
export type RedisClient = Awaited<ReturnType<typeof connectRedis>>;

/** Redis may pause for some hundred milliseconds: it forks, fails over, or shares its CPU with pods that start. */
export const COMMAND_TIMEOUT_MS = 1_000;

/** For commands to a server that has just not responded: a request that needs several of them must not wait for each. */
const UNRESPONSIVE_TIMEOUT_MS = 100;

/** Throws a `Fault` when the server is unreachable or rejects the connection. */
export async function connectRedis(options: RedisClientOptions) {
  const { commandTimeout, clock, health = { isUnresponsive: false }, isProbe = false } = options;
  limitReplies();
  const redis = withFairTimeouts(createIoRedis(options), health, isProbe);
  const recordReply = <T>(reply: T): T => {
    health.isUnresponsive = false;
    return reply;
  };
  /** Server time minus the monotonic clock, which a step of the local clock does not affect. */
  let offset = Date.now() - performance.now();
  const recordServerTime = (milliseconds: number): void => {
    offset = milliseconds - performance.now();
  };

  let lastError: Error | undefined;
  redis.on('error', (error: Error) => {
    lastError = error;
  });

  // ioredis stops reconnecting for good when a failover is announced while it connects.
  let shouldReconnect = false;
  let disconnects = 0;
  /** When the connection was lost. */
  let lostAt = Number.NEGATIVE_INFINITY;
  redis.on('ready', () => {
    disconnects = 0;
    lostAt = Number.NEGATIVE_INFINITY;
  });
  redis.on('close', () => {
    if (lostAt === Number.NEGATIVE_INFINITY) lostAt = performance.now();
  });
  redis.on('end', () => {
    disconnects += 1;
    const connectAgain = (): void => void (shouldReconnect && redis.connect().catch(() => {}));
    if (shouldReconnect) setTimeout(connectAgain, getReconnectDelay(disconnects)).unref();
  });

  /** Resolves when ioredis has reconnected. */
  let reconnected: Promise<unknown> | undefined;
  const reconnect = (timeout: number): Promise<unknown> => {
    // Without `once` of node:events, which rejects at the first failed attempt to connect.
    reconnected ??= new Promise<void>((resolve, reject) => {
      const onReady = (): void => {
        clearTimeout(timer);
        resolve();
      };
      const timer = setTimeout(() => {
        redis.off('ready', onReady);
        reject(new Error('connection closed, and no new one in time'));
      }, timeout);
      redis.once('ready', onReady);
    }).finally(() => {
      reconnected = undefined;
    });
    return reconnected;
  };

  /** One promise and one handler per command: there are tens of thousands per second. */
  const recover = async <T>(
    error: unknown,
    isIdempotent: boolean,
    retry: () => Promise<T>,
    retryWithSource?: () => Promise<T>,
  ): Promise<T> => {
    try {
      // The server was restarted or failed over. EVAL also caches the script.
      if (retryWithSource !== undefined && hasErrorPrefix(error, 'NOSCRIPT')) return await retryWithSource();
      // A demoted server: ioredis reconnects after it has reported the error, and finds the successor, which has not
      // cached the scripts. Commands that are sent meanwhile fail with another error, and wait as well.
      if (hasErrorPrefix(error, 'READONLY')) await reconnect(commandTimeout);
      else if (reconnected !== undefined && redis.status !== 'ready' && mayRepeat(error, isIdempotent))
        await reconnected;
      // It was not sent, because the connection was just lost.
      else if (shouldReconnect && hasErrorPrefix(error, NOT_WRITABLE) && performance.now() - lostAt < RECONNECT_MS)
        await reconnect(RECONNECT_MS);
      else throw error;
      return await (retryWithSource ?? retry)();
    } catch (retryError) {
      throw toRedisFault(retryError);
    }
  };
  const runScript = (
    { sha, lua, isIdempotent }: RedisScript,
    keys: readonly string[],
    args: readonly (string | number)[],
  ): Promise<unknown> => {
    const evalSha = (): Promise<unknown> =>
      keys.length > 1
        ? sendUnpipelined(redis, 'evalsha', [sha, String(keys.length), ...keys, ...args])
        : redis.evalsha(sha, keys.length, ...keys, ...args);
    return evalSha().then(recordReply, (error: unknown) =>
      recover(error, isIdempotent, evalSha, () => redis.eval(lua, keys.length, ...keys, ...args)),
    );
  };

  try {
    await withTimeout(redis.connect(), CONNECT_TIMEOUT_MS, () => {
      throw new Error('connecting timed out');
    });
    const [seconds, micros] = await redis.time();
    recordServerTime(Number(seconds) * 1_000 + Number(micros) / 1_000);
    shouldReconnect = true;
  } catch (error) {
    redis.disconnect();
    throw toRedisFault(lastError ?? error);
  }
  return {
    redis,
    /** In a cluster, a script can access the keys of one slot only. */
    isCluster: redis instanceof Cluster,
    runScript,
    /** The command must be idempotent: it may be sent again. */
    execute: <T>(command: (redis: Redis) => Promise<T>): Promise<T> =>
      command(redis).then(recordReply, (error: unknown) => recover(error, true, () => command(redis))),
    /** The time argument of scripts; empty: the server's clock. */
    timeArgument: (): string => (clock === undefined ? '' : String(Math.round(clock() * 1_000))),
    /** Called with the server time of a reply. */
    recordServerTime,
    /** The server's clock, estimated from the last reply. */
    storeTime: (): Epoch => clock?.() ?? (performance.now() + offset) / 1_000,
    close(): void {
      shouldReconnect = false;
      redis.disconnect();
    },
  };
}

/** How long commands wait for a new connection after one was lost. During a longer outage they fail at once. */
const RECONNECT_MS = 500;
const NOT_WRITABLE = "Stream isn't writeable";

/** Other errors, such as a timeout or a lost connection, do not say whether the server has executed the command. */
export const mayRepeat = (error: unknown, isIdempotent: boolean): boolean =>
  isIdempotent || hasErrorPrefix(error, NOT_WRITABLE);

/** Lists the server, or the primaries of a cluster in a stable order. SCAN works on one of them, not on a cluster. */
export function listPrimaries(redis: Redis): readonly Redis[] {
  if (!redis.isCluster) return [redis];
  const formatAddress = ({ options: { host = '', port = 0 } }: Redis): string => `${host}:${port}`;
  return (redis as unknown as Cluster)
    .nodes('master')
    .toSorted((a, b) => (formatAddress(a) < formatAddress(b) ? -1 : 1));
}

/**
 * After an event-loop stall (garbage collection, CPU throttling), timers fire before replies are read that arrived in time.
 * Rejecting in the check phase instead of the timers phase reads the socket first.
 */
function withFairTimeouts(redis: Redis, health: ServerHealth, isProbe: boolean): Redis {
  const send = redis.sendCommand.bind(redis);
  function setFairTimeout(this: TimedCommand, ms: number): void {
    const rejectOnTimeout = (): void => {
      if (this.isSettled) return;
      health.isUnresponsive = true;
      this.reject(new Error('Command timed out'));
    };
    const timeout = health.isUnresponsive && !isProbe ? Math.min(ms, UNRESPONSIVE_TIMEOUT_MS) : ms;
    this._commandTimeoutTimer ??= setTimeout(() => setImmediate(rejectOnTimeout), timeout);
  }
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

/**
 * Sends a command outside ioredis' pipelines. V8 retains pipelines and commands, with their arguments, until a full garbage
 * collection (their function properties refer back to them), and every minor collection copies them; so a settled command is
 * emptied. A failed command may still be in ioredis' queue and is left alone.
 */
async function sendUnpipelined(redis: Redis, name: string, args: readonly (string | number)[]): Promise<unknown> {
  const command = new Command(name, [...args], { replyEncoding: 'utf8' });
  const value = await (redis.sendCommand(command) as Promise<unknown>);
  command.args = [];
  command.resolve = command.reject = noop;
  command.promise = RESOLVED;
  return value;
}

const noop = (): void => {};
const RESOLVED: Promise<unknown> = Promise.resolve();

/** ioredis tries Sentinels and cluster nodes in turn, without end. */
const CONNECT_TIMEOUT_MS = 5_000;

function createIoRedis({ url, name: connectionName, commandTimeout, connection }: RedisClientOptions): Redis {
  const address = parseRedisUrl(url);
  if (address === undefined) throw new Fault('store_unavailable', 'Redis: unsupported URL format');
  const { kind, hosts, tls, username, password, database, name } = address;
  const settings: IoRedisOptions = {
    connectionName,
    // The ACL allows CLIENT SETNAME only.
    disableClientInfo: true,
    enableAutoPipelining: true,
    // Commands fail at once while the server is unreachable, instead of piling up.
    enableOfflineQueue: false,
    commandTimeout,
    connectTimeout: 2_000,
    // Disconnects from a server that has stopped responding, so that commands sent to it do not pile up.
    socketTimeout: commandTimeout * 4,
    // Commands whose reply was lost are sent again once. Those that are not idempotent count requests for limits, where a second
    // count is harmless (limits.ts).
    maxRetriesPerRequest: 1,
    reconnectOnError: (error) => hasErrorPrefix(error, 'READONLY'),
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    ...(tls && { tls: {} }),
    db: database,
    ...connection,
  };
  const replyMapping = 'legacy';
  if (kind === 'cluster')
    return new Cluster([...hosts], {
      lazyConnect: true,
      enableAutoPipelining: settings.enableAutoPipelining === true,
      enableOfflineQueue: false,
      clusterRetryStrategy: getReconnectDelay,
      slotsRefreshTimeout: 2_000,
      redisOptions: { ...settings, replyMapping },
    }) as unknown as Redis;
  const server: IoRedisOptions = { lazyConnect: true, retryStrategy: getReconnectDelay, ...settings };
  if (kind === 'single') return new Redis({ ...server, replyMapping, ...hosts[0] });
  return new Redis({
    ...server,
    replyMapping,
    sentinels: [...hosts],
    ...(name !== undefined && { name }),
    sentinelCommandTimeout: commandTimeout * 2,
    sentinelRetryStrategy: getReconnectDelay,
    // Notices a failover before the old primary replies READONLY.
    failoverDetector: true,
    ...(tls && { enableTLSForSentinelMode: true, sentinelTLS: settings.tls }),
  });
}

const RECONNECT_DELAY_MS = { initial: 20, max: 1_000 };

const getReconnectDelay = (times: number): number =>
  Math.min(RECONNECT_DELAY_MS.initial * 2 ** Math.min(times - 1, 10), RECONNECT_DELAY_MS.max);

const hasErrorPrefix = (error: unknown, prefix: string): boolean =>
  error instanceof Error && error.message.startsWith(prefix);

/** Only the message is kept: ioredis errors contain the arguments of the command, and those of AUTH are secrets. */
export function toRedisFault(error: unknown): Fault {
  if (error instanceof Fault) return error;
  const message = error instanceof Error ? error.message : 'unknown error';
  const cause = new Error(message);
  if (message.startsWith('OOM')) return new Fault('store_full', 'Redis has no memory left', { cause });
  const reason = REASONS.find(([pattern]) => pattern.test(message))?.[1] ?? message.slice(0, 200);
  return new Fault('store_unavailable', `Redis: ${reason}`, { cause });
}

const REASONS: readonly (readonly [RegExp, string])[] = [
  [/^LOADING/, 'it is still loading its data'],
  [/^MASTERDOWN/, 'its primary is down'],
  [/^NOREPLICAS/, 'it has too few replicas to write'],
  [/^READONLY/, 'it is a read-only replica'],
  [/^(?:CLUSTERDOWN|TRYAGAIN)/, 'the cluster is incomplete'],
  [/^BUSY/, 'it is busy with a script'],
  [/^MISCONF/, 'it cannot save to its disk and rejects writes'],
  [/^(?:WRONGPASS|NOAUTH|ERR AUTH)/, 'it rejected the user name or password'],
  [/^NOPERM/, 'the Redis user lacks permission for this command'],
  [/timed out|timeout|ETIMEDOUT/i, 'it did not respond in time'],
  [/ECONNREFUSED/, 'connection refused'],
  [/ENOTFOUND|EAI_AGAIN/, 'its host name cannot be resolved'],
  [/EHOSTUNREACH|ENETUNREACH/, 'the host or network is unreachable'],
  [/writeable|closed|aborted|ECONNRESET|EPIPE|max retries/i, 'the connection is down'],
];

/** Begins a script: milliseconds of the server's clock, unless the caller passes a time (as tests do). */
export const LUA_TIME = `
local function time(override)
  if override ~= '' then return tonumber(override) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
`;

const MAX_PENDING = 10_000;

/**
 * Runs scripts that write, and resolves when enough replicas have acknowledged the writes (WAIT). Scripts that arrive while
 * one batch waits form the next batch, so that they share one WAIT.
 *
 * An unconfirmed write has happened and may still be lost: it is a fault, and a retry finds its own version in place, or a
 * record that leads to the same decision.
 *
 * `client`: a connection of its own, since WAIT blocks the commands behind it. `timeout`: milliseconds to wait for replicas.
 */
export function createReplicatedClient(client: RedisClient, replicas: number, timeout: number): RedisClient {
  let pending = 0;
  let disconnects = 0;
  client.redis.on('close', () => {
    disconnects += 1;
  });

  const confirm = async (disconnectsBefore: number): Promise<void> => {
    const acknowledged = await client.execute((redis) => redis.wait(replicas, timeout));
    if (acknowledged < replicas)
      throw new Fault('store_unavailable', `Redis: ${acknowledged} of ${replicas} replicas hold the write`);
    // ioredis sends WAIT again after a reconnect, perhaps to another server.
    if (disconnects !== disconnectsBefore)
      throw new Fault('store_unavailable', 'Redis: the connection broke before the write was confirmed');
  };
  const runConfirmed = createBatcher(MAX_PENDING, async (writes: readonly (() => Promise<unknown>)[]) => {
    const disconnectsBefore = disconnects;
    const outcomes = await Promise.allSettled(writes.map((write) => write()));
    const [confirmation] = await Promise.allSettled([confirm(disconnectsBefore)]);
    return outcomes.map((outcome) =>
      outcome.status === 'fulfilled' && confirmation.status === 'rejected' ? confirmation : outcome,
    );
  });
  return {
    ...client,
    async runScript(script, keys, args) {
      if (pending >= MAX_PENDING) throw new Fault('overloaded', 'too many writes are waiting for confirmation');
      pending += 1;
      const outcome = await runConfirmed(() => client.runScript(script, keys, args));
      pending -= 1;
      if (outcome.status === 'rejected') throw outcome.reason;
      return outcome.value;
    },
  };
}
