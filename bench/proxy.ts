/**
 * What the data plane costs: `npm run bench`, with `-- --quick` for a first impression, `-- --only fronts,growth` for
 * some of it, `-- --profile` for where the time of a request goes.
 *
 * The server has one core, load and upstream another. Candidates take turns within a round, so that whatever else the
 * machine does meets all of them; a ratio is taken within its round and the median over the rounds is told.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, globSync, mkdirSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type BenchFolder, makeBenchFolder } from './support/folder.ts';
import { ALGORITHMS, makeForeignTokens } from './support/foreign-tokens.ts';
import * as fronts from './support/fronts.ts';
import { type House, type HouseOptions, openHouse } from './support/house.ts';
import { loadAverage } from './support/linux.ts';
import { costsOf, writeCosts } from './support/profile.ts';
import { type Figure, figure, isMet, median, table } from './support/report.ts';
import { type Case, type Patience, takeRounds } from './support/rounds.ts';
import { buildGo, findTools } from './support/tools.ts';
import { type Bed, type Errand, run, type Sample, speaksH2 } from './support/wrk.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    profile: { type: 'boolean', default: false },
    'no-build': { type: 'boolean', default: false },
    only: { type: 'string' },
    rounds: { type: 'string' },
    seconds: { type: 'string' },
  },
});
const { quick } = given;
const SECONDS = Number(given.seconds ?? (quick ? 2 : 5));
const ROUNDS = Number(given.rounds ?? (quick ? 3 : 5));
/** Where a bound is below ten per cent, chance must be smaller. */
const NARROW_ROUNDS = Number(given.rounds ?? (quick ? 3 : 7));
const MANY = quick ? 100_000 : 1_000_000;
const CONNECTIONS = quick ? 1_000 : 5_000;
const COLD = quick ? 4_000 : 12_000;
const WARM_UP_SECONDS = quick ? 4 : 12;
/** With think time: enough for the server to have something to do, and not so many that requests queue. */
const PACED_PER_SECOND = 1_500;
const CORES = availableParallelism();
const SERVER_CORE = 0;
/** Two workers have a core each only where the load still has its own. */
const PAIR_CORES = CORES >= 4 ? '0,1' : SERVER_CORE;
const LOAD_CORE = CORES >= 4 ? `2-${CORES - 1}` : 1;

const root = join(import.meta.dirname, '..');
const results = join(root, 'bench/results');
const entry = join(root, 'dist/main.js');
const wanted = given.only?.split(',').map((name) => name.trim().toLowerCase());
const isWanted = (group: string, name = ''): boolean =>
  wanted === undefined || wanted.some((word) => group === word || name.toLowerCase().includes(word));
const skipped: string[] = [];
const say = (text: string): void => {
  if (text.startsWith('skipped:')) skipped.push(text.slice('skipped: '.length));
  process.stderr.write(`${text}\n`);
};

interface Row {
  readonly group: string;
  readonly name: string;
  readonly samples: readonly Sample[];
}
const rows: Row[] = [];
const ratios: Figure[] = [];

if (CORES < 2) throw new Error('needs two cores: one for the server, one for load and upstream');
const loadBefore = loadAverage();
const { nginx, wrk, ...more } = findTools(say);
if (nginx === undefined || wrk === undefined)
  throw new Error('needs nginx for the upstream and wrk for the load');
mkdirSync(results, { recursive: true });
if (!given['no-build']) {
  say('building');
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
}

const folders: BenchFolder[] = [];
process.once('exit', () => folders.forEach((folder) => folder.remove()));
const common = await makeBenchFolder();
folders.push(common);
const stage: fronts.Stage = {
  folder: common.path,
  serverCore: SERVER_CORE,
  loadCore: LOAD_CORE,
  nginx,
  ...(more.haproxy !== undefined && { haproxy: more.haproxy }),
};
const upstream = await fronts.startUpstream(stage);
const foreign = makeForeignTokens(common.path, {
  issuer: `http://127.0.0.1:${upstream.port}`,
  count: 100,
  jwksFile: fronts.upstreamFile(stage, 'jwks.json'),
});
const bed: Bed = {
  folder: common.path,
  wrk,
  ...(more.h2load !== undefined && { h2load: more.h2load }),
  loadCore: LOAD_CORE,
  upstreamPid: upstream.pids[0] ?? 0,
};
const patience: Patience = { repeats: quick ? 10 : 60, quietSeconds: quick ? 30 : 300 };

const house = async (options: Partial<HouseOptions> = {}): Promise<House> => {
  const opened = await openHouse({ upstream: upstream.port, core: SERVER_CORE, entry, ...options });
  folders.push(opened.folder);
  return opened;
};

