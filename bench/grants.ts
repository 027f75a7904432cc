/**
 * Measures the cost of grants: `npm run bench:grants`, or a rough estimate with `-- --quick`.
 *
 * The server and the load run on separate cores. All candidates are measured in every round, so that other load on the
 * machine affects them alike. Ratios are computed within a round; the median over all rounds is reported.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type BenchFolder, createBenchFolder, fillStore } from './support/folder.ts';
import type { Load, LoadResult } from './support/load.ts';
import { measure, type Program, startBaselineServer, startGatehouse } from './support/programs.ts';
import { type Figure, figure, isMet, table } from './support/report.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    grants: { type: 'string' },
    rounds: { type: 'string' },
    seconds: { type: 'string' },
  },
});
const GRANTS = Number(given.grants ?? (given.quick ? 100_000 : 1_000_000));
const ROUNDS = Number(given.rounds ?? (given.quick ? 3 : 7));
const SECONDS = Number(given.seconds ?? (given.quick ? 2 : 3));
/** Grants in use: the same number in the small and in the large store. */
const ACTIVE = 10_000;
const CONNECTIONS = 32;
const CONCURRENCY = 256;
const STARTS = 5;
/** Until then, V8 is compiling on the same core. */
const WARM_UP_REQUESTS = given.quick ? 10_000 : 60_000;
const WARM_UP_SECONDS = 60;
const SERVER_CORE = 0;
const LOAD_CORE = 1;
const OPERATIONS = ['refresh', 'certificate'] as const;
type Operation = (typeof OPERATIONS)[number];

const root = join(import.meta.dirname, '..');
const entry = join(root, 'dist/main.js');
const log = (text: string): boolean => process.stderr.write(`${text}\n`);
const figures: Figure[] = [];

if (availableParallelism() < 2) throw new Error('needs two cores: one for the server, one for the load');
log('building');
execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });

const folders: BenchFolder[] = [];
const createFolder = async (): Promise<BenchFolder> => {
  const folder = await createBenchFolder();
  folders.push(folder);
  return folder;
};
process.once('exit', () => folders.forEach((folder) => folder.remove()));

const emptyFolder = await createFolder();
const small = await createFolder();
const large = await createFolder();
const stores = { small, large } as const;
log(`filling a store with ${ACTIVE} grants and one with ${GRANTS}`);
for (const [folder, count] of [
  [small, ACTIVE],
  [large, GRANTS],
] as const)
  writeFileSync(folder.file('tokens.json'), JSON.stringify(await fillStore(folder.path, count, ACTIVE)));

await measureStarts();
await measureCore();
await measureHttps();

