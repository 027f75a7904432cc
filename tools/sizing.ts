/**
 * Computes the resources of an installation on Redis: `npm run sizing -- --grants 100000000 --replicas 100`.
 *
 * The constants, with the machine and date of the measurement, come from `npm run bench:redis`.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

export interface Measurements {
  readonly date: string;
  readonly machine: Readonly<Record<string, unknown>>;
  readonly constants: Constants;
}

export interface Constants {
  /** Memory of Redis for a grant and its index entry. */
  readonly grantBytes: number;
  readonly revocationBytes: number;
  /** The revocation log, which is bounded. */
  readonly revocationLogBytes: number;
  /** Memory of each process for a revocation. */
  readonly viewBytes: number;
  /** A forwarded request with a valid token. */
  readonly bearerCpuMicros: number;
  readonly refreshCpuMicros: number;
  readonly refreshRedisCpuMicros: number;
  readonly refreshBytesToRedis: number;
  readonly refreshBytesFromRedis: number;
  /** Per second, for an idle process that only sends heartbeats. */
  readonly idleBytesToRedis: number;
  readonly idleBytesFromRedis: number;
  readonly idleRedisCpuMicrosPerSecond: number;
  /** Per revocation, between Redis and each process. */
  readonly revocationBytesToFollower: number;
  readonly revocationBytesFromFollower: number;
  readonly revocationRedisCpuMicrosPerFollower: number;
}

/** The expected load. */
export interface Load {
  readonly grants: number;
  /** Lifetime of access tokens in seconds: each active grant is refreshed about once in that time. */
  readonly accessLifetime: number;
  /** Share of the grants whose clients run at the same time. */
  readonly active: number;
  readonly replicas: number;
  /** Processes of each replica. */
  readonly workers: number;
  readonly revocationsPerSecond: number;
  /** Seconds for which a revocation is kept: the remaining lifetime of its grant plus a day. */
  readonly revocationLifetime: number;
}

export interface Sizes {
  readonly refreshesPerSecond: number;
  readonly revocationsKept: number;
  readonly redisMemoryBytes: number;
  readonly viewBytesPerProcess: number;
  readonly redisCores: number;
  /** The part for the slot of revocations and heartbeats, which a cluster cannot distribute. */
  readonly revocationCores: number;
  readonly refreshCoresPerReplica: number;
  readonly bytesToRedisPerReplica: number;
  readonly bytesFromRedisPerReplica: number;
  readonly redisBytesPerSecond: number;
}

export function computeSizes(load: Load, c: Constants): Sizes {
  const processes = load.replicas * load.workers;
  const refreshes = (load.grants * load.active) / load.accessLifetime;
  const kept = load.revocationsPerSecond * load.revocationLifetime;
  const followers = load.revocationsPerSecond * processes;
  const revocationCores =
    (followers * c.revocationRedisCpuMicrosPerFollower + processes * c.idleRedisCpuMicrosPerSecond) / 1e6;
  const each = refreshes / load.replicas;
  const to =
    each * c.refreshBytesToRedis +
    load.workers * (c.idleBytesToRedis + load.revocationsPerSecond * c.revocationBytesFromFollower);
  const from =
    each * c.refreshBytesFromRedis +
    load.workers * (c.idleBytesFromRedis + load.revocationsPerSecond * c.revocationBytesToFollower);
  return {
    refreshesPerSecond: refreshes,
    revocationsKept: kept,
    redisMemoryBytes: load.grants * c.grantBytes + kept * c.revocationBytes + c.revocationLogBytes,
    viewBytesPerProcess: kept * c.viewBytes,
    redisCores: (refreshes * c.refreshRedisCpuMicros) / 1e6 + revocationCores,
    revocationCores,
    refreshCoresPerReplica: (each * c.refreshCpuMicros) / 1e6,
    bytesToRedisPerReplica: to,
    bytesFromRedisPerReplica: from,
    redisBytesPerSecond: (to + from) * load.replicas,
  };
}

/** Redis executes commands on one core; above this utilization, responses are delayed. */
export const REDIS_CORE = 0.6;

/** The resource that is exhausted first, and a remedy. */
export function findBottleneck(sizes: Sizes): string {
  if (sizes.revocationCores > REDIS_CORE)
    return 'the one slot of revocations: more processes or revocations than one Redis core can serve; use fewer workers or fewer `supersede` refreshes';
  if (sizes.redisCores > REDIS_CORE)
    return `one Redis core: a cluster of ${Math.ceil(sizes.redisCores / REDIS_CORE)} primaries`;
  if (sizes.redisMemoryBytes > 64e9) return 'memory of one server: a cluster distributes it evenly';
  if (sizes.viewBytesPerProcess > 256e6) return 'memory of each process for revocations: shorter grants';
  return 'none within one server';
}