/** A server with the tokens it is asked with. */
interface Contender {
  readonly name: string;
  readonly front: fronts.Front;
  readonly tokens: string;
  readonly tidy?: () => void;
}
const asContender = (name: string, opened: House): Contender => ({
  name,
  front: opened,
  tokens: opened.folder.file('tokens'),
  tidy: () => opened.tidy(),
});

const errandOf = ({ front, tokens }: Contender, asked: Partial<Errand> = {}): Errand => ({
  port: front.port,
  pids: front.pids,
  tokens,
  path: '/files/1k',
  ...asked,
});
const caseOf = (contender: Contender, asked?: Partial<Errand>, name = contender.name): Case => ({
  name,
  errand: () => errandOf(contender, asked),
  ...(contender.tidy && { tidy: contender.tidy }),
});

/** Starts one, unless it was not asked for or cannot be had. */
async function contend(
  into: Contender[],
  group: string,
  name: string,
  start: () => Promise<Contender | undefined>,
): Promise<void> {
  if (!isWanted(group, name)) return;
  try {
    const contender = await start();
    if (contender === undefined) return;
    say(`started ${name}`);
    into.push(contender);
  } catch (error) {
    say(`skipped: ${name}: ${(error as Error).message}`);
  }
}

/** The compiler is done before the first round. A server that cannot answer shows it here. */
async function warmUp(contenders: readonly Contender[]): Promise<void> {
  for (const one of contenders) {
    say(`warming up ${one.name}`);
    try {
      await run(bed, errandOf(one), WARM_UP_SECONDS);
    } catch (error) {
      say(`  ${one.name}: ${(error as Error).message}`);
    }
    one.tidy?.();
  }
}

async function measure(
  group: string,
  cases: readonly Case[],
  rounds: number,
): Promise<Map<string, Sample[]>> {
  say(`${group}: ${cases.length} in ${rounds} rounds of ${SECONDS} s`);
  const samples = await takeRounds(cases, { bed, rounds, seconds: SECONDS, say, patience });
  for (const [name, own] of samples) rows.push({ group, name, samples: own });
  return samples;
}

type Of = (sample: Sample) => number;
const cpu: Of = ({ cpuMicros }) => cpuMicros;

function compare(
  samples: ReadonlyMap<string, readonly Sample[]>,
  [name, base]: readonly [string, string],
  aim?: Figure['aim'],
  [label, of]: readonly [string, Of] = ['CPU', cpu],
): void {
  const [own, other] = [samples.get(name), samples.get(base)];
  if (own === undefined || other === undefined) return;
  const each = own.flatMap((sample, round) => {
    const beside = other[round];
    return beside === undefined ? [] : [of(sample) / of(beside)];
  });
  ratios.push(figure(`${label}: ${name} / ${base}`, each, '×', aim));
}

const stopAll = async (contenders: readonly Contender[]): Promise<void> => {
  for (const { front } of contenders) await front.stop();
};

if (given.profile) await profile();
else {
  await measureFronts();
  await measureGrowth();
  await measureConnections();
  writeResults();
}
await upstream.stop();

