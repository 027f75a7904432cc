/**
 * Measures the data plane: `npm run bench`. `-- --quick` gives a rough estimate, `-- --only fronts,growth` measures some
 * groups only, `-- --profile` records a CPU profile, with
 * `--uncached` of requests whose tokens are seen for the first time (ES256).
 *
 * The server has one core; load and upstream share another. All candidates are measured in every round, so that other load
 * on the machine affects them alike. Ratios are computed within a round; the median over all rounds is reported.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, globSync, mkdirSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  type Candidate,
  createCase,
  createLoadRun,
  ES256_KEYS,
  startCandidates,
  TRUSTED_ISSUER,
  toCandidate,
} from './support/candidates.ts';
import { type BenchFolder, createBenchFolder } from './support/folder.ts';
import { type BenchGateway, type BenchGatewayOptions, startBenchGateway } from './support/gateway.ts';
import { goLoadProgram } from './support/go-load.ts';
import { measureHttp2 } from './support/http2.ts';
import { measureIdleConnections } from './support/idle-connections.ts';
import { loadAverage } from './support/linux.ts';
import type { LoadEnvironment, LoadRun, Sample } from './support/load-run.ts';
import { startUpstream, upstreamFilePath } from './support/nginx.ts';
import { formatCosts, readCosts } from './support/profile.ts';
import { type Figure, figure, isMet, table } from './support/report.ts';
import { type Case, isQuiet, type RetryBudget, runRounds } from './support/rounds.ts';
import { type BenchResult, type Row, rowTable } from './support/rows.ts';
import { runLoad } from './support/run-load.ts';
import type { BenchEnvironment } from './support/servers.ts';
import { createThirdPartyTokens } from './support/third-party-tokens.ts';
import { findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    profile: { type: 'boolean', default: false },
    uncached: { type: 'boolean', default: false },
    'no-build': { type: 'boolean', default: false },
    only: { type: 'string' },
    rounds: { type: 'string' },
    seconds: { type: 'string' },
  },
});
const { quick } = given;
const SECONDS = Number(given.seconds ?? (quick ? 2 : 4));
const ROUNDS = Number(given.rounds ?? (quick ? 3 : 5));
const MIN_ROUNDS = 3;
/** Bounds below 10 % need less variance: many short rounds are more precise than a few long ones. */
const NARROW_ROUNDS = Number(given.rounds ?? (quick ? 3 : 21));
const NARROW_SECONDS = Math.min(SECONDS, 1);
const MANY = quick ? 100_000 : 1_000_000;
const CONNECTIONS = quick ? 1_000 : 5_000;
const IDLE_CONNECTIONS = quick ? 1_000 : 2_000;
const COLD = quick ? 4_000 : 12_000;
const WARM_UP_SECONDS = quick ? 4 : 8;
/** With think time: enough to keep the server busy, but not so many that requests queue. */
const PACED_PER_SECOND = 1_500;
/** Candidates that are also measured with large bodies and POST requests. */
const FEW = ['gatehouse', 'nginx', 'HAProxy', 'http-proxy-3'];
/** Candidates that are also measured with tokens that they see for the first time. */
const UNCACHED = ['gatehouse', ES256_KEYS, TRUSTED_ISSUER];
/** API calls on connections that have also requested a document of the token service. */
const AFTER_SERVICE = 'gatehouse, after a request to the token service';
const FEW_GROUPS = ['bodies', 'posts'];
/** Candidates that are also measured over HTTP/2, which http-proxy-3 does not offer. */
const HTTP2 = ['gatehouse', 'nginx', 'HAProxy'];
/** Candidates whose latency is compared on a single connection. */
const SINGLE = ['gatehouse', 'HAProxy, JWT HS256', 'nginx + auth_request to return 204', 'http-proxy-3'];
const CORES = availableParallelism();
const SERVER_CORE = 0;
/** Two workers get a core each only if another core is left for the load. */
const PAIR_CORES = CORES >= 4 ? '0,1' : SERVER_CORE;
const LOAD_CORE = CORES >= 4 ? `2-${CORES - 1}` : 1;

