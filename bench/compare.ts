/**
 * Measures the cost of a change: CPU per request of this checkout and of another commit, in interleaved rounds.
 * `npm run bench:compare -- --base <commit>`.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createCase, createLoadRun, toCandidate } from './support/candidates.ts';
import { type BenchFolder, createBenchFolder } from './support/folder.ts';
import { startBenchGateway } from './support/gateway.ts';
import { loadAverage } from './support/linux.ts';
import type { LoadEnvironment } from './support/load-run.ts';
import { startUpstream } from './support/nginx.ts';
import { figure, table } from './support/report.ts';
import { runRounds } from './support/rounds.ts';
import { runLoad } from './support/run-load.ts';
import type { BenchEnvironment } from './support/servers.ts';
import { findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    base: { type: 'string' },
    only: { type: 'string', default: '' },
    rounds: { type: 'string', default: '15' },
    seconds: { type: 'string', default: '1' },
  },
});
const { base } = given;
if (base === undefined) throw new Error('--base <commit> is required');
if (availableParallelism() < 2)
  throw new Error('needs two cores: one for the server, one for load and upstream');
const ROUNDS = Number(given.rounds);
const SECONDS = Number(given.seconds);
const WARM_UP_SECONDS = 4;
const root = join(import.meta.dirname, '..');
const log = (text: string): void => void process.stderr.write(`${text}\n`);
const { nginx, wrk, h2load } = findTools(log);
if (nginx === undefined || wrk === undefined)
  throw new Error('needs nginx for the upstream and wrk for the load');

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

const PATHS = { 'fast path': true, 'full path': false } as const;
const candidates = [];
for (const [path, fastPath] of Object.entries(PATHS))
  for (const [name, source] of [
    ['before', old],
    ['after', root],
  ] as const) {
    const gateway = await startBenchGateway({
      upstream: upstream.port,
      core: 0,
      // Types are stripped when a module is loaded, so the sources run as fast as the built program.
      entry: join(source, 'src/main.ts'),
      fastPath,
      fastPathName: readFileSync(join(source, 'src/config/sections/listen.ts'), 'utf8').includes('fastPath')
        ? 'fastPath'
        : 'fastLane',
    });
    folders.push(gateway.folder);
    candidates.push(toCandidate(`${path}, ${name}`, gateway));
  }
const get = { warmSeconds: 0.3 } as const;
const post = { ...get, method: 'POST', path: '/reports/1k', bodyBytes: 1_024 } as const;
const http2 = { ...get, generator: 'h2load, HTTP/2', connections: 16, streams: 10 } as const;
const KINDS = { '': get, ', POST': post, ...(h2load !== undefined && { ', HTTP/2': http2 }) };
for (const candidate of candidates) {
  log(`warming up ${candidate.name}`);
  for (const run of Object.values(KINDS))
    await runLoad(environment, createLoadRun(candidate, run), WARM_UP_SECONDS);
  candidate.truncateLog?.();
}
const cases = candidates
  .flatMap((candidate) =>
    Object.entries(KINDS).map(([kind, run]) => createCase(candidate, run, `${candidate.name}${kind}`)),
  )
  .filter(({ name }) => given.only === '' || name.startsWith(given.only));
const retryBudget = { retries: 20, quietSeconds: 60 };
const samples = await runRounds(cases, { environment, rounds: ROUNDS, seconds: SECONDS, log, retryBudget });
const cpuOf = (name: string): number[] => (samples.get(name) ?? []).map(({ cpuMicros }) => cpuMicros);
const costs = cases.map(({ name }) => figure(name, cpuOf(name), 'µs'));
const ratios = Object.keys(PATHS)
  .filter((path) => path.startsWith(given.only))
  .flatMap((path) =>
    Object.keys(KINDS).map((kind) => {
      const before = cpuOf(`${path}, before${kind}`);
      return figure(
        `${path}${kind}: after / before`,
        cpuOf(`${path}, after${kind}`).map((micros, round) => micros / (before[round] ?? Number.NaN)),
        '×',
      );
    }),
  );
console.log(table([...costs, ...ratios]));
mkdirSync(join(root, 'bench/results'), { recursive: true });
writeFileSync(
  join(root, 'bench/results/compare.json'),
  JSON.stringify({ base, rounds: ROUNDS, load: loadAverage(), costs, ratios }, undefined, 2),
);
await Promise.all([...candidates.map(({ front }) => front.stop()), upstream.stop()]);
process.exit(0);
