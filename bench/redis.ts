/**
 * Measures many replicas on one Redis: `npm run bench:redis`. `-- --quick` gives a rough estimate,
 * `-- --only core,hot,start,sizes,migrate` measures some groups only.
 *
 * Redis has one core, the measured process another. All candidates are measured in every round. Ratios are computed within a
 * round; the median over all rounds is reported. The constants for sizing are written to tools/sizing-constants.json.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { migrateToRedis } from '../src/commands/restore/migrate-to-redis.ts';
import { openEmbeddedStore } from '../src/stores/embedded/store.ts';
import { createCase, createLoadRun, toCandidate } from './support/candidates.ts';
import { type BenchFolder, createBenchFolder, fillStore } from './support/folder.ts';
import { startBenchGateway } from './support/gateway.ts';
import { createAuthenticator, loadSettingsIn } from './support/grant-deps.ts';
import { cpuSeconds, loadAverage } from './support/linux.ts';
import type { LoadEnvironment } from './support/load-run.ts';
import { startUpstream } from './support/nginx.ts';
import { measure, startGatehouse } from './support/programs.ts';
import { fillRedis, openStore, revokeMany, startRedis } from './support/redis-bench.ts';
import { type Figure, figure, isMet, median, table } from './support/report.ts';
import { runRounds } from './support/rounds.ts';
import { runLoad } from './support/run-load.ts';
import { findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    'no-build': { type: 'boolean', default: false },
    only: { type: 'string' },
    rounds: { type: 'string' },
    seconds: { type: 'string' },
    many: { type: 'string' },
  },
});
const { quick } = given;
const ROUNDS = Number(given.rounds ?? (quick ? 3 : 7));
const SECONDS = Number(given.seconds ?? (quick ? 1 : 3));
const GRANTS = quick ? 20_000 : 100_000;
const MANY = Number(given.many ?? (quick ? 100_000 : 1_000_000));
const REVOCATIONS = quick ? 30_000 : 300_000;
const ACTIVE = 10_000;
const CONCURRENCY = 256;
const STARTS = 3;
const REDIS_CORE = 0;
const GATEHOUSE_CORE = 1;

const root = join(import.meta.dirname, '..');
const entry = join(root, 'dist/main.js');
const logProgress = (text: string): void => void process.stderr.write(`${text}\n`);
const isWanted = (group: string): boolean => given.only?.split(',').includes(group) ?? true;
const figures: Figure[] = [];
const constants: Record<string, number> = {};
const loadBefore = loadAverage();

if (availableParallelism() < 2) throw new Error('needs two cores: one for Redis, one for the measured process');
if (!given['no-build']) {
  logProgress('building');
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
}
const scratch = mkdtempSync(join(tmpdir(), 'gatehouse-bench-redis-'));
const folders: BenchFolder[] = [];
process.once('exit', () => {
  for (const folder of folders) folder.remove();
  rmSync(scratch, { recursive: true, force: true });
});
const redis = await startRedis(REDIS_CORE, join(scratch, 'redis.log'));
const createRedisFolder = async (): Promise<BenchFolder> => {
  const folder = await createBenchFolder((settings) => ({
    ...settings,
    store: { type: 'redis', url: redis.url },
  }));
  folders.push(folder);
  return folder;
};

const LABELS = {
  raw: 'compare-and-swap with plain ioredis',
  pair: 'read and compare-and-swap with plain ioredis',
  refresh: 'refresh, signature included',
  unsigned: 'refresh, without signature',
  bare: 'refresh, without signature and audit line',
  signing: 'signature alone',
} as const;

const readTraffic = async () => ({
  input: await redis.infoValue('total_net_input_bytes'),
  output: await redis.infoValue('total_net_output_bytes'),
  cpu: await redis.infoValue('used_cpu_user', 'used_cpu_sys'),
});

if (isWanted('core')) await measureCore();
if (isWanted('hot')) await measureHotPath();
if (isWanted('start')) await measureStart();
if (isWanted('sizes')) await measureSizes();
if (isWanted('migrate')) await measureMigration(await createRedisFolder());
await redis.stop();

const machine = {
  cpu: cpus()[0]?.model,
  cores: availableParallelism(),
  arch: arch(),
  memoryGiB: Math.round(totalmem() / 2 ** 30),
  node: process.version,
  loadBefore,
};
const result = {
  date: new Date().toISOString(),
  machine,
  settings: { quick, rounds: ROUNDS, seconds: SECONDS, concurrency: CONCURRENCY },
  figures: figures.map((entry) => ({ ...entry, met: isMet(entry) })),
  constants,
};
mkdirSync(join(root, 'bench/results'), { recursive: true });
const file = join(root, 'bench/results', `redis-${result.date.replaceAll(':', '')}.json`);
writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
copyFileSync(file, join(root, 'bench/results/redis.json'));
// Constants that were not measured now keep their previous values.
const constantsFile = join(root, 'tools/sizing-constants.json');
if (!quick) {
  const before = existsSync(constantsFile)
    ? (JSON.parse(readFileSync(constantsFile, 'utf8')) as { constants: Record<string, number> }).constants
    : {};
  const rounded = Object.entries({ ...before, ...constants }).map(
    ([name, value]) => [name, Number(value.toPrecision(4))] as const,
  );
  writeFileSync(
    constantsFile,
    `${JSON.stringify({ date: result.date.slice(0, 10), machine, constants: Object.fromEntries(rounded) }, null, 2)}\n`,
  );
}
process.stdout.write(`${table(figures)}\n`);
logProgress(`written to ${file}`);

interface CoreResult {
  readonly perSecond: number;
  readonly cpuMicros: number;
  readonly count: number;
}

/** The grant core of one process, compared with plain ioredis doing one compare-and-swap per operation. */
async function measureCore(): Promise<void> {
  const folder = await createRedisFolder();
  const state = folder.file('tokens.json');
  logProgress(`filling Redis with ${ACTIVE} grants`);
  writeFileSync(state, JSON.stringify(await fillRedis(folder.path, ACTIVE, ACTIVE)));
  const modes = ['raw', 'pair', 'refresh', 'unsigned', 'bare', 'signing'] as const;
  type Mode = (typeof modes)[number];
  const runMode = (mode: Mode): Promise<CoreResult> =>
    measure(
      GATEHOUSE_CORE,
      'redis-core.ts',
      [folder.path, mode, ...[CONCURRENCY, SECONDS].map(String), state],
      folder.path,
    );
  const rounds: Record<Mode, CoreResult>[] = [];
  const net: { readonly input: number; readonly output: number; readonly cpu: number }[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    logProgress(`core, round ${round + 1} of ${ROUNDS}`);
    const [raw, pair] = [await runMode('raw'), await runMode('pair')];
    const from = await readTraffic();
    const refresh = await runMode('refresh');
    const to = await readTraffic();
    net.push({
      input: (to.input - from.input) / refresh.count,
      output: (to.output - from.output) / refresh.count,
      cpu: ((to.cpu - from.cpu) * 1e6) / refresh.count,
    });
    const [unsigned, bare] = [await runMode('unsigned'), await runMode('bare')];
    rounds.push({ raw, pair, refresh, unsigned, bare, signing: await runMode('signing') });
  }
  const rate = (mode: Mode): number[] => rounds.map((round) => round[mode].perSecond);
  figures.push(
    figure('compare-and-swap with plain ioredis', rate('raw'), '/s'),
    figure('refreshes of the grant core, signatures included', rate('refresh'), '/s'),
    figure('refreshes of the grant core, without signatures', rate('unsigned'), '/s'),
    figure(
      'refreshes without signatures, relative to plain ioredis',
      rounds.map(({ raw, unsigned }) => unsigned.perSecond / raw.perSecond),
      '×',
      { is: 'at least', value: 0.6 },
    ),
    figure(
      'the same by CPU time',
      rounds.map(({ raw, unsigned }) => raw.cpuMicros / unsigned.cpuMicros),
      '×',
      { is: 'at least', value: 0.6 },
    ),
    figure(
      'refreshes without signatures, relative to read and compare-and-swap, by CPU time',
      rounds.map(({ pair, unsigned }) => pair.cpuMicros / unsigned.cpuMicros),
      '×',
    ),
    ...modes.map((mode) =>
      figure(
        `${LABELS[mode]}, CPU of the process`,
        rounds.map((round) => round[mode].cpuMicros),
        'µs',
      ),
    ),
    figure('signatures alone', rate('signing'), '/s'),
    figure(
      'refresh, CPU of Redis',
      net.map(({ cpu }) => cpu),
      'µs',
    ),
  );
  constants['refreshCpuMicros'] = median(rounds.map(({ refresh }) => refresh.cpuMicros));
  constants['refreshRedisCpuMicros'] = median(net.map(({ cpu }) => cpu));
  constants['refreshBytesToRedis'] = median(net.map(({ input }) => input));
  constants['refreshBytesFromRedis'] = median(net.map(({ output }) => output));
  await redis.admin.flushall();
}

