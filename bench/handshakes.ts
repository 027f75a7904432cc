/**
 * What a TLS connection costs before anything is asked on it: `npm run bench:handshakes`, with `-- --quick` for a first
 * impression. Whole and resumed handshakes, with and without a client certificate, beside HAProxy; and clients that come back
 * to two workers, with tickets of each process and with shared ones.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { SettingsInput } from '../src/config/schema.ts';
import { type BenchFolder, makeBenchFolder } from './support/folder.ts';
import type { Front } from './support/fronts.ts';
import { type Errand, handshakingHaproxy, type Sample, shakeHands } from './support/handshaking.ts';
import { loadAverage, treeOf } from './support/linux.ts';
import { serveProgram } from './support/programs.ts';
import { type Figure, figure, table } from './support/report.ts';
import { findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    rounds: { type: 'string' },
    connections: { type: 'string' },
  },
});
const ROUNDS = Number(given.rounds ?? (given.quick ? 3 : 9));
const CONNECTIONS = Number(given.connections ?? (given.quick ? 300 : 1_000));
const WARM_UP = 300;
const SERVER_CORE = 0;
const LOAD_CORE = 1;
/** More of one core than this, used by others, spoils a sample. */
const DISTURBED = 0.1;

const root = join(import.meta.dirname, '..');
const say = (text: string): void => void process.stderr.write(`${text}\n`);
// Before this process keeps to one of them.
const cores = availableParallelism();
if (cores < 2) throw new Error('needs two cores: one for the server, one for the clients');
// Type stripping is done when a program is loaded: its sources run as the built program does.
const entry = join(root, 'src/main.ts');
execFileSync('taskset', ['-cp', String(LOAD_CORE), String(process.pid)], { stdio: 'ignore' });
const loadBefore = loadAverage();

const folders: BenchFolder[] = [];
const fronts: Front[] = [];
process.once('exit', () => {
  for (const folder of folders) folder.remove();
});
async function gatehouse(listen: SettingsInput['listen'] = {}): Promise<{ front: Front; folder: string }> {
  const folder = await makeBenchFolder((settings) => ({
    ...settings,
    listen: {
      port: 0,
      ...listen,
      tls: { certificate: 'server.pem', key: 'server-key.pem', ...listen.tls },
    },
  }));
  folders.push(folder);
  const program = await serveProgram({ folder: folder.path, entry, core: SERVER_CORE });
  const front: Front = {
    port: program.port,
    pids: treeOf(program.pid),
    stop: () => program.stop(),
  };
  fronts.push(front);
  return { front, folder: folder.path };
}

const two = (sessionTickets: 'process' | 'shared') =>
  gatehouse({ workers: 2, tls: { certificate: 'server.pem', key: 'server-key.pem', sessionTickets } });

say('starting');
const one = await gatehouse();
const servers: Record<string, { front: Front; folder: string }> = { gatehouse: one };
const { haproxy } = findTools(say);
if (haproxy !== undefined) {
  const front = await handshakingHaproxy(haproxy, one.folder, SERVER_CORE);
  fronts.push(front);
  servers['HAProxy'] = { front, folder: one.folder };
}
const cases: { readonly name: string; readonly errand: Errand }[] = Object.entries(servers).flatMap(
  ([server, where]) =>
    (['TLSv1.3', 'TLSv1.2'] as const).flatMap((version) =>
      [false, true].flatMap((certified) =>
        (['full', 'resumed'] as const).map((kind) => ({
          name: `${server}, ${version}, ${certified ? 'client certificate' : 'no client certificate'}, ${kind}`,
          errand: { ...where, version, certified, kind, group: 'X25519' as const },
        })),
      ),
    ),
);
// What browsers and Node offer first by now, and the HAProxy of many distributions does not have yet.
for (const kind of ['full', 'resumed'] as const)
  cases.push({
    name: `gatehouse, TLSv1.3, client certificate, X25519MLKEM768, ${kind}`,
    errand: { ...one, version: 'TLSv1.3', group: 'X25519MLKEM768', certified: true, kind },
  });
for (const tickets of ['process', 'shared'] as const)
  cases.push({
    name: `gatehouse, 2 workers, TLSv1.3, client certificate, clients that come back, sessionTickets: ${tickets}`,
    errand: {
      ...(await two(tickets)),
      version: 'TLSv1.3',
      group: 'X25519',
      certified: true,
      kind: 'returning',
    },
  });

for (const { name, errand } of cases) {
  say(`warming up: ${name}`);
  await shakeHands(errand, WARM_UP);
}
const samples = new Map<string, Sample[]>(cases.map(({ name }) => [name, []]));
for (let round = 0; round < ROUNDS; round += 1)
  for (const { name, errand } of cases) {
    const sample = await shakeHands(errand, CONNECTIONS);
    samples.get(name)?.push(sample);
    say(
      `  round ${round + 1}/${ROUNDS} ${name}: ${sample.cpuMicros.toFixed(0)} µs, ${(sample.resumed * 100).toFixed(0)} % resumed, others ${sample.others.toFixed(2)} of a core`,
    );
  }
await Promise.all(fronts.map((front) => front.stop()));

const of = (name: string): readonly Sample[] => samples.get(name) ?? [];
const ratio = (name: string, over: string): Figure =>
  figure(
    `${name} / ${over.split(', ').at(-1)}`,
    of(name).map(({ cpuMicros }, round) => cpuMicros / (of(over)[round]?.cpuMicros ?? Number.NaN)),
    '×',
  );
const costs = cases.map(({ name }) =>
  figure(
    name,
    of(name).map(({ cpuMicros }) => cpuMicros),
    'µs',
  ),
);
const ratios = cases
  .filter(({ errand: { kind } }) => kind === 'resumed')
  .map(({ name }) => ratio(name, name.replace(/resumed$/, 'full')));
const back = cases.filter(({ errand: { kind } }) => kind === 'returning').map(({ name }) => name);
const [own = '', shared = ''] = back;
const figures = [
  ...costs,
  ...ratios,
  ...back.map((name) =>
    figure(
      `${name}, resumed`,
      of(name).map(({ resumed }) => resumed * 100),
      '%',
    ),
  ),
  ratio(shared, own),
];
const all = [...samples.values()].flat();
const disturbed = all.filter(({ others }) => others > DISTURBED).length;
process.stdout.write(`${table(figures)}\n\n${disturbed} of ${all.length} samples disturbed\n`);

const result = {
  date: new Date().toISOString(),
  machine: {
    cpu: cpus()[0]?.model,
    cores,
    arch: arch(),
    node: process.version,
    openssl: process.versions.openssl,
    loadBefore,
    loadAfter: loadAverage(),
  },
  settings: { rounds: ROUNDS, connections: CONNECTIONS },
  disturbed: { samples: disturbed, of: all.length },
  figures,
};
mkdirSync(join(root, 'bench/results'), { recursive: true });
const file = join(root, 'bench/results', `handshakes-${result.date.replaceAll(':', '')}.json`);
writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
copyFileSync(file, join(root, 'bench/results/handshakes.json'));