/** The columns of the table in docs/sizing.md. */
export const EXAMPLES: readonly (readonly [name: string, load: Load])[] = [
  ['a team', { ...defaultLoad(), grants: 10_000, replicas: 2 }],
  ['a company', { ...defaultLoad(), grants: 1_000_000, replicas: 6, workers: 2, revocationsPerSecond: 1 }],
  ['a large company', { ...defaultLoad(), grants: 10_000_000, replicas: 20, workers: 4, revocationsPerSecond: 5 }],
  [
    'a very large service',
    { ...defaultLoad(), grants: 100_000_000, replicas: 100, workers: 4, revocationsPerSecond: 20 },
  ],
];

function defaultLoad(): Load {
  return {
    grants: 1_000_000,
    accessLifetime: 3_600,
    active: 0.3,
    replicas: 3,
    workers: 1,
    revocationsPerSecond: 0.1,
    revocationLifetime: 30 * 86_400,
  };
}

const MEASUREMENTS_FILE = join(import.meta.dirname, 'sizing-constants.json');
export const readMeasurements = (): Measurements => JSON.parse(readFileSync(MEASUREMENTS_FILE, 'utf8')) as Measurements;

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB'] as const;
function bytes(value: number): string {
  let [rest, unit] = [value, 0];
  for (; rest >= 1_000 && unit < UNITS.length - 1; unit += 1) rest /= 1_000;
  return `${round(rest)} ${UNITS[unit] ?? ''}`;
}
const round = (value: number): string =>
  value >= 100 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(2)));

const ROWS: readonly (readonly [string, (load: Load, sizes: Sizes) => string])[] = [
  ['grants', ({ grants }) => grants.toLocaleString('en')],
  ['replicas × processes', ({ replicas, workers }) => `${replicas} × ${workers}`],
  ['refreshes', (_, { refreshesPerSecond }) => `${round(refreshesPerSecond)}/s`],
  ['revocations', ({ revocationsPerSecond }) => `${round(revocationsPerSecond)}/s`],
  ['revocations kept', (_, { revocationsKept }) => round(revocationsKept)],
  ['memory of Redis', (_, { redisMemoryBytes }) => bytes(redisMemoryBytes)],
  ['memory of each process for revocations', (_, { viewBytesPerProcess }) => bytes(viewBytesPerProcess)],
  ['Redis, cores', (_, { redisCores }) => round(redisCores)],
  ['of these for revocations and heartbeats', (_, { revocationCores }) => round(revocationCores)],
  ['each replica for refreshes, cores', (_, sizes) => round(sizes.refreshCoresPerReplica)],
  ['each replica to Redis', (_, sizes) => `${bytes(sizes.bytesToRedisPerReplica)}/s`],
  ['each replica from Redis', (_, sizes) => `${bytes(sizes.bytesFromRedisPerReplica)}/s`],
  ['Redis, both directions', (_, { redisBytesPerSecond }) => `${bytes(redisBytesPerSecond)}/s`],
  ['bottleneck', (_, sizes) => findBottleneck(sizes)],
];

function sizingTable(loads: readonly (readonly [name: string, load: Load])[], constants: Constants): string {
  const columns = loads.map(([name, load]) => {
    const sizes = computeSizes(load, constants);
    return [name, ...ROWS.map(([, write]) => write(load, sizes))];
  });
  const names = ['', ...ROWS.map(([name]) => name)];
  const lines = names.map((name, row) => `| ${[name, ...columns.map((cells) => cells[row] ?? '')].join(' | ')} |`);
  return lines.toSpliced(1, 0, `|${'---|'.repeat(columns.length + 1)}`).join('\n');
}

/** The generated section of docs/sizing.md. */
export function renderSizingSection({ date, machine, constants }: Measurements): string {
  const measured = `Measured ${date} on ${String(machine['cores'])} cores of ${String(machine['cpu'])}, Node ${String(machine['node'])}, with a load average of ${String(machine['loadBefore'])} before (1, 5 and 15 minutes; above the number of cores, CPU times are higher than on an idle machine).`;
  return `${measured}\n\n${sizingTable(EXAMPLES, constants)}`;
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      grants: { type: 'string' },
      replicas: { type: 'string' },
      workers: { type: 'string' },
      active: { type: 'string' },
      'access-lifetime': { type: 'string' },
      revocations: { type: 'string' },
      'revocation-lifetime': { type: 'string' },
    },
  });
  const parseNumber = (text: string | undefined, fallback: number): number => {
    const value = text === undefined ? fallback : Number(text);
    if (!Number.isFinite(value) || value <= 0) throw new Error(`expected a positive number, got ${text}`);
    return value;
  };
  const defaults = defaultLoad();
  const load: Load = {
    grants: parseNumber(values.grants, defaults.grants),
    replicas: parseNumber(values.replicas, defaults.replicas),
    workers: parseNumber(values.workers, defaults.workers),
    active: parseNumber(values.active, defaults.active),
    accessLifetime: parseNumber(values['access-lifetime'], defaults.accessLifetime),
    revocationsPerSecond: parseNumber(values.revocations, defaults.revocationsPerSecond),
    revocationLifetime: parseNumber(values['revocation-lifetime'], defaults.revocationLifetime),
  };
  process.stdout.write(`${sizingTable([['', load]], readMeasurements().constants)}\n`);
}