const root = join(import.meta.dirname, '..');
const results = join(root, 'bench/results');
const entry = join(root, 'dist/main.js');
const wanted = given.only?.split(',').map((name) => name.trim().toLowerCase());
const GROUPS = ['fronts', 'single', 'bodies', 'posts', 'h2', 'idle', 'growth', 'connections'];
const isWanted = (group: string, name = ''): boolean =>
  wanted === undefined ||
  wanted.some((filter) => (GROUPS.includes(filter) ? group === filter : name.toLowerCase().includes(filter)));
/** Whether no comparison with other servers was requested. */
const isOnlyGrowth = (): boolean =>
  wanted?.every((filter) => ['idle', 'growth', 'connections'].includes(filter)) === true;
const skipped: string[] = [];
const log = (text: string): void => {
  if (text.startsWith('skipped:')) skipped.push(text.slice('skipped: '.length));
  process.stderr.write(`${text}\n`);
};

const rows: Row[] = [];
const ratios: Figure[] = [];

if (CORES < 2) throw new Error('needs two cores: one for the server, one for load and upstream');
const loadBefore = loadAverage();
const { nginx, wrk, ...more } = findTools(log);
if (nginx === undefined || wrk === undefined) throw new Error('needs nginx for the upstream and wrk for the load');
mkdirSync(results, { recursive: true });
if (!given['no-build']) {
  log('building');
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
}

const folders: BenchFolder[] = [];
process.once('exit', () => folders.forEach((folder) => folder.remove()));
const common = await createBenchFolder();
folders.push(common);
const environment: BenchEnvironment = {
  folder: common.path,
  serverCore: SERVER_CORE,
  loadCore: LOAD_CORE,
  nginx,
  ...(more.haproxy !== undefined && { haproxy: more.haproxy }),
};
const upstream = await startUpstream(environment);
const thirdPartyTokens = createThirdPartyTokens(common.path, {
  issuer: `http://127.0.0.1:${upstream.port}`,
  count: 100,
  jwksFile: upstreamFilePath(environment, 'jwks.json'),
});
const loadEnvironment: LoadEnvironment = {
  folder: common.path,
  wrk,
  ...(more.h2load !== undefined && { h2load: more.h2load }),
  ...(goLoadProgram.missing === undefined && isWanted('h2') && { goLoad: await goLoadProgram.build() }),
  loadCore: LOAD_CORE,
  upstreamPid: upstream.pids[0] ?? 0,
};
const retryBudget: RetryBudget = { retries: quick ? 10 : 25, quietSeconds: quick ? 30 : 120 };

const startGateway = async (options: Partial<BenchGatewayOptions> = {}): Promise<BenchGateway> => {
  const gateway = await startBenchGateway({ upstream: upstream.port, core: SERVER_CORE, entry, ...options });
  folders.push(gateway.folder);
  return gateway;
};

/** Lets V8 finish compiling before the first round, and detects servers that do not respond. */
async function warmUp(candidates: readonly Candidate[], overrides: Partial<LoadRun> = {}): Promise<void> {
  for (const candidate of candidates) {
    log(`warming up ${candidate.name}`);
    try {
      await runLoad(loadEnvironment, createLoadRun(candidate, overrides), WARM_UP_SECONDS);
    } catch (error) {
      log(`  ${candidate.name}: ${(error as Error).message}`);
    }
    candidate.truncateLog?.();
  }
}

async function measure(
  group: string,
  cases: readonly Case[],
  rounds: number,
  seconds = SECONDS,
): Promise<Map<string, Sample[]>> {
  log(`${group}: ${cases.length} in ${rounds} rounds of ${seconds} s`);
  const samples = await runRounds(cases, { environment: loadEnvironment, rounds, seconds, log, retryBudget });
  for (const [name, own] of samples) rows.push({ group, name, samples: own });
  return samples;
}

type Measure = (sample: Sample) => number;
const cpu: Measure = ({ cpuMicros }) => cpuMicros;
const atMost = (value: number): NonNullable<Figure['aim']> => ({ is: 'at most', value });