/** Checking a bearer token does not access the store, so the CPU per request must not depend on it. */
async function measureHotPath(): Promise<void> {
  const { nginx, wrk } = findTools(logProgress);
  if (nginx === undefined || wrk === undefined) return logProgress('skipped: hot path: needs nginx and wrk');
  const common = await createBenchFolder();
  folders.push(common);
  const upstream = await startUpstream({
    folder: common.path,
    serverCore: GATEHOUSE_CORE,
    loadCore: REDIS_CORE,
    nginx,
  });
  const environment: LoadEnvironment = {
    folder: common.path,
    wrk,
    loadCore: REDIS_CORE,
    upstreamPid: upstream.pids[0] ?? 0,
  };
  const open = async (store?: { readonly type: 'redis'; readonly url: string }) => {
    const gateway = await startBenchGateway({
      upstream: upstream.port,
      core: GATEHOUSE_CORE,
      entry,
      ...(store && { store }),
    });
    folders.push(gateway.folder);
    return gateway;
  };
  const [embedded, shared] = [await open(), await open({ type: 'redis', url: redis.url })];
  const candidates = [toCandidate('embedded', embedded), toCandidate('redis', shared)];
  for (const candidate of candidates) {
    logProgress(`warming up ${candidate.name}`);
    await runLoad(environment, createLoadRun(candidate), quick ? 2 : 8);
  }
  const samples = await runRounds(
    candidates.map((candidate) => createCase(candidate)),
    {
      environment,
      rounds: ROUNDS,
      seconds: SECONDS,
      log: logProgress,
      // On a busy machine, the rounds end after about four minutes and are reported as disturbed.
      retryBudget: { retries: quick ? 3 : 6, quietSeconds: quick ? 10 : 30 },
    },
  );
  const cpu = (name: string): number[] => (samples.get(name) ?? []).map(({ cpuMicros }) => cpuMicros);
  const [own, other] = [cpu('embedded'), cpu('redis')];
  figures.push(
    figure('bearer check and forward, CPU on the embedded store', own, 'µs'),
    figure('bearer check and forward, CPU on Redis', other, 'µs'),
    figure(
      'bearer check and forward, Redis relative to embedded',
      other.map((value, round) => value / (own[round] ?? Number.NaN)),
      '×',
      { is: 'at most', value: 1.05 },
    ),
  );
  constants['bearerCpuMicros'] = median(other);
  for (const gateway of [embedded, shared]) await gateway.stop();
  await upstream.stop();
  await redis.admin.flushall();
}

