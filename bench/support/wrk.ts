import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { cpuSeconds, machineTimes, ownCpuSeconds, residentMegabytes } from './linux.ts';
import { launch, stopProcess } from './programs.ts';
import { median } from './report.ts';

/** The load of one run. */
export interface LoadRun {
  readonly port: number;
  /** The processes whose CPU time is measured. */
  readonly pids: readonly number[];
  /** File with one token per line, used in rotation. */
  readonly tokens: string;
  /** File with tokens that are each used once; the window ends when all are used. */
  readonly cold?: string;
  readonly method?: 'GET' | 'POST';
  readonly path: string;
  readonly bodyBytes?: number;
  readonly protocol?: 'h1' | 'h2';
  readonly connections?: number;
  /** Average wait of each connection between two requests. */
  readonly thinkMilliseconds?: number;
  /** Load before the measured window. */
  readonly warmSeconds?: number;
}

/** The result of one run. */
export interface Sample {
  readonly cpuMicros: number;
  readonly perSecond: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  readonly residentMegabytes: number;
  /** The server's utilization of its core. Below 1, it did not limit the requests per second. */
  readonly busy: number;
  /** CPU used by other processes and by other virtual machines, as a share of one core. */
  readonly others: number;
}

export interface LoadEnvironment {
  readonly folder: string;
  readonly wrk: string;
  readonly h2load?: string;
  readonly loadCore: number | string;
  readonly upstreamPid: number;
}

const script = join(import.meta.dirname, 'load.lua');
const WARM_SECONDS = 1;

/** Runs the load against one server. Throws if a response is not 2xx. */
export async function runLoad(environment: LoadEnvironment, run: LoadRun, seconds: number): Promise<Sample> {
  const machine = machineTimes();
  const measuredCpu = (): number => cpuSeconds([...run.pids, environment.upstreamPid]) + ownCpuSeconds();
  const [from, at] = [measuredCpu(), performance.now()];
  const measured = await (run.protocol === 'h2' ? runH2load : runWrk)(environment, run, seconds);
  const wall = (performance.now() - at) / 1_000;
  const { busy, stolen } = machineTimes();
  return {
    ...measured,
    residentMegabytes: residentMegabytes(run.pids),
    others: (Math.max(0, busy - machine.busy - (measuredCpu() - from)) + stolen - machine.stolen) / wall,
  };
}

type Measured = Omit<Sample, 'others' | 'residentMegabytes'>;

interface WrkSummary {
  readonly p50: number;
  readonly p99: number;
  readonly status: number;
  readonly connect: number;
  readonly timeout: number;
}

async function runWrk(environment: LoadEnvironment, run: LoadRun, seconds: number): Promise<Measured> {
  const { warmSeconds = WARM_SECONDS, connections = 64, thinkMilliseconds = 0, method = 'GET' } = run;
  const snapshots = join(environment.folder, 'snapshots');
  const scriptArgs = {
    tokens: run.tokens,
    cold: run.cold,
    snapshots,
    method,
    path: run.path,
    host: `localhost:${run.port}`,
    body: run.bodyBytes,
    warm: warmSeconds,
    think: thinkMilliseconds,
    pids: run.pids.join(','),
  };
  const args = [
    ...(thinkMilliseconds > 0 ? ['env', 'BENCH_THINK=1'] : []),
    environment.wrk,
    '--threads=1',
    `--connections=${connections}`,
    `--duration=${Math.ceil(seconds + warmSeconds)}s`,
    '--timeout=20s',
    `--script=${script}`,
    `https://127.0.0.1:${run.port}`,
    '--',
    ...Object.entries(scriptArgs).flatMap(([key, value]) => (value === undefined ? [] : [`${key}=${value}`])),
  ];
  const text = await runToEnd(environment, args, seconds + warmSeconds + 60);
  const line = text.split('\n').find((entry) => entry.startsWith('{')) ?? '';
  if (line === '') throw new Error(`no summary from wrk: ${text.slice(-300)}`);
  const summary = JSON.parse(line) as WrkSummary;
  if (summary.status > 0) throw new Error(`${summary.status} responses were not 2xx`);
  const [first, last] = firstAndLast(readFileSync(snapshots, 'utf8'));
  const requests = last.sent - first.sent;
  const window = (last.nanoseconds - first.nanoseconds) / 1e9;
  const used = (last.ticks - first.ticks) / 100;
  if (!(requests > 0 && window > 0)) throw new Error('no requests within the window');
  return {
    cpuMicros: (used * 1e6) / requests,
    perSecond: requests / window,
    p50: summary.p50 / 1_000,
    p99: summary.p99 / 1_000,
    busy: used / window,
  };
}