/** Uses only rounds without other load if there are enough of them; otherwise all rounds, marked as disturbed. */
function compare(
  samples: ReadonlyMap<string, readonly Sample[]>,
  [name, base]: readonly [string, string],
  aim?: Figure['aim'],
  [label, read]: readonly [string, Measure] = ['CPU', cpu],
): void {
  const [own, other] = [samples.get(name), samples.get(base)];
  if (own === undefined || other === undefined) return;
  const pairs = own.flatMap((sample, round) => {
    const beside = other[round];
    return beside === undefined ? [] : [{ ratio: read(sample) / read(beside), quiet: isQuiet(sample, beside) }];
  });
  const quiet = pairs.filter((pair) => pair.quiet);
  const enough = quiet.length >= Math.min(MIN_ROUNDS, pairs.length);
  ratios.push(
    figure(
      `${label}: ${name} / ${base}${enough ? '' : ' (disturbed)'}`,
      (enough ? quiet : pairs).map(({ ratio }) => ratio),
      '×',
      aim,
    ),
  );
}

const stopAll = async (candidates: readonly Candidate[]): Promise<void> => {
  for (const { front } of candidates) await front.stop();
};

if (given.profile) await profile();
else {
  if (!isOnlyGrowth()) await measureServers();
  await measureGrowth();
  await measureConnections();
  await measureIdle();
  writeResults();
}
await upstream.stop();

async function measureServers(): Promise<void> {
  const inServers = (name: string): boolean => isWanted('fronts', name);
  const inFew = FEW_GROUPS.some((group) => isWanted(group));
  const cold = { files: 2 * ROUNDS, each: COLD };
  const main = await startGateway({ cold });
  const all = await startCandidates(main, {
    environment,
    upstream: upstream.port,
    tlsUpstream: upstream.tlsPort,
    thirdPartyTokens,
    startGateway,
    cold,
    pairCores: PAIR_CORES,
    isWanted: (name) =>
      inServers(name) ||
      (inFew && FEW.includes(name)) ||
      (isWanted('h2') && HTTP2.includes(name)) ||
      (isWanted('single') && SINGLE.includes(name)),
    log,
  });
  await warmUp(all);

  const few = all.filter(({ name }) => FEW.includes(name));
  const named = all.filter(({ name }) => inServers(name));
  if (named.length > 0) {
    const uncached = named
      .filter(({ name }) => UNCACHED.includes(name))
      .map((candidate) => createUncachedCase(candidate, cold.files));
    // Clients get a token and call the API on the same connection.
    const afterService = named
      .filter(({ name }) => name === 'gatehouse')
      .map((candidate) => createCase(candidate, { firstPath: '/authsvc/oauth2/jwks' }, AFTER_SERVICE));
    const samples = await measure(
      'fronts',
      [...named.map((candidate) => createCase(candidate)), ...uncached, ...afterService],
      ROUNDS,
    );
    compare(samples, ['gatehouse', 'http-proxy-3'], atMost(1 / 3.6));
    compare(samples, ['gatehouse', 'nginx + auth_request to return 204'], atMost(1 / 1.3));
    compare(samples, ['gatehouse', 'HAProxy, JWT RS256'], atMost(1 / 1.4));
    compare(samples, ['gatehouse', 'HAProxy, JWT ES256'], atMost(1 / 2.3));
    compare(samples, ['gatehouse', 'HAProxy, JWT HS256'], atMost(1 / 0.42));
    compare(samples, ['gatehouse, TLS upstream', 'nginx, TLS upstream'], atMost(1.6));
    compare(samples, [AFTER_SERVICE, 'gatehouse'], atMost(1.05));
    compare(samples, ['nginx + auth_request to gatehouse', 'nginx + auth_request to return 204'], atMost(1.8));
    compare(samples, ['gatehouse', 'HAProxy']);
    compare(samples, ['gatehouse', 'nginx']);
    compare(samples, ['gatehouse', 'nginx + auth_request to return 204, a connection each']);
    compare(samples, ['gatehouse', 'nginx + auth_request to gatehouse']);
    compare(samples, ['gatehouse', 'oauth2-proxy, JWT RS256']);
    compare(samples, ['gatehouse', 'Oathkeeper, JWT RS256']);
    compare(samples, ['gatehouse, uncached tokens', 'gatehouse']);
    compare(samples, [TRUSTED_ISSUER, 'gatehouse'], atMost(1.05));
    // EdDSA has no aim: its signature alone costs more than the whole check of ES256.
    compare(samples, ['gatehouse, uncached tokens', 'HAProxy, JWT ES256']);
    for (const name of [ES256_KEYS, TRUSTED_ISSUER])
      compare(samples, [`${name}, uncached tokens`, 'HAProxy, JWT ES256'], atMost(1.5));
    compare(samples, ['gatehouse, 2 workers', 'gatehouse']);
    if (PAIR_CORES !== SERVER_CORE)
      compare(samples, ['gatehouse, 2 workers', 'gatehouse'], { is: 'at least', value: 1.8 }, [
        'requests per second',
        ({ perSecond }) => perSecond,
      ]);
    else log('skipped: requests per second of two workers: needs a core for each worker and one for the load');
  }
  if (isWanted('single')) {
    const singleName = (name: string): string => `${name}, one connection`;
    const cases = all
      .filter(({ name }) => SINGLE.includes(name))
      .map((candidate) => createCase(candidate, { connections: 1 }, singleName(candidate.name)));
    const samples = await measure('single', cases, ROUNDS);
    for (const other of SINGLE.slice(1))
      compare(
        samples,
        [singleName('gatehouse'), singleName(other)],
        other === 'HAProxy, JWT HS256' ? atMost(1.3) : undefined,
        ['p50', ({ p50 }) => p50],
      );
  }
  for (const [group, label, overrides] of [
    ['bodies', 'GET 100 KiB', { path: '/files/100k' }],
    ['posts', 'POST 1 KiB', { method: 'POST', path: '/reports/1k', bodyBytes: 1_024 }],
  ] as const) {
    if (!isWanted(group)) continue;
    const groupName = (name: string): string => `${name}, ${label}`;
    const cases = few.map((candidate) => createCase(candidate, overrides, groupName(candidate.name)));
    const beside = 'gatehouse, GET 1 KiB';
    // The cost of a body is relative to GET requests to the same server in the same rounds.
    const gets = few.filter(({ name }) => group === 'posts' && name === 'gatehouse');
    cases.push(...gets.map((candidate) => createCase(candidate, {}, beside)));
    const samples = await measure(group, cases, Math.min(3, ROUNDS));
    compare(samples, [groupName('gatehouse'), beside], atMost(1.15));
    compare(samples, [groupName('gatehouse'), groupName('http-proxy-3')]);
    compare(samples, [groupName('gatehouse'), groupName('nginx')]);
    compare(samples, [groupName('gatehouse'), groupName('HAProxy')]);
  }
  if (isWanted('h2') && more.h2load !== undefined)
    await measureHttp2({
      candidates: all.filter(({ name }) => HTTP2.includes(name)),
      hasGoLoad: loadEnvironment.goLoad !== undefined,
      measure: (cases) => measure('h2', cases, ROUNDS),
      warmUp,
      compare,
      log,
    });
  await stopAll(all);
  await main.stop();
}

