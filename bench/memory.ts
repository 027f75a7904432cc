/**
 * Measures what a server occupies: after start-up, under load, after the load, and after many connections were closed.
 * `npm run bench:memory`. All servers run at the same time, are loaded one after another, and are read at the same moments.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { MEMORY_ENVIRONMENT } from '../test/support/memory-environment.ts';
import { type Candidate, createLoadRun, toCandidate } from './support/candidates.ts';
import { type BenchFolder, createBenchFolder } from './support/folder.ts';
import { type BenchGatewayOptions, startBenchGateway } from './support/gateway.ts';
import { startCaddyProxy, startEnvoyProxy, startTraefikProxy } from './support/gateway-peers.ts';
import { openConnections } from './support/idle-connections.ts';
import { listProcessTree, loadAverage, readMemory } from './support/linux.ts';
import type { LoadEnvironment } from './support/load-run.ts';
import { startNginxPlain, startUpstream, upstreamFilePath } from './support/nginx.ts';
import { startRedis } from './support/redis-bench.ts';
import { runLoad } from './support/run-load.ts';
import type { BenchEnvironment, BenchServer } from './support/servers.ts';
import { measureStarts } from './support/starts.ts';
import { startOauth2Proxy } from './support/third-party-servers.ts';
import { type Algorithm, createThirdPartyTokens } from './support/third-party-tokens.ts';
import { buildGo, findTools } from './support/tools.ts';

const { values: given } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    'no-build': { type: 'boolean', default: false },
    only: { type: 'string' },
    /** A built program of another commit, whose start-up is compared. */
    before: { type: 'string' },
  },
});
const IDLE_SECONDS = given.quick ? 10 : 60;
const LOAD_SECONDS = given.quick ? 4 : 10;
/** Longer than the time after which an idle gatehouse returns memory. */
const QUIET_SECONDS = given.quick ? 30 : 150;
const CONNECTIONS = 2_000;
const SERVER_CORE = 0;
const LOAD_CORE = 1;
const root = join(import.meta.dirname, '..');
const entry = join(root, 'dist/main.js');
const log = (text: string): void => void process.stderr.write(`${text}\n`);

const loadBefore = loadAverage();
const { nginx, wrk, h2load } = findTools(log);
if (nginx === undefined || wrk === undefined) throw new Error('needs nginx for the upstream and wrk for the load');
if (!given['no-build'])
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });

const folders: BenchFolder[] = [];
process.once('exit', () => folders.forEach((folder) => folder.remove()));
const common = await createBenchFolder();
folders.push(common);
const environment: BenchEnvironment = { folder: common.path, serverCore: SERVER_CORE, loadCore: LOAD_CORE, nginx };
const upstream = await startUpstream(environment);
const redis = await startRedis(LOAD_CORE, common.file('redis.log'));
const tokens = createThirdPartyTokens(common.path, {
  issuer: `http://127.0.0.1:${upstream.port}`,
  count: 100,
  jwksFile: upstreamFilePath(environment, 'jwks.json'),
});
const loadEnvironment: LoadEnvironment = {
  folder: common.path,
  wrk,
  ...(h2load !== undefined && { h2load }),
  loadCore: LOAD_CORE,
  upstreamPid: upstream.pids[0] ?? 0,
};

/** As in the image: jemalloc instead of the settings for glibc. */
const IMAGE_ENVIRONMENT = {
  ...Object.fromEntries(Object.keys(MEMORY_ENVIRONMENT).map((name) => [name, ''])),
  NODE_OPTIONS: MEMORY_ENVIRONMENT.NODE_OPTIONS,
  LD_PRELOAD: 'libjemalloc.so.2',
  MALLOC_CONF: 'narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0',
};

async function startGateway(name: string, options: Partial<BenchGatewayOptions> = {}): Promise<Candidate> {
  const gateway = await startBenchGateway({ upstream: upstream.port, core: SERVER_CORE, entry, ...options });
  folders.push(gateway.folder);
  return toCandidate(name, gateway);
}
const startPeer =
  (start: () => Promise<BenchServer>, algorithm: Algorithm = 'RS256') =>
  async (name: string): Promise<Candidate> => ({ name, front: await start(), tokens: tokens.tokens(algorithm) });

