import type { Epoch } from '../../domain/grant.ts';
import { compareVersions } from '../../lib/compare-versions.ts';
import { ProblemsError } from '../../lib/problems-error.ts';
import { Fault } from '../../ports/fault.ts';
import { MAX_SKEW_SECONDS } from '../../ports/store.ts';
import { defineScript, listPrimaries, type RedisClient, type RedisScript } from './client.ts';

/** The server is reachable but cannot be used; an operator must change its configuration. */
export class UnsuitableRedisError extends ProblemsError {}

/** Throws when a fault at opening will not go away by retrying. */
export function throwIfPermanent(fault: Fault): void {
  const message = fault.cause instanceof Error ? fault.cause.message : '';
  if (/^(?:WRONGPASS|NOAUTH|NOPERM|ERR AUTH)/.test(message))
    throw new UnsuitableRedisError([fault.message.replace('Redis: ', '')]);
}

const SKEW_WARNING_SECONDS = 2;

/** For `ZADD … GT`. */
const MIN_VERSION = '6.2';

/** The id of a record that exists while commands are tried. */
export const CHECK_ID = 'check';

/** A script that tries every command that our scripts use, on separate keys, and returns the denied ones. */
const defineCommandCheck = (calls: string): RedisScript =>
  defineScript(`
local denied = {}
local function try(...)
  local reply = redis.pcall(...)
  local err = type(reply) == 'table' and reply.err or ''
  if string.find(err, 'ermission') or string.find(err, 'NOPERM') or string.find(err, 'executing the script') then
    denied[#denied + 1] = (...)
  end
end
${calls}
return denied`);

const RECORD_COMMANDS = defineCommandCheck(`
try('TIME')
try('SET', KEYS[1], 'x', 'PX', '1000')
try('GET', KEYS[1])
try('MGET', KEYS[1])
try('DEL', KEYS[1])`);

const INDEX_COMMANDS = defineCommandCheck(`
try('ZADD', KEYS[1], '1', 'm')
try('PEXPIRE', KEYS[1], '1000')
try('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
try('ZRANK', KEYS[1], 'm')
try('ZREM', KEYS[1], 'm')
try('ZREMRANGEBYSCORE', KEYS[1], '-inf', '1')`);

const REVOCATION_COMMANDS = defineCommandCheck(`
try('HSET', KEYS[1], 'f', '1')
try('HGET', KEYS[1], 'f')
try('HMGET', KEYS[1], 'f')
try('HGETALL', KEYS[1])
try('HEXISTS', KEYS[1], 'f')
try('HLEN', KEYS[1])
try('HSCAN', KEYS[1], '0')
try('HDEL', KEYS[1], 'f')
try('ZADD', KEYS[2], 'GT', 'CH', '1', 'm')
try('ZRANGEBYSCORE', KEYS[2], '0', '2', 'LIMIT', '0', '1')
try('ZREM', KEYS[2], 'm')
try('XADD', KEYS[3], 'MAXLEN', '~', '1', '*', 'f', '1')
try('DEL', KEYS[1], KEYS[2], KEYS[3])`);

interface RedisCheckOptions {
  readonly client: RedisClient;
  readonly prefix: string;
  /** The clock of this host; clocks are not compared if omitted. */
  readonly wallTime?: (() => number) | undefined;
  readonly replicated: boolean;
}

/** Throws `UnsuitableRedisError` with all problems; returns notices for the log. */
export async function checkRedis(options: RedisCheckOptions): Promise<readonly string[]> {
  const { client, wallTime } = options;
  const denied = await findDeniedCommands(options);
  const problems = denied.map(
    (command) => `the user may not run ${command} on the keys of gatehouse; allow it with ACL SETUSER`,
  );
  const notices: string[] = [];
  if (!denied.includes('INFO')) {
    const info = await client.execute((redis) => redis.info());
    const getInfo: InfoLookup = (name) => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1];
    problems.push(...findServerProblems(getInfo));
    notices.push(...findKnownVulnerabilities(readRedisVersion(getInfo)));
  }
  const skew = wallTime === undefined ? 0 : Math.abs(wallTime() - client.storeTime());
  if (skew > MAX_SKEW_SECONDS)
    problems.push(`the clocks of Redis and this host differ by ${Math.round(skew)} s; synchronize them`);
  else if (skew > SKEW_WARNING_SECONDS)
    notices.push(`the clocks of Redis and this host differ by ${skew.toFixed(1)} s`);
  if (problems.length > 0) throw new UnsuitableRedisError(problems);
  return notices;
}