/** The tokens of the candidate are used once each. */
function createUncachedCase(candidate: Candidate, files: number): Case {
  let file = 0;
  return {
    ...createCase(candidate, {}, `${candidate.name}, uncached tokens`),
    createRun: () => createLoadRun(candidate, { cold: `${candidate.uncached}-${file++ % files}` }),
  };
}

/** Each candidate differs from the first in one respect only. */
async function measureGrowth(): Promise<void> {
  if (!isWanted('growth')) return;
  const many = MANY.toLocaleString('en');
  const base = 'gatehouse, 1,000 grants, 10 routes, 0 revocations';
  const kinds = [
    [base, {}],
    [`gatehouse, ${many} grants`, { grants: MANY }],
    ['gatehouse, 1,000 routes', { routes: 1_000 }],
    [`gatehouse, ${many} revocations`, { revocations: MANY }],
  ] as const;
  const all: Candidate[] = [];
  for (const [name, options] of kinds) {
    log(`filling ${name}`);
    all.push(toCandidate(name, await startGateway(options)));
  }
  await warmUp(all);
  const samples = await measure(
    'growth',
    all.map((candidate) => createCase(candidate)),
    NARROW_ROUNDS,
    NARROW_SECONDS,
  );
  for (const [name] of kinds.slice(1)) compare(samples, [name, base], atMost(1.05));
  await stopAll(all);
}