const useImage = { createEnvironment: () => IMAGE_ENVIRONMENT };
const STARTS: Readonly<Record<string, (name: string) => Promise<Candidate>>> = {
  gatehouse: (name) => startGateway(name),
  'gatehouse, image': (name) => startGateway(name, useImage),
  'gatehouse, image, 2 workers': (name) => startGateway(name, { ...useImage, workers: 2 }),
  nginx: startPeer(() => startNginxPlain(environment, upstream.port)),
  Envoy: startPeer(() => startEnvoyProxy(environment, upstream.port)),
  'Envoy, JWT ES256': startPeer(() => startEnvoyProxy(environment, upstream.port, tokens), 'ES256'),
  Traefik: startPeer(() => startTraefikProxy(environment, upstream.port)),
  Caddy: startPeer(() => startCaddyProxy(environment, upstream.port)),
  'oauth2-proxy, JWT RS256': startPeer(() =>
    startOauth2Proxy(environment, buildGo('oauth2-proxy'), upstream.port, tokens),
  ),
};
/** Grants are in Redis, so it has no tokens for the load. */
const IDLE_ONLY: typeof STARTS = {
  'gatehouse, Redis': (name) => startGateway(name, { store: { type: 'redis', url: redis.url } }),
  'gatehouse, image, Redis': (name) =>
    startGateway(name, { ...useImage, store: { type: 'redis', url: `${redis.url}/1` } }),
};

interface Reading {
  readonly anonymous: number;
  readonly resident: number;
}
const readings = new Map<string, Record<string, Reading>>();
function read({ name, front }: Candidate, moment: string): void {
  const memory = readMemory(front.pids.flatMap((pid) => listProcessTree(pid)).filter(isFirst));
  readings.set(name, { ...readings.get(name), [moment]: memory });
  log(`  ${name}, ${moment}: ${memory.anonymous.toFixed(1)} MB, resident ${memory.resident.toFixed(1)} MB`);
}
const isFirst = <T>(value: T, index: number, all: readonly T[]): boolean => all.indexOf(value) === index;

const all: Candidate[] = [];
for (const [name, start] of Object.entries({ ...STARTS, ...IDLE_ONLY })) {
  if (given.only !== undefined && !given.only.split(',').includes(name)) continue;
  try {
    all.push(await start(name));
  } catch (error) {
    log(`skipped: ${name}: ${(error as Error).message.slice(0, 200)}`);
  }
}
await sleep(IDLE_SECONDS * 1_000);
for (const candidate of all) read(candidate, 'idle');

const loaded = all.filter(({ name }) => Object.hasOwn(STARTS, name));
const HTTP2 = { generator: 'h2load, HTTP/2', connections: 16, streams: 10 } as const;
for (const candidate of loaded) {
  const load = async (moment: string, overrides: Parameters<typeof createLoadRun>[1]): Promise<void> => {
    try {
      const { cpuMicros } = await runLoad(loadEnvironment, createLoadRun(candidate, overrides), LOAD_SECONDS);
      log(`  ${candidate.name}, ${moment}: ${cpuMicros.toFixed(1)} µs per request`);
    } catch (error) {
      log(`  ${candidate.name}, ${moment}: ${(error as Error).message.slice(0, 200)}`);
    }
    read(candidate, moment);
  };
  await load('HTTP/1.1', { connections: 64 });
  if (h2load !== undefined) await load('HTTP/2', HTTP2);
}
await sleep(QUIET_SECONDS * 1_000);
for (const candidate of loaded) read(candidate, 'after the load');

for (const candidate of loaded) {
  for (const connection of await openConnections(candidate, CONNECTIONS)) connection.close();
  log(`  ${candidate.name}: ${CONNECTIONS} connections opened and closed`);
}
await sleep(QUIET_SECONDS * 1_000);
for (const candidate of loaded) read(candidate, 'after connections');
for (const { front } of all) await front.stop();

const programs = { gatehouse: entry, ...(given.before !== undefined && { before: given.before }) };
const starts = await measureStarts({ programs, upstream: upstream.port, rounds: given.quick ? 3 : 9, log });
await redis.stop();
await upstream.stop();

const MOMENTS = ['idle', 'HTTP/1.1', 'HTTP/2', 'after the load', 'after connections'];
const format = (reading: Reading | undefined): string =>
  reading === undefined ? '' : `${reading.anonymous.toFixed(0)} (${reading.resident.toFixed(0)})`;
const lines = [
  `| anonymous (resident) MB | ${MOMENTS.join(' | ')} |`,
  `|---|${MOMENTS.map(() => '---|').join('')}`,
  ...[...readings].map(
    ([name, values]) => `| ${name} | ${MOMENTS.map((moment) => format(values[moment])).join(' | ')} |`,
  ),
  '',
  '| start | ready, ms | CPU, ms | first request, ms | a later one, ms |',
  '|---|---|---|---|---|',
  ...Object.entries(starts).map(
    ([name, { ready, cpu, first, later }]) =>
      `| ${name} | ${ready.toFixed(0)} | ${cpu.toFixed(0)} | ${first.toFixed(1)} | ${later.toFixed(1)} |`,
  ),
];
process.stdout.write(`${lines.join('\n')}\n`);
const results = join(root, 'bench/results');
mkdirSync(results, { recursive: true });
writeFileSync(
  join(results, 'memory.json'),
  `${JSON.stringify({ loadBefore, readings: Object.fromEntries(readings), starts }, null, 2)}\n`,
);
