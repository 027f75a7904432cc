import type { Cluster, Redis } from 'ioredis';
import { Fault } from '../ports/fault.ts';
import { type RedisClient, redisScript } from './redis-client.ts';
import { knownHoles, redisVersion } from './redis-versions.ts';

/** The server is there, but not one that gatehouse can rely on: waiting does not help, an operator does. */
export class RedisUnfit extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('; '));
    this.name = 'RedisUnfit';
    this.problems = problems;
  }
}

/** Throws when a fault at opening is of a kind that waiting does not mend. */
export function refuseToWait(fault: Fault): void {
  const said = fault.cause instanceof Error ? fault.cause.message : '';
  if (/^(?:WRONGPASS|NOAUTH|NOPERM|ERR AUTH)/.test(said))
    throw new RedisUnfit([fault.message.replace('Redis: ', '')]);
}

/** Seconds by which clocks may differ before it is said, and before nothing is issued any more. */
export const SKEW_SAID = 2;
export const SKEW_REFUSED = 30;

/** `ZADD … GT` came with 6.2. */
const OLDEST = [6, 2] as const;

/** The record that trying commands leaves for a moment. */
export const CHECK_ID = 'check';

/** Tries every command our scripts use on keys of its own, and tells which were refused. Leaves nothing behind. */
const tried = (calls: string): string => `
local refused = {}
local function try(...)
  local answer = redis.pcall(...)
  local why = type(answer) == 'table' and answer.err or ''
  if string.find(why, 'ermission') or string.find(why, 'NOPERM') or string.find(why, 'executing the script') then
    refused[#refused + 1] = (...)
  end
end
${calls}
return refused`;

const RECORD_COMMANDS = redisScript(
  tried(`
try('TIME')
try('SET', KEYS[1], 'x', 'PX', '1000')
try('GET', KEYS[1])
try('MGET', KEYS[1])
try('DEL', KEYS[1])`),
);

const INDEX_COMMANDS = redisScript(
  tried(`
try('ZADD', KEYS[1], '1', 'm')
try('PEXPIRE', KEYS[1], '1000')
try('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
try('ZRANK', KEYS[1], 'm')
try('ZREM', KEYS[1], 'm')
try('ZREMRANGEBYSCORE', KEYS[1], '-inf', '1')`),
);

const REVOCATION_COMMANDS = redisScript(
  tried(`
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
try('DEL', KEYS[1], KEYS[2], KEYS[3])`),
);

export interface CheckOptions {
  readonly client: RedisClient;
  readonly prefix: string;
  /** Seconds our own clock shows; left out where clocks are not compared. */
  readonly wallTime?: (() => number) | undefined;
  readonly replicated: boolean;
}

/** Throws `RedisUnfit` with every problem found; gives what is worth a line in the log. */
export async function checkRedis(options: CheckOptions): Promise<readonly string[]> {
  const { client, wallTime } = options;
  const refused = await refusedCommands(options);
  const problems = refused.map(
    (command) => `the user may not run ${command} on our keys; allow it by ACL SETUSER`,
  );
  const notices: string[] = [];
  if (!refused.includes('INFO')) {
    const fact = await factsOf(client);
    problems.push(...unfitServer(fact));
    notices.push(...knownHoles(redisVersion(fact)));
  }
  const skew = wallTime === undefined ? 0 : Math.abs(wallTime() - client.storeTime());
  if (skew > SKEW_REFUSED)
    problems.push(`its clock and ours differ by ${Math.round(skew)} s; set the clocks of both machines`);
  else if (skew > SKEW_SAID) notices.push(`the clock of Redis and ours differ by ${skew.toFixed(1)} s`);
  if (problems.length > 0) throw new RedisUnfit(problems);
  return notices;
}

type Fact = (name: string) => string | undefined;

async function factsOf(client: RedisClient): Promise<Fact> {
  const info = await client.ask((redis) => redis.info());
  return (name) => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1];
}

function unfitServer(fact: Fact): readonly string[] {
  const problems: string[] = [];
  const version = fact('redis_version') ?? '0';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < OLDEST[0] || (major === OLDEST[0] && minor < OLDEST[1]))
    problems.push(`it is version ${version}; ${OLDEST.join('.')} or newer is needed`);
  const policy = fact('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction')
    problems.push(
      `its maxmemory-policy is ${policy}, so grants and revocations could be thrown away; set it to noeviction`,
    );
  return problems;
}

/** Names of commands that the server's access list does not let us run. */
async function refusedCommands({ client, prefix, replicated }: CheckOptions): Promise<readonly string[]> {
  const key = `{${prefix}}:check`;
  const ways: readonly (readonly [string, () => Promise<unknown>])[] = [
    ['EVALSHA', () => client.run(RECORD_COMMANDS, [`${prefix}:{${CHECK_ID}}:g`], [])],
    ['EVALSHA', () => client.run(INDEX_COMMANDS, [`${prefix}:{${CHECK_ID}}:h`], [])],
    ['EVALSHA', () => client.run(REVOCATION_COMMANDS, [`${key}:h`, `${key}:z`, `${key}:x`], [])],
    ['XREAD', () => client.ask((redis) => redis.xread('COUNT', 1, 'STREAMS', `{${prefix}}:revs`, '0-0'))],
    ['ZSCAN', () => client.ask((redis) => redis.zscan(`{${prefix}}:rev`, '0', 'COUNT', 1))],
    ['HSCAN', () => client.ask((redis) => redis.hscan(`{${prefix}}:lim`, '0', 'COUNT', 1))],
    ['HEXISTS', () => client.ask((redis) => redis.hexists(`{${prefix}}:head`, 'used'))],
    ['SCAN', () => client.ask((redis) => anyServer(redis).scan('0', 'COUNT', 1))],
    ['PING', () => client.ask((redis) => redis.ping())],
    ['INFO', () => client.ask((redis) => redis.info())],
    ...(replicated ? ([['WAIT', () => client.ask((redis) => redis.wait(0, 1))]] as const) : []),
  ];
  const refused = new Set<string>();
  for (const [name, way] of ways) {
    try {
      const inside = await way();
      if (name === 'EVALSHA') for (const command of inside as readonly string[]) refused.add(command);
    } catch (error) {
      if (!isRefusal(error)) throw error;
      refused.add(refusedIn(error) ?? name);
    }
  }
  return [...refused];
}

const isRefusal = (error: unknown): boolean => causeOf(error).startsWith('NOPERM');

/** A script the server does not know yet is sent by EVAL: then that is what is lacking. */
const refusedIn = (error: unknown): string | undefined =>
  /'([a-z]+)' command/.exec(causeOf(error))?.[1]?.toUpperCase();

const causeOf = (error: unknown): string =>
  error instanceof Fault && error.cause instanceof Error ? error.cause.message : '';

/** A cluster has no SCAN of its own, its nodes have. */
const anyServer = (redis: Redis): Redis =>
  redis.isCluster ? ((redis as unknown as Cluster).nodes('master')[0] ?? redis) : redis;