const result = {
  date: new Date().toISOString(),
  machine: {
    cpu: cpus()[0]?.model,
    cores: availableParallelism(),
    arch: arch(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.version,
  },
  settings: {
    grants: GRANTS,
    active: ACTIVE,
    rounds: ROUNDS,
    seconds: SECONDS,
    CONNECTIONS,
    LANES: CONCURRENCY,
  },
  figures: figures.map((entry) => ({ ...entry, met: isMet(entry) })),
};
mkdirSync(join(root, 'bench/results'), { recursive: true });
const file = join(root, 'bench/results', `grants-${result.date.replaceAll(':', '')}.json`);
writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
copyFileSync(file, join(root, 'bench/results/grants.json'));
process.stdout.write(`${table(figures)}\n`);
log(`written to ${file}`);

/** Time from the start of the built program to its `ready` line. */
async function measureStarts(): Promise<void> {
  log('starting the built program');
  const ready = async (folder: BenchFolder): Promise<number> => {
    const program = await startGatehouse({ folder: folder.path, entry });
    await program.stop();
    return program.readySeconds;
  };
  const empty: number[] = [];
  const full: number[] = [];
  for (let start = 0; start < STARTS; start += 1) {
    empty.push(await ready(emptyFolder));
    full.push(await ready(large));
  }
  figures.push(
    figure('start, empty store', empty, 's', { is: 'at most', value: 0.5 }),
    figure(`start, ${GRANTS.toLocaleString('en')} grants`, full, 's', { is: 'at most', value: 2 }),
  );
}

interface CoreResult {
  readonly perSecond: number;
  readonly cpuMicros: number;
}

/** The grant core without HTTP, including flushed writes, signatures and audit lines. */
async function measureCore(): Promise<void> {
  const run = (folder: BenchFolder, operation: Operation): Promise<CoreResult> =>
    measure(
      LOAD_CORE,
      'grant-core.ts',
      [folder.path, operation, ...[CONCURRENCY, 1, SECONDS].map(String), folder.file('tokens.json')],
      folder.path,
    );
  for (const operation of OPERATIONS) {
    const rounds: { readonly small: CoreResult; readonly large: CoreResult }[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      log(`core, ${operation}, round ${round + 1} of ${ROUNDS}`);
      rounds.push({ small: await run(small, operation), large: await run(large, operation) });
    }
    const aim = { is: 'at least', value: 5_000 } as const;
    figures.push(
      figure(
        `core: ${operation}`,
        rounds.map((round) => round.small.perSecond),
        '/s',
        aim,
      ),
      figure(
        `core: ${operation}, CPU`,
        rounds.map((round) => round.small.cpuMicros),
        'µs',
      ),
      figure(
        `core: ${operation} with ${GRANTS.toLocaleString('en')} grants`,
        rounds.map((round) => round.large.perSecond),
        '/s',
      ),
      figure(
        `core: ${operation}, CPU with ${GRANTS.toLocaleString('en')} grants, relative to ${ACTIVE.toLocaleString('en')}`,
        rounds.map((round) => round.large.cpuMicros / round.small.cpuMicros),
        '×',
        { is: 'at most', value: 1.1 },
      ),
    );
  }
}

/** CPU time of the server per HTTPS request, compared with a baseline server that only signs. */
async function measureHttps(): Promise<void> {
  const programs = {
    baseline: await startBaselineServer(emptyFolder.path, SERVER_CORE),
    small: await startGatehouse({ folder: small.path, entry, core: SERVER_CORE }),
    large: await startGatehouse({ folder: large.path, entry, core: SERVER_CORE }),
  } as const;
  type Name = keyof typeof programs;
  const atStart = { small: anonymousMegabytes(programs.small), large: anonymousMegabytes(programs.large) };
  writeFileSync(emptyFolder.file('tokens.json'), readFileSync(small.file('tokens.json')));
  const run = (name: Name, operation: Operation, seconds: number, warmUpSeconds = 0.5): Promise<LoadResult> => {
    const { port, pid } = programs[name];
    const state = (name === 'baseline' ? emptyFolder : stores[name]).file('tokens.json');
    const load: Load = {
      port,
      pid,
      operation,
      connections: CONNECTIONS,
      warmUpSeconds,
      seconds,
      state,
      ca: (name === 'baseline' ? emptyFolder : stores[name]).file('ca.pem'),
      certificate: (name === 'baseline' ? emptyFolder : stores[name]).file('alice.pem'),
      key: (name === 'baseline' ? emptyFolder : stores[name]).file('alice-key.pem'),
    };
    return measure(LOAD_CORE, 'load.ts', [JSON.stringify(load)], emptyFolder.path);
  };

  for (const operation of OPERATIONS)
    for (const name of Object.keys(programs) as Name[]) {
      log(`HTTPS, ${operation}, warming up ${name}`);
      const until = performance.now() + WARM_UP_SECONDS * 1_000;
      for (let done = 0; done < WARM_UP_REQUESTS && performance.now() < until; )
        done += (await run(name, operation, 5)).count;
    }
  for (const operation of OPERATIONS) {
    const rounds: Record<Name, LoadResult>[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      log(`HTTPS, ${operation}, round ${round + 1} of ${ROUNDS}`);
      rounds.push({
        baseline: await run('baseline', operation, SECONDS),
        small: await run('small', operation, SECONDS),
        large: await run('large', operation, SECONDS),
      });
    }
    const name = `HTTPS: ${operation}`;
    const many = `with ${GRANTS.toLocaleString('en')} grants`;
    figures.push(
      figure(
        `${name}, CPU`,
        rounds.map((round) => round.small.cpuMicros),
        'µs',
      ),
      figure(
        `${name}, CPU of the baseline server`,
        rounds.map((round) => round.baseline.cpuMicros),
        'µs',
      ),
      figure(
        `${name}, CPU relative to the baseline server`,
        rounds.map((round) => round.small.cpuMicros / round.baseline.cpuMicros),
        '×',
        { is: 'at most', value: 1.5 },
      ),
      figure(
        `${name}, CPU ${many}, relative to ${ACTIVE.toLocaleString('en')}`,
        rounds.map((round) => round.large.cpuMicros / round.small.cpuMicros),
        '×',
        { is: 'at most', value: 1.1 },
      ),
      figure(
        `${name}, on one core`,
        rounds.map((round) => round.small.perSecond),
        '/s',
      ),
      figure(
        `${name}, p50 latency`,
        rounds.map((round) => round.small.p50),
        'ms',
      ),
      figure(
        `${name}, p99 latency`,
        rounds.map((round) => round.small.p99),
        'ms',
      ),
    );
  }
  const used = anonymousMegabytes(programs.large) - anonymousMegabytes(programs.small);
  figures.push(
    { name: 'anonymous memory at start, small store', value: atStart.small, unit: 'MB' },
    {
      name: `anonymous memory at start, more with ${GRANTS.toLocaleString('en')} grants`,
      value: atStart.large - atStart.small,
      unit: 'MB',
      aim: { is: 'at most', value: 100 },
    },
    {
      name: `anonymous memory after the load, more with ${GRANTS.toLocaleString('en')} grants`,
      value: used,
      unit: 'MB',
      aim: { is: 'at most', value: 100 },
    },
  );
  for (const program of Object.values(programs)) await program.stop();
}

/** RssAnon: excludes mapped pages of the store's file, which belong to the page cache. */
function anonymousMegabytes({ pid }: Program): number {
  const [, kilobytes = '0'] = /RssAnon:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return (Number(kilobytes) * 1_024) / 1e6;
}