/** Time from the start of the built program to its `ready` line, with no revocations and with many. */
async function measureStart(): Promise<void> {
  const folder = await createRedisFolder();
  const starts = async (what: string): Promise<{ readonly seconds: number[]; readonly cpu: number[] }> => {
    const [seconds, cpu]: [number[], number[]] = [[], []];
    for (let start = 0; start < STARTS; start += 1) {
      logProgress(`start ${start + 1} of ${STARTS} with ${what}`);
      const program = await startGatehouse({ folder: folder.path, entry, core: GATEHOUSE_CORE });
      seconds.push(program.readySeconds);
      cpu.push(cpuSeconds([program.pid]));
      await program.stop();
    }
    return { seconds, cpu };
  };
  const empty = await starts('none');
  const store = await openStore(redis.url);
  await revokeMany(store, REVOCATIONS);
  await store.close();
  const many = `${REVOCATIONS.toLocaleString('en')} revocations`;
  const full = await starts(many);
  figures.push(
    figure('start, no revocations', empty.seconds, 's'),
    figure('start, no revocations, CPU', empty.cpu, 's'),
    figure(`start, ${many}`, full.seconds, 's', { is: 'at most', value: 3 }),
    figure(`start, ${many}, CPU`, full.cpu, 's', { is: 'at most', value: 3 }),
  );
  constants['startSeconds'] = median(empty.cpu);
  constants['startSecondsPer100kRevocations'] =
    (Math.max(0.01, median(full.cpu) - median(empty.cpu)) * 100_000) / REVOCATIONS;
  await redis.admin.flushall();
}

