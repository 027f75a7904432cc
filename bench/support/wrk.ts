import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type LoadEnvironment, type LoadRun, type Measured, WARM_SECONDS } from './load-run.ts';
import { runToEnd } from './programs.ts';

const script = join(import.meta.dirname, 'load.lua');

interface WrkSummary {
  readonly p50: number;
  readonly p99: number;
  readonly status: number;
  readonly connect: number;
  readonly timeout: number;
}

export async function runWrk(environment: LoadEnvironment, run: LoadRun, seconds: number): Promise<Measured> {
  const { warmSeconds = WARM_SECONDS, connections = 64, thinkMilliseconds = 0, method = 'GET' } = run;
  const snapshots = join(environment.folder, 'snapshots');
  const scriptArgs = {
    tokens: run.tokens,
    cold: run.cold,
    snapshots,
    method,
    path: run.path,
    first: run.firstPath,
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
  const output = join(environment.folder, 'load.log');
  const text = await runToEnd(environment.loadCore, args, output, seconds + warmSeconds + 60);
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
