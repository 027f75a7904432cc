/**
 * Measures the cost of a change: CPU per request of this checkout and of another commit, in interleaved rounds.
 * `npm run bench:compare -- --base <commit>`.
 *
 * Two processes of the same program may differ by more than the change: what V8 optimizes, and where the kernel places the
 * memory, is decided once per process. Therefore all processes are started several times, and the ratio is the median over
 * these sets.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Candidate, createCase, createLoadRun, toCandidate } from './support/candidates.ts';
import { type BenchFolder, createBenchFolder } from './support/folder.ts';
import { startBenchGateway } from './support/gateway.ts';
import { loadAverage } from './support/linux.ts';
import type { LoadEnvironment } from './support/load-run.ts';
import { startUpstream } from './support/nginx.ts';
import { figure, median, table } from './support/report.ts';
import { runRounds } from './support/rounds.ts';
import { runLoad } from './support/run-load.ts';
import type { BenchEnvironment } from './support/servers.ts';
import { findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    base: { type: 'string' },
    sets: { type: 'string', default: '7' },
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '1' },
  },
});
const { base } = given;
if (base === undefined) throw new Error('--base <commit> is required');
if (availableParallelism() < 2) throw new Error('needs two cores: one for the server, one for load and upstream');
const SETS = Number(given.sets);
const ROUNDS = Number(given.rounds);
const SECONDS = Number(given.seconds);
const WARM_UP_SECONDS = 4;
const root = join(import.meta.dirname, '..');
const log = (text: string): void => void process.stderr.write(`${text}\n`);
const { nginx, wrk, h2load } = findTools(log);
if (nginx === undefined || wrk === undefined) throw new Error('needs nginx for the upstream and wrk for the load');

const folders: BenchFolder[] = [];
const commonFolder = await createBenchFolder();
folders.push(commonFolder);
const old = commonFolder.file('base');
execFileSync('git', ['worktree', 'add', '--detach', '--quiet', old, base], { cwd: root });
process.once('exit', () => {
  execFileSync('git', ['worktree', 'remove', '--force', old], { cwd: root });
  for (const folder of folders) folder.remove();
});
symlinkSync(join(root, 'node_modules'), join(old, 'node_modules'));
const benchEnvironment: BenchEnvironment = { folder: commonFolder.path, serverCore: 0, loadCore: 1, nginx };
const upstream = await startUpstream(benchEnvironment);
const environment: LoadEnvironment = {
  folder: commonFolder.path,
  wrk,
  ...(h2load !== undefined && { h2load }),
  loadCore: 1,
  upstreamPid: upstream.pids[0] ?? 0,
};

const SOURCES = { before: old, after: root } as const;
const get = { warmSeconds: 0.3 } as const;
const post = { ...get, method: 'POST', path: '/reports/1k', bodyBytes: 1_024 } as const;
const http2 = { ...get, generator: 'h2load, HTTP/2', connections: 16, streams: 10 } as const;
const KINDS = { GET: get, POST: post, ...(h2load !== undefined && { 'GET, HTTP/2': http2 }) };
const getName = (source: string, kind: string): string => `${source}, ${kind}`;
const retryBudget = { retries: 20, quietSeconds: 60 };

/** CPU per request by case, of processes that are started for this set. */
async function measureSet(isReversed: boolean): Promise<(name: string) => readonly number[]> {
  const sources = Object.entries(SOURCES);
  const candidates: Candidate[] = [];
  for (const [name, source] of isReversed ? sources.toReversed() : sources)
    candidates.push(await startCandidate(name, source));
  const cases = candidates.flatMap((candidate) =>
    Object.entries(KINDS).map(([kind, run]) => createCase(candidate, run, getName(candidate.name, kind))),
  );
  const samples = await runRounds(cases, { environment, rounds: ROUNDS, seconds: SECONDS, log, retryBudget });
  await Promise.all(candidates.map(({ front }) => front.stop()));
  return (name) => (samples.get(name) ?? []).map(({ cpuMicros }) => cpuMicros);
}

async function startCandidate(name: string, source: string): Promise<Candidate> {
  const gateway = await startBenchGateway({
    upstream: upstream.port,
    core: 0,
    // Types are stripped when a module is loaded, so the sources run as fast as the built program.
    entry: join(source, 'src/main.ts'),
  });
  folders.push(gateway.folder);
  const candidate = toCandidate(name, gateway);
  log(`warming up ${name}`);
  for (const run of Object.values(KINDS)) await runLoad(environment, createLoadRun(candidate, run), WARM_UP_SECONDS);
  candidate.truncateLog?.();
  return candidate;
}

const sets: ((name: string) => readonly number[])[] = [];
for (let set = 0; set < SETS; set += 1) {
  log(`set ${set + 1}/${SETS}`);
  sets.push(await measureSet(set % 2 === 1));
}
const kinds = Object.keys(KINDS);
const costs = kinds.flatMap((kind) =>
  Object.keys(SOURCES).map((source) => {
    const name = getName(source, kind);
    return figure(
      name,
      sets.map((cpuOf) => median(cpuOf(name))),
      'µs',
    );
  }),
);
const ratios = kinds.map((kind) =>
  figure(
    `${kind}: after / before`,
    sets.map((cpuOf) => {
      const before = cpuOf(getName('before', kind));
      return median(cpuOf(getName('after', kind)).map((micros, round) => micros / (before[round] ?? Number.NaN)));
    }),
    '×',
  ),
);
console.log(table([...costs, ...ratios]));
mkdirSync(join(root, 'bench/results'), { recursive: true });
writeFileSync(
  join(root, 'bench/results/compare.json'),
  JSON.stringify({ base, sets: SETS, rounds: ROUNDS, load: loadAverage(), costs, ratios }, undefined, 2),
);
await upstream.stop();
process.exit(0);