interface Snapshot {
  readonly nanoseconds: number;
  readonly sent: number;
  readonly ticks: number;
}

function firstAndLast(text: string): [Snapshot, Snapshot] {
  const lines = text.trim().split('\n');
  const read = (line = ''): Snapshot => {
    const [nanoseconds = 0, sent = 0, ticks = 0] = line.split(' ').map(Number);
    return { nanoseconds, sent, ticks };
  };
  return [read(lines[0]), read(lines.at(-1))];
}

/** h2load can send only one token. The window includes the handshakes, for all candidates alike. */
async function runH2load(environment: LoadEnvironment, run: LoadRun, seconds: number): Promise<Measured> {
  if (environment.h2load === undefined) throw new Error('h2load is not installed');
  const log = join(environment.folder, 'h2load.log');
  const [token = ''] = readFileSync(run.tokens, 'utf8').split('\n', 1);
  rmSync(log, { force: true });
  const args = [
    environment.h2load,
    '--threads=1',
    `--clients=${run.connections ?? 64}`,
    '--max-concurrent-streams=1',
    `--duration=${seconds}`,
    `--log-file=${log}`,
    `--header=authorization: Bearer ${token}`,
    `https://127.0.0.1:${run.port}${run.path}`,
  ];
  const cpu = cpuSeconds(run.pids);
  const text = await runToEnd(environment, args, seconds + 60);
  const used = cpuSeconds(run.pids) - cpu;
  const count = (kind: string): number => Number(new RegExp(`(\\d+) ${kind}`).exec(text)?.[1] ?? 0);
  if (count('2xx') === 0 || count('4xx') + count('5xx') + count('errored') > 0)
    throw new Error(`h2load: ${/status codes:.*/.exec(text)?.[0] ?? text.slice(-300)}`);
  const micros = readFileSync(log, 'utf8')
    .split('\n')
    .map((line) => Number(line.split('\t')[2]))
    .filter((value) => value > 0)
    .toSorted((a, b) => a - b);
  return {
    cpuMicros: (used * 1e6) / count('2xx'),
    perSecond: count('2xx') / seconds,
    p50: median(micros) / 1_000,
    p99: (micros[Math.floor(micros.length * 0.99)] ?? Number.NaN) / 1_000,
    busy: used / seconds,
  };
}

/** Runs a load generator to completion, at most for `limitSeconds`. */
async function runToEnd(
  environment: LoadEnvironment,
  args: readonly string[],
  limitSeconds: number,
): Promise<string> {
  const file = join(environment.folder, 'load.log');
  const child = launch(environment.loadCore, args, file, 'output file');
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const limit = setTimeout(() => void stopProcess(child), limitSeconds * 1_000);
  const code = await ended;
  clearTimeout(limit);
  const text = readFileSync(file, 'utf8');
  if (code !== 0) throw new Error(`${args[0]} exited with ${code}: ${text.slice(-300)}`);
  return text;
}

/** Whether the server offers HTTP/2 (ALPN). */
export const supportsHttp2 = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect({
      host: '127.0.0.1',
      port,
      servername: 'localhost',
      ALPNProtocols: ['h2', 'http/1.1'],
      // Only the negotiated protocol is read; no request is sent.
      rejectUnauthorized: false,
    });
    socket.setTimeout(5_000, () => socket.destroy());
    socket.once('secureConnect', () => {
      resolve(socket.alpnProtocol === 'h2');
      socket.destroy();
    });
    socket.once('error', () => resolve(false)).once('close', () => resolve(false));
  });
