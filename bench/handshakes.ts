/**
 * Measures TLS handshakes: `npm run bench:handshakes`, or a rough estimate with `-- --quick`. Full and resumed handshakes,
 * with and without a client certificate, compared with HAProxy; and clients that return to two workers, with tickets per
 * process and with shared tickets.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { arch, availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { SettingsInput } from '../src/config/schema.ts';
import { type BenchFolder, createBenchFolder } from './support/folder.ts';
import { type HandshakeRun, measureHandshakes, type Sample, startHandshakeHaproxy } from './support/handshakes.ts';
import { listProcessTree, loadAverage } from './support/linux.ts';
import { startGatehouse } from './support/programs.ts';
import { type Figure, figure, table } from './support/report.ts';
import type { BenchServer } from './support/servers.ts';
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
/** A sample is disturbed if other processes used more than this share of one core. */
const MAX_OTHER_CPU = 0.1;

const root = join(import.meta.dirname, '..');
const log = (text: string): void => void process.stderr.write(`${text}\n`);
// Read before this process is pinned to one core.
const cores = availableParallelism();
if (cores < 2) throw new Error('needs two cores: one for the server, one for the clients');
// Types are stripped when a module is loaded, so the sources run as fast as the built program.
const entry = join(root, 'src/main.ts');
execFileSync('taskset', ['-cp', String(LOAD_CORE), String(process.pid)], { stdio: 'ignore' });
const loadBefore = loadAverage();

const folders: BenchFolder[] = [];
const startedServers: BenchServer[] = [];
process.once('exit', () => {
  for (const folder of folders) folder.remove();
});
async function startServer(listen: SettingsInput['listen'] = {}): Promise<{ server: BenchServer; folder: string }> {
  const folder = await createBenchFolder((settings) => ({
    ...settings,
    listen: {
      port: 0,
      ...listen,
      tls: { certificate: 'server.pem', key: 'server-key.pem', ...listen.tls },
    },
  }));
  folders.push(folder);
  const program = await startGatehouse({ folder: folder.path, entry, core: SERVER_CORE });
  const server: BenchServer = {
    port: program.port,
    pids: listProcessTree(program.pid),
    stop: () => program.stop(),
  };
  startedServers.push(server);
  return { server, folder: folder.path };
}

const startTwoWorkers = (sessionTickets: 'process' | 'shared') =>
  startServer({ workers: 2, tls: { certificate: 'server.pem', key: 'server-key.pem', sessionTickets } });

log('starting');
const oneProcess = await startServer();
const targets: Record<string, { server: BenchServer; folder: string }> = { gatehouse: oneProcess };
const { haproxy } = findTools(log);
if (haproxy !== undefined) {
  const server = await startHandshakeHaproxy(haproxy, oneProcess.folder, SERVER_CORE);
  startedServers.push(server);
  targets['HAProxy'] = { server, folder: oneProcess.folder };
}
const cases: { readonly name: string; readonly run: HandshakeRun }[] = Object.entries(targets).flatMap(
  ([targetName, target]) =>
    (['TLSv1.3', 'TLSv1.2'] as const).flatMap((version) =>
      [false, true].flatMap((hasCertificate) =>
        (['full', 'resumed'] as const).map((kind) => ({
          name: `${targetName}, ${version}, ${hasCertificate ? 'client certificate' : 'no client certificate'}, ${kind}`,
          run: { ...target, version, hasCertificate, kind, group: 'X25519' as const },
        })),
      ),
    ),
);
// Browsers and Node offer this group first; HAProxy in many distributions does not support it yet.
for (const kind of ['full', 'resumed'] as const)
  cases.push({
    name: `gatehouse, TLSv1.3, client certificate, X25519MLKEM768, ${kind}`,
    run: { ...oneProcess, version: 'TLSv1.3', group: 'X25519MLKEM768', hasCertificate: true, kind },
  });
for (const tickets of ['process', 'shared'] as const)
  cases.push({
    name: `gatehouse, 2 workers, TLSv1.3, client certificate, returning clients, sessionTickets: ${tickets}`,
    run: {
      ...(await startTwoWorkers(tickets)),
      version: 'TLSv1.3',
      group: 'X25519',
      hasCertificate: true,
      kind: 'returning',
    },
  });

for (const { name, run } of cases) {
  log(`warming up: ${name}`);
  await measureHandshakes(run, WARM_UP);
}
const samples = new Map<string, Sample[]>(cases.map(({ name }) => [name, []]));
for (let round = 0; round < ROUNDS; round += 1)
  for (const { name, run } of cases) {
    const sample = await measureHandshakes(run, CONNECTIONS);
    samples.get(name)?.push(sample);
    log(
      `  round ${round + 1}/${ROUNDS} ${name}: ${sample.cpuMicros.toFixed(0)} µs, ${(sample.resumed * 100).toFixed(0)} % resumed, others ${sample.others.toFixed(2)} of a core`,
    );
  }
await Promise.all(startedServers.map((server) => server.stop()));

const samplesOf = (name: string): readonly Sample[] => samples.get(name) ?? [];
const ratio = (name: string, over: string): Figure =>
  figure(
    `${name} / ${over.split(', ').at(-1)}`,
    samplesOf(name).map(({ cpuMicros }, round) => cpuMicros / (samplesOf(over)[round]?.cpuMicros ?? Number.NaN)),
    '×',
  );
const costs = cases.map(({ name }) =>
  figure(
    name,
    samplesOf(name).map(({ cpuMicros }) => cpuMicros),
    'µs',
  ),
);
const ratios = cases
  .filter(({ run: { kind } }) => kind === 'resumed')
  .map(({ name }) => ratio(name, name.replace(/resumed$/, 'full')));
const returning = cases.filter(({ run: { kind } }) => kind === 'returning').map(({ name }) => name);
const [processTickets = '', sharedTickets = ''] = returning;
const figures = [
  ...costs,
  ...ratios,
  ...returning.map((name) =>
    figure(
      `${name}, resumed`,
      samplesOf(name).map(({ resumed }) => resumed * 100),
      '%',
    ),
  ),
  ratio(sharedTickets, processTickets),
];
const all = [...samples.values()].flat();
const disturbed = all.filter(({ others }) => others > MAX_OTHER_CPU).length;
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