type InfoLookup = (name: string) => string | undefined;

function findServerProblems(getInfo: InfoLookup): readonly string[] {
  const problems: string[] = [];
  const version = getInfo('redis_version') ?? '0';
  if (compareVersions(version, MIN_VERSION) < 0)
    problems.push(`it is version ${version}; ${MIN_VERSION} or later is required`);
  const policy = getInfo('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction')
    problems.push(
      `its maxmemory-policy is ${policy}, so grants and revocations could be evicted; set it to noeviction`,
    );
  return problems;
}

/** The commands that the ACL denies. */
async function findDeniedCommands({ client, prefix, replicated }: RedisCheckOptions): Promise<readonly string[]> {
  const key = `{${prefix}}:check`;
  const checks: readonly (readonly [string, () => Promise<unknown>])[] = [
    ['EVALSHA', () => client.runScript(RECORD_COMMANDS, [`${prefix}:{${CHECK_ID}}:g`], [])],
    ['EVALSHA', () => client.runScript(INDEX_COMMANDS, [`${prefix}:{${CHECK_ID}}:h`], [])],
    ['EVALSHA', () => client.runScript(REVOCATION_COMMANDS, [`${key}:h`, `${key}:z`, `${key}:x`], [])],
    ['XREAD', () => client.execute((redis) => redis.xread('COUNT', 1, 'STREAMS', `{${prefix}}:revs`, '0-0'))],
    ['ZSCAN', () => client.execute((redis) => redis.zscan(`{${prefix}}:rev`, '0', 'COUNT', 1))],
    ['HSCAN', () => client.execute((redis) => redis.hscan(`{${prefix}}:lim`, '0', 'COUNT', 1))],
    ['HEXISTS', () => client.execute((redis) => redis.hexists(`{${prefix}}:head`, 'used'))],
    ['SCAN', () => client.execute((redis) => (listPrimaries(redis)[0] ?? redis).scan('0', 'COUNT', 1))],
    ['PING', () => client.execute((redis) => redis.ping())],
    ['INFO', () => client.execute((redis) => redis.info())],
    ...(replicated ? ([['WAIT', () => client.execute((redis) => redis.wait(0, 1))]] as const) : []),
  ];
  const denied = new Set<string>();
  for (const [name, check] of checks) {
    try {
      const result = await check();
      if (name === 'EVALSHA') for (const command of result as readonly string[]) denied.add(command);
    } catch (error) {
      const message = error instanceof Fault && error.cause instanceof Error ? error.cause.message : '';
      if (!message.startsWith('NOPERM')) throw error;
      // A script that is not cached is sent with EVAL, which may be the denied command.
      denied.add(/'([a-z]+)' command/.exec(message)?.[1]?.toUpperCase() ?? name);
    }
  }
  return [...denied];
}

export interface RedisVersion {
  readonly server: 'Redis' | 'Valkey';
  readonly version: string;
}

/** Valkey also reports the version of the Redis it is compatible with. */
export function readRedisVersion(getInfo: InfoLookup): RedisVersion {
  const valkey = getInfo('valkey_version');
  return valkey === undefined
    ? { server: 'Redis', version: getInfo('redis_version') ?? '0' }
    : { server: 'Valkey', version: valkey };
}

interface Vulnerability {
  readonly cves: string;
  readonly impact: string;
  /** The first fixed release of each branch. */
  readonly fixedIn: Readonly<Record<RedisVersion['server'], readonly string[]>>;
}