async function measureFronts(): Promise<void> {
  const all: Contender[] = [];
  const foreignly = (
    name: string,
    front: fronts.Front,
    algorithm: (typeof ALGORITHMS)[number],
  ): Contender => ({
    name,
    front,
    tokens: foreign.tokens(algorithm),
  });
  const groups = ['fronts', 'bodies', 'posts', 'h2'];
  const inSome = (name: string, start: () => Promise<Contender | undefined>): Promise<void> =>
    contend(all, groups.find((group) => isWanted(group)) ?? '', name, start);
  const inFronts = (name: string, start: () => Promise<Contender | undefined>): Promise<void> =>
    contend(all, 'fronts', name, start);

  let coldFile = 0;
  const coldFiles = 2 * ROUNDS;
  let main: House | undefined;
  await inSome('gatehouse', async () => {
    main = await house({ cold: { files: coldFiles, each: COLD } });
    return asContender('gatehouse', main);
  });
  await inFronts('gatehouse, 2 workers', async () =>
    asContender('gatehouse, 2 workers', await house({ workers: 2, core: PAIR_CORES })),
  );
  await inSome('nginx', async () =>
    foreignly('nginx', await fronts.nginxPlain(stage, upstream.port), 'ES256'),
  );
  await inFronts('nginx + auth_request to return 204', async () =>
    foreignly(
      'nginx + auth_request to return 204',
      await fronts.nginxAuthRequest(stage, upstream.port),
      'ES256',
    ),
  );
  await inFronts('nginx + auth_request to gatehouse', async () => {
    const asked = await house({ asked: true });
    const front = await fronts.nginxWithGatehouse(stage, upstream.port, asked, asked.folder.file('ca.pem'));
    return { ...asContender('nginx + auth_request to gatehouse', asked), front };
  });
  if (more.haproxy !== undefined) {
    await inSome('HAProxy', async () =>
      foreignly('HAProxy', await fronts.haproxy(stage, upstream.port), 'ES256'),
    );
    for (const algorithm of ALGORITHMS) {
      const name = `HAProxy, JWT ${algorithm}`;
      await inFronts(name, async () =>
        foreignly(
          name,
          await fronts.haproxy(stage, upstream.port, { algorithm, tokens: foreign }),
          algorithm,
        ),
      );
    }
  }
  await inSome('http-proxy-3', async () =>
    foreignly('http-proxy-3', await fronts.httpProxy3(stage, upstream.port), 'ES256'),
  );
  await inFronts('oauth2-proxy, JWT RS256', async () => {
    const program = buildGo('oauth2-proxy', say);
    if (program === undefined) return undefined;
    const front = await fronts.oauth2Proxy(stage, program, upstream.port, foreign);
    return foreignly('oauth2-proxy, JWT RS256', front, 'RS256');
  });
  await inFronts('Oathkeeper, JWT RS256', async () => {
    const program = buildGo('oathkeeper', say);
    if (program === undefined) return undefined;
    const front = await fronts.oathkeeper(stage, program, upstream.port, foreign);
    return foreignly('Oathkeeper, JWT RS256', front, 'RS256');
  });
  if (all.length === 0) return;
  await warmUp(all);

  const few = all.filter(({ name }) => ['gatehouse', 'nginx', 'HAProxy', 'http-proxy-3'].includes(name));
  if (isWanted('fronts') || all.length > few.length) {
    const ours = all.find(({ name }) => name === 'gatehouse');
    const cold: Case[] =
      ours === undefined || main === undefined
        ? []
        : [
            {
              ...caseOf(ours, {}, 'gatehouse, cold tokens'),
              errand: () =>
                errandOf(ours, { cold: main?.folder.file(`cold-${coldFile++ % coldFiles}`) ?? '' }),
            },
          ];
    const samples = await measure('fronts', [...all.map((one) => caseOf(one)), ...cold], ROUNDS);
    compare(samples, ['gatehouse', 'http-proxy-3'], { is: 'at most', value: 0.6 });
    compare(samples, ['gatehouse', 'HAProxy, JWT ES256'], { is: 'at most', value: 1 });
    compare(samples, ['gatehouse', 'HAProxy, JWT RS256']);
    compare(samples, ['gatehouse', 'HAProxy']);
    compare(samples, ['gatehouse', 'nginx']);
    compare(samples, ['gatehouse', 'nginx + auth_request to return 204']);
    compare(samples, ['gatehouse', 'nginx + auth_request to gatehouse']);
    compare(samples, ['gatehouse', 'oauth2-proxy, JWT RS256']);
    compare(samples, ['gatehouse', 'Oathkeeper, JWT RS256']);
    compare(samples, ['gatehouse, cold tokens', 'gatehouse']);
    compare(samples, ['gatehouse, cold tokens', 'HAProxy, JWT ES256']);
    // 1.8 times the requests on twice the cores is 2 / 1.8 of the work for each.
    compare(samples, ['gatehouse, 2 workers', 'gatehouse'], { is: 'at most', value: 2 / 1.8 });
    if (PAIR_CORES !== SERVER_CORE)
      compare(samples, ['gatehouse, 2 workers', 'gatehouse'], { is: 'at least', value: 1.8 }, [
        'requests per second',
        ({ perSecond }) => perSecond,
      ]);
    else say('skipped: requests per second of two workers: there is no third core for the load');
  }
  for (const [group, label, asked] of [
    ['bodies', 'GET 100 KiB', { path: '/files/100k' }],
    ['posts', 'POST 1 KiB', { method: 'POST', path: '/reports/1k', bodyBytes: 1_024 }],
    ['h2', 'HTTP/2', { protocol: 'h2' }],
  ] as const) {
    if (!isWanted(group)) continue;
    const able: Contender[] = [];
    for (const one of few) {
      if (group !== 'h2') able.push(one);
      else if (more.h2load !== undefined && (await speaksH2(one.front.port))) able.push(one);
      else say(`skipped: HTTP/2 of ${one.name}: its listener does not offer it`);
    }
    if (able.length === 0) continue;
    const named = (name: string): string => `${name}, ${label}`;
    const cases = able.map((one) => caseOf(one, asked, named(one.name)));
    const samples = await measure(group, cases, Math.min(3, ROUNDS));
    compare(samples, [named('gatehouse'), named('http-proxy-3')]);
    compare(samples, [named('gatehouse'), named('nginx')]);
    compare(samples, [named('gatehouse'), named('HAProxy')]);
  }
  await stopAll(all);
}

