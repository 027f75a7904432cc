import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { cpuSeconds, machineTimes, ownSeconds, residentMegabytes } from './linux.ts';
import { end, launch } from './programs.ts';
import { median } from './report.ts';

/** What is asked of a server in one run. */
export interface Errand {
  readonly port: number;
  /** Whose CPU time counts. */
  readonly pids: readonly number[];
  /** One token on each line; they take turns. */
  readonly tokens: string;
  /** Tokens of which each is used once: then the window is as long as they last. */
  readonly cold?: string;
  readonly method?: 'GET' | 'POST';
  readonly path: string;
  readonly bodyBytes?: number;
  readonly protocol?: 'h1' | 'h2';
  readonly connections?: number;
  /** How long each connection waits between two requests, on average. */
  readonly thinkMilliseconds?: number;
  /** Before the window. */
  readonly warmSeconds?: number;
}

/** What one run showed. */
export interface Sample {
  readonly cpuMicros: number;
  readonly perSecond: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  readonly residentMegabytes: number;
  /** How much of its core the server used: below 1, requests per second are not its limit. */
  readonly busy: number;
  /** CPU that neither server, upstream nor load used, and what other machines took, as part of one core. */
  readonly others: number;
}

export interface Bed {
  readonly folder: string;
  readonly wrk: string;
  readonly h2load?: string;
  readonly loadCore: number | string;
  readonly upstreamPid: number;
}

const script = join(import.meta.dirname, 'load.lua');
const WARM_SECONDS = 1;

/** One run of the load against one server. Throws when anything but 2xx came back. */
export async function run(bed: Bed, errand: Errand, seconds: number): Promise<Sample> {
  const machine = machineTimes();
  const ours = (): number => cpuSeconds([...errand.pids, bed.upstreamPid]) + ownSeconds();
  const [from, at] = [ours(), performance.now()];
  const seen = await (errand.protocol === 'h2' ? runH2load : runWrk)(bed, errand, seconds);
  const wall = (performance.now() - at) / 1_000;
  const { busy, stolen } = machineTimes();
  return {
    ...seen,
    residentMegabytes: residentMegabytes(errand.pids),
    others: (Math.max(0, busy - machine.busy - (ours() - from)) + stolen - machine.stolen) / wall,
  };
}

type Seen = Omit<Sample, 'others' | 'residentMegabytes'>;

interface WrkEnd {
  readonly p50: number;
  readonly p99: number;
  readonly status: number;
  readonly connect: number;
  readonly timeout: number;
}

async function runWrk(bed: Bed, errand: Errand, seconds: number): Promise<Seen> {
  const { warmSeconds = WARM_SECONDS, connections = 64, thinkMilliseconds = 0, method = 'GET' } = errand;
  const snapshots = join(bed.folder, 'snapshots');
  const given = {
    tokens: errand.tokens,
    cold: errand.cold,
    snapshots,
    method,
    path: errand.path,
    host: `localhost:${errand.port}`,
    body: errand.bodyBytes,
    warm: warmSeconds,
    think: thinkMilliseconds,
    pids: errand.pids.join(','),
  };
  const words = [
    ...(thinkMilliseconds > 0 ? ['env', 'BENCH_THINK=1'] : []),
    bed.wrk,
    '--threads=1',
    `--connections=${connections}`,
    `--duration=${Math.ceil(seconds + warmSeconds)}s`,
    '--timeout=20s',
    `--script=${script}`,
    `https://127.0.0.1:${errand.port}`,
    '--',
    ...Object.entries(given).flatMap(([key, value]) => (value === undefined ? [] : [`${key}=${value}`])),
  ];
  const text = await output(bed, words, seconds + warmSeconds + 60);
  const line = text.split('\n').find((one) => one.startsWith('{')) ?? '';
  if (line === '') throw new Error(`wrk told nothing: ${text.slice(-300)}`);
  const told = JSON.parse(line) as WrkEnd;
  if (told.status > 0) throw new Error(`${told.status} answers were not 2xx`);
  const [first, last] = ends(readFileSync(snapshots, 'utf8'));
  const requests = last.sent - first.sent;
  const window = (last.nanoseconds - first.nanoseconds) / 1e9;
  const used = (last.ticks - first.ticks) / 100;
  if (!(requests > 0 && window > 0)) throw new Error('no requests within the window');
  return {
    cpuMicros: (used * 1e6) / requests,
    perSecond: requests / window,
    p50: told.p50 / 1_000,
    p99: told.p99 / 1_000,
    busy: used / window,
  };
}

interface Snapshot {
  readonly nanoseconds: number;
  readonly sent: number;
  readonly ticks: number;
}

function ends(text: string): [Snapshot, Snapshot] {
  const lines = text.trim().split('\n');
  const read = (line = ''): Snapshot => {
    const [nanoseconds = 0, sent = 0, ticks = 0] = line.split(' ').map(Number);
    return { nanoseconds, sent, ticks };
  };
  return [read(lines[0]), read(lines.at(-1))];
}

/** h2load sends one token: it knows no others. Handshakes are in the window, alike for all. */
async function runH2load(bed: Bed, errand: Errand, seconds: number): Promise<Seen> {
  if (bed.h2load === undefined) throw new Error('h2load is not there');
  const log = join(bed.folder, 'h2load.log');
  const [token = ''] = readFileSync(errand.tokens, 'utf8').split('\n', 1);
  rmSync(log, { force: true });
  const words = [
    bed.h2load,
    '--threads=1',
    `--clients=${errand.connections ?? 64}`,
    '--max-concurrent-streams=1',
    `--duration=${seconds}`,
    `--log-file=${log}`,
    `--header=authorization: Bearer ${token}`,
    `https://127.0.0.1:${errand.port}${errand.path}`,
  ];
  const cpu = cpuSeconds(errand.pids);
  const text = await output(bed, words, seconds + 60);
  const used = cpuSeconds(errand.pids) - cpu;
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

/** Runs a program of the load to its end; whatever happens, it has one. */
async function output(bed: Bed, words: readonly string[], limitSeconds: number): Promise<string> {
  const file = join(bed.folder, 'load.log');
  const child = launch(bed.loadCore, words, file, 'in the output');
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const limit = setTimeout(() => void end(child), limitSeconds * 1_000);
  const code = await ended;
  clearTimeout(limit);
  const text = readFileSync(file, 'utf8');
  if (code !== 0) throw new Error(`${words[0]} ended with ${code}: ${text.slice(-300)}`);
  return text;
}

/** Does this server take HTTP/2? */
export const speaksH2 = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect({
      host: '127.0.0.1',
      port,
      servername: 'localhost',
      ALPNProtocols: ['h2', 'http/1.1'],
      // Only what was agreed on is asked for; nothing is sent.
      rejectUnauthorized: false,
    });
    socket.setTimeout(5_000, () => socket.destroy());
    socket.once('secureConnect', () => {
      resolve(socket.alpnProtocol === 'h2');
      socket.destroy();
    });
    socket.once('error', () => resolve(false)).once('close', () => resolve(false));
  });