/** The same request rate from few and from many connections. */
async function measureConnections(): Promise<void> {
  if (!isWanted('connections')) return;
  const candidate = toCandidate('gatehouse', await startGateway());
  await warmUp([candidate]);
  const from = (connections: number): Case =>
    createCase(
      candidate,
      {
        connections,
        thinkMilliseconds: Math.round((connections / PACED_PER_SECOND) * 1_000),
        // Excludes the handshakes of all connections from the measurement.
        warmSeconds: 2 + connections / 250,
      },
      `gatehouse, ${connections.toLocaleString('en')} connections`,
    );
  const [few, thousand, lots] = [from(64), from(1_000), from(CONNECTIONS)];
  const samples = await measure('connections', [few, thousand, ...(CONNECTIONS > 1_000 ? [lots] : [])], 3);
  compare(samples, [lots.name, few.name], atMost(1.25));
  // From the first round: memory taken by more connections is not released at once.
  const resident = samples.get(thousand.name)?.[0]?.residentMegabytes;
  if (resident !== undefined)
    ratios.push(figure(`RSS of one process: ${thousand.name}, first round`, [resident], 'MB', atMost(130)));
  await stopAll([candidate]);
}

async function measureIdle(): Promise<void> {
  if (!isWanted('h2') && !isWanted('idle')) return;
  log(`idle: ${IDLE_CONNECTIONS} connections in ${MIN_ROUNDS} rounds`);
  ratios.push(
    ...(await measureIdleConnections({
      startGateway,
      connections: IDLE_CONNECTIONS,
      rounds: MIN_ROUNDS,
      log,
      aim: atMost(8),
    })),
  );
}

/** Prints the CPU time by part and function; the profile is written to bench/results. */
async function profile(): Promise<void> {
  const cold = { files: 1, each: 3 * COLD };
  const gateway = await startGateway({
    nodeOptions: ['--cpu-prof', '--cpu-prof-dir', common.path],
    ...(given.uncached && { keyAlgorithm: 'ES256' as const, cold }),
  });
  const candidate = toCandidate('gatehouse', gateway);
  const load = given.uncached ? { cold: `${candidate.uncached}-0` } : {};
  await runLoad(loadEnvironment, createLoadRun(candidate, load), WARM_UP_SECONDS);
  await gateway.stop();
  for (const file of globSync(join(common.path, '*.cpuprofile'))) {
    const { functions, parts } = readCosts(file, root);
    process.stdout.write(`by part\n${formatCosts(parts)}\n\nby function\n${formatCosts(functions)}\n`);
    copyFileSync(file, join(results, 'proxy.cpuprofile'));
  }
}

/** The measured commit, marked `-dirty` if files have changed since. */
function commit(): string {
  try {
    return execFileSync('git', ['describe', '--always', '--dirty'], { cwd: root, encoding: 'utf8' }).trim();
  } catch {
    return 'unknown';
  }
}

function writeResults(): void {
  const date = new Date().toISOString();
  const result: BenchResult = {
    date,
    commit: commit(),
    machine: {
      cpu: cpus()[0]?.model ?? 'unknown',
      cores: CORES,
      arch: arch(),
      memoryGiB: Math.round(totalmem() / 2 ** 30),
      node: process.version,
      loadAverage: { before: loadBefore, after: loadAverage() },
    },
    settings: {
      quick,
      seconds: SECONDS,
      rounds: ROUNDS,
      narrowRounds: NARROW_ROUNDS,
      many: MANY,
      connections: 64,
    },
    rows,
    ratios: ratios.map((ratio) => ({ ...ratio, met: isMet(ratio) })),
    skipped,
  };
  const file = join(results, `proxy-${date.replaceAll(':', '')}.json`);
  writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
  copyFileSync(file, join(results, 'proxy.json'));
  process.stdout.write(`${rowTable(rows)}\n\n${table(ratios)}\n`);
  for (const line of skipped) process.stdout.write(`not measured: ${line}\n`);
  log(`load average ${loadBefore} before, ${loadAverage()} after; written to ${file}`);
}