/** One thing grows, everything else stays as it is in the first. */
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
  const all: Contender[] = [];
  for (const [name, options] of kinds) {
    say(`filling ${name}`);
    all.push(asContender(name, await house(options)));
  }
  await warmUp(all);
  const samples = await measure(
    'growth',
    all.map((one) => caseOf(one)),
    NARROW_ROUNDS,
  );
  for (const [name] of kinds.slice(1)) compare(samples, [name, base], { is: 'at most', value: 1.05 });
  await stopAll(all);
}

/** The same number of requests in a second, from few connections and from many. */
async function measureConnections(): Promise<void> {
  if (!isWanted('connections')) return;
  const one = asContender('gatehouse', await house());
  await warmUp([one]);
  const from = (connections: number): Case =>
    caseOf(
      one,
      {
        connections,
        thinkMilliseconds: Math.round((connections / PACED_PER_SECOND) * 1_000),
        // Each connection begins with a handshake, and those are not what is measured.
        warmSeconds: 2 + connections / 250,
      },
      `gatehouse, ${connections.toLocaleString('en')} connections`,
    );
  const [few, lots] = [from(64), from(CONNECTIONS)];
  const samples = await measure('connections', [few, lots], 3);
  compare(samples, [lots.name, few.name], { is: 'at most', value: 1.25 });
  await stopAll([one]);
}

/** Where the time of a request goes: the profile itself lies beside the results. */
async function profile(): Promise<void> {
  const opened = await house({ nodeOptions: ['--cpu-prof', '--cpu-prof-dir', common.path] });
  const one = asContender('gatehouse', opened);
  await run(bed, errandOf(one), WARM_UP_SECONDS);
  await opened.stop();
  for (const file of globSync(join(common.path, '*.cpuprofile'))) {
    const { functions, parts } = costsOf(file, root);
    process.stdout.write(`by part\n${writeCosts(parts)}\n\nby function\n${writeCosts(functions)}\n`);
    copyFileSync(file, join(results, 'proxy.cpuprofile'));
  }
}

function writeResults(): void {
  const date = new Date().toISOString();
  const result = {
    date,
    machine: {
      cpu: cpus()[0]?.model,
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
    ratios: ratios.map((one) => ({ ...one, met: isMet(one) })),
    skipped,
  };
  const file = join(results, `proxy-${date.replaceAll(':', '')}.json`);
  writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
  copyFileSync(file, join(results, 'proxy.json'));
  process.stdout.write(`${rowTable()}\n\n${table(ratios)}\n`);
  for (const line of skipped) process.stdout.write(`not measured: ${line}\n`);
  say(`load average ${loadBefore} before, ${loadAverage()} after; written to ${file}`);
}

/** Absolute figures: to be compared within one run only. */
function rowTable(): string {
  const spread = (values: readonly number[], digits: number): string =>
    `${median(values).toFixed(digits)} (${Math.min(...values).toFixed(digits)} – ${Math.max(...values).toFixed(digits)})`;
  const lines = rows.map(({ group, name, samples }) => {
    const of = (get: Of): number => median(samples.map(get));
    const full =
      of(({ busy }) => busy) >= 0.9 * (name.includes('2 workers') && PAIR_CORES !== SERVER_CORE ? 2 : 1);
    return [
      group,
      name,
      spread(samples.map(cpu), 1),
      `${full ? '' : '≥ '}${Math.round(of(({ perSecond }) => perSecond)).toLocaleString('en')}`,
      of(({ p50 }) => p50).toFixed(1),
      of(({ p99 }) => p99).toFixed(1),
      of((sample) => sample.residentMegabytes).toFixed(0),
      `${samples.filter(({ others }) => others > 0.1).length}/${samples.length}`,
    ].join(' | ');
  });
  return [
    '| group | candidate | CPU µs per request (lowest – highest) | requests/s on one core | p50 ms | p99 ms | RSS MB | disturbed |',
    '|---|---|---|---|---|---|---|---|',
    ...lines.map((line) => `| ${line} |`),
  ].join('\n');
}
