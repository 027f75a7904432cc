import { join } from 'node:path';
import { goProgram } from '../../test/support/go-program.ts';
import { type LoadEnvironment, type LoadRun, type Measured, WARM_SECONDS } from './load-run.ts';
import { runToEnd } from './programs.ts';

export const goLoadProgram = goProgram(join(import.meta.dirname, 'go-load'), 'bench-load');

/** The output of the Go program; latencies are microseconds. */
interface GoResult {
  readonly requests: number;
  readonly seconds: number;
  readonly ticks: number;
  readonly p50: number;
  readonly p99: number;
}

/** `%d` in the path of the run is replaced by a number that changes from request to request. */
export async function runGoLoad(
  { folder, goLoad, loadCore }: LoadEnvironment,
  { port, pids, tokens, path, connections = 64, streams = 1, warmSeconds = WARM_SECONDS }: LoadRun,
  seconds: number,
): Promise<Measured> {
  if (goLoad === undefined) throw new Error('the Go client is not built');
  const args = [
    goLoad,
    `-url=https://127.0.0.1:${port}`,
    `-tokens=${tokens}`,
    `-path=${path}`,
    `-connections=${connections}`,
    `-streams=${streams}`,
    `-warm=${warmSeconds}s`,
    `-duration=${seconds}s`,
    `-pids=${pids.join(',')}`,
  ];
  const text = await runToEnd(loadCore, args, join(folder, 'load.log'), seconds + warmSeconds + 60);
  const { requests, ticks, ...measured } = JSON.parse(text) as GoResult;
  const used = ticks / 100;
  return {
    cpuMicros: (used * 1e6) / requests,
    perSecond: requests / measured.seconds,
    p50: measured.p50 / 1_000,
    p99: measured.p99 / 1_000,
    busy: used / measured.seconds,
  };
}