/** Memory per grant and revocation, and the time to restore revocations. */
async function measureSizes(): Promise<void> {
  const folder = await createRedisFolder();
  const memory = (): Promise<number> => redis.infoValue('used_memory');
  const empty = await memory();
  logProgress(`${GRANTS} grants`);
  await fillRedis(folder.path, GRANTS, 0);
  constants['grantBytes'] = ((await memory()) - empty) / GRANTS;
  await redis.admin.flushall();

  const store = await openStore(redis.url);
  const before = await memory();
  logProgress(`${MANY} revocations`);
  await revokeMany(store, MANY);
  const log = Number(await redis.admin.call('MEMORY', 'USAGE', '{gh}:revs', 'SAMPLES', '0'));
  constants['revocationLogBytes'] = log;
  constants['revocationBytes'] = ((await memory()) - before - log) / MANY;
  constants['viewBytes'] = store.revocations.view.bytes() / MANY;
  logProgress('flushing Redis and waiting until the revocations are restored');
  await redis.admin.flushall();
  const began = performance.now();
  while ((await redis.admin.zcard('{gh}:rev')) < MANY) {
    if (performance.now() - began > 300_000) throw new Error('the revocations were not restored');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const seconds = (performance.now() - began) / 1_000;
  figures.push({ name: `restore ${MANY.toLocaleString('en')} revocations`, value: seconds, unit: 's' });
  constants['republishSecondsPerMillion'] = (seconds * 1e6) / MANY;
  await store.close();
  await redis.admin.flushall();

  await measureFollowers();
  figures.push(
    ...(
      [
        ['memory of Redis for a grant and its index entry', 'grantBytes', 'B'],
        ['memory of Redis for a revocation', 'revocationBytes', 'B'],
        ['memory of each process for a revocation', 'viewBytes', 'B'],
        ['an idle replica, to Redis', 'idleBytesToRedis', 'B/s'],
        ['an idle replica, from Redis', 'idleBytesFromRedis', 'B/s'],
        ['a revocation, from Redis to each replica', 'revocationBytesToFollower', 'B'],
        ['a revocation, from each replica to Redis', 'revocationBytesFromFollower', 'B'],
      ] as const
    ).map(([name, constant, unit]) => ({ name, value: constants[constant] ?? Number.NaN, unit })),
  );
}

/** Network traffic of replicas that follow the revocation log: the difference between few and more replicas. */
async function measureFollowers(): Promise<void> {
  const IDLE_SECONDS = quick ? 3 : 10;
  const ONE_BY_ONE = quick ? 200 : 1_000;
  const cost = async (followers: number) => {
    const stores = await Promise.all(Array.from({ length: followers }, () => openStore(redis.url)));
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    const a = await readTraffic();
    await new Promise((resolve) => setTimeout(resolve, IDLE_SECONDS * 1_000));
    const b = await readTraffic();
    for (let index = 0; index < ONE_BY_ONE; index += 1)
      await stores[0]?.revocations.announce({
        of: 'grant',
        grantId: `follow${followers}${index}`.padEnd(22, 'x'),
        belowGeneration: Number.POSITIVE_INFINITY,
        keepUntil: Math.floor(Date.now() / 1_000) + 86_400,
      });
    const c = await readTraffic();
    await Promise.all(stores.map((store) => store.close()));
    await redis.admin.flushall();
    return {
      idleTo: (b.input - a.input) / IDLE_SECONDS,
      idleFrom: (b.output - a.output) / IDLE_SECONDS,
      to: (c.input - b.input) / ONE_BY_ONE,
      from: (c.output - b.output) / ONE_BY_ONE,
      cpu: ((c.cpu - b.cpu) * 1e6) / ONE_BY_ONE,
      idleCpu: ((b.cpu - a.cpu) * 1e6) / IDLE_SECONDS,
    };
  };
  logProgress('replicas that follow the revocation log');
  const [few, more] = [await cost(2), await cost(10)];
  const each = (name: keyof typeof few): number => Math.max(0, (more[name] - few[name]) / 8);
  constants['idleBytesToRedis'] = each('idleTo');
  constants['idleBytesFromRedis'] = each('idleFrom');
  constants['idleRedisCpuMicrosPerSecond'] = each('idleCpu');
  constants['revocationBytesFromFollower'] = each('to');
  constants['revocationBytesToFollower'] = each('from');
  constants['revocationRedisCpuMicrosPerFollower'] = each('cpu');
}

/** Migration of many grants from the embedded store. */
async function measureMigration(folder: BenchFolder): Promise<void> {
  logProgress(`migrating ${MANY} grants: filling the embedded store`);
  const embedded = await createBenchFolder();
  folders.push(embedded);
  await fillStore(embedded.path, MANY, 0);
  const from = loadSettingsIn(embedded.path);
  const embeddedStore = await openEmbeddedStore({
    path: from.store.path,
    mapSize: from.store.mapSize,
    role: 'owner',
    now: () => Date.now() / 1_000,
    authenticator: createAuthenticator(from),
  });
  const backup = join(scratch, 'migrate.backup');
  await embeddedStore.backup(backup);
  await embeddedStore.close();
  const settings = loadSettingsIn(folder.path);
  const run = async (): Promise<number> => {
    const began = performance.now();
    await migrateToRedis({
      settings: { ...settings, keys: { ...settings.keys, file: embedded.file('data/keys.json') } },
      from: backup,
    });
    return (performance.now() - began) / 1_000;
  };
  logProgress('migrating');
  const first = await run();
  const again = await run();
  figures.push(
    { name: `migrate ${MANY.toLocaleString('en')} grants from the embedded store`, value: first, unit: 's' },
    { name: 'the same again, when all grants exist', value: again, unit: 's' },
  );
  constants['migrateSecondsPerMillionGrants'] = (first * 1e6) / MANY;
  await redis.admin.flushall();
}