/**
 * From the advisories of Redis and the release notes of Valkey. The advisory of 5 May 2026 lists all releases as affected, the
 * CVE record only those from 7.2: we follow the advisory.
 */
const VULNERABILITIES: readonly Vulnerability[] = [
  {
    cves: 'CVE-2025-49844, CVE-2025-46817 and CVE-2025-46818',
    impact: 'a user that may run scripts can take over the server',
    fixedIn: {
      Redis: ['6.2.20', '7.2.11', '7.4.6', '8.0.4', '8.2.2'],
      Valkey: ['7.2.11', '8.0.6', '8.1.4'],
    },
  },
  {
    cves: 'CVE-2026-23479',
    impact: 'a user that may run blocking commands can take over the server',
    fixedIn: {
      Redis: ['6.2.22', '7.2.14', '7.4.9', '8.2.6', '8.4.3', '8.6.3'],
      Valkey: ['7.2.13', '8.0.8', '8.1.7', '9.0.4'],
    },
  },
];

/** One line for each known vulnerability. Only warnings: distributions backport fixes without changing the version. */
export function findKnownVulnerabilities({ server, version }: RedisVersion): readonly string[] {
  return VULNERABILITIES.filter(({ fixedIn }) => !isFixed(version, fixedIn[server])).map(
    ({ cves, impact, fixedIn }) =>
      `${server} ${version} has ${cves} (${impact}), unless your distribution has backported the fix; it is fixed in ${fixedIn[server].find((fix) => compareVersions(fix, version) > 0)}`,
  );
}

function isFixed(version: string, fixedIn: readonly string[]): boolean {
  const sameBranch = fixedIn.find((one) => getBranch(one) === getBranch(version));
  if (sameBranch !== undefined) return compareVersions(version, sameBranch) >= 0;
  // Later branches contain the fix; earlier branches without a fixed release are no longer maintained.
  return compareVersions(version, fixedIn.at(-1) ?? '') > 0;
}

const getBranch = (version: string): string => version.split('.').slice(0, 2).join('.');

const CHECK_INTERVAL_MS = 1_000;

/**
 * Compares the clock of this host with the server's. Tokens contain local times and are judged by the server's: while the
 * clocks differ too much, none are issued. Existing tokens are still accepted.
 */
export function createClockGuard(
  localTime: (() => Epoch) | undefined,
  serverTime: () => Epoch,
  report?: (message: string) => void,
) {
  if (localTime === undefined) return { findProblem: () => undefined, requireAgreement: () => {}, stop: () => {} };
  const readSkew = (): number => Math.abs(localTime() - serverTime());
  let reported: 'agree' | 'differ' | 'refused' = 'agree';
  const check = (): void => {
    const skew = readSkew();
    const state = skew > MAX_SKEW_SECONDS ? 'refused' : skew > SKEW_WARNING_SECONDS ? 'differ' : 'agree';
    if (state === reported) return;
    reported = state;
    if (state === 'agree') return report?.('the clocks of Redis and this host agree again');
    const consequence = state === 'refused' ? '; no tokens are issued' : '';
    report?.(`the clocks of Redis and this host differ by ${skew.toFixed(1)} s${consequence}`);
  };
  const timer = setInterval(check, CHECK_INTERVAL_MS).unref();
  const findProblem = (): string | undefined => {
    const skew = readSkew();
    return skew > MAX_SKEW_SECONDS ? `the clocks of Redis and this host differ by ${Math.round(skew)} s` : undefined;
  };
  return {
    /** Returns undefined while the clocks agree. */
    findProblem,
    /** Throws when the clocks differ too much. */
    requireAgreement(): void {
      const problem = findProblem();
      if (problem !== undefined) throw new Fault('store_unavailable', problem);
    },
    stop: () => clearInterval(timer),
  };
}

export type ClockGuard = ReturnType<typeof createClockGuard>;
