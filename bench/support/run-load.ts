import { runGoLoad } from './go-load.ts';
import { runH2load } from './h2load.ts';
import { cpuSeconds, machineTimes, ownCpuSeconds, residentMegabytes } from './linux.ts';
import type { Generator, GeneratorName, LoadEnvironment, LoadRun, Sample } from './load-run.ts';
import { runWrk } from './wrk.ts';

const GENERATORS: Readonly<Record<GeneratorName, Generator>> = {
  wrk: runWrk,
  'h2load, HTTP/2': runH2load,
  'h2load, HTTP/1.1': (environment, run, seconds) => runH2load(environment, run, seconds, ['--h1']),
  Go: runGoLoad,
};

/** Runs the load against one server. Throws if a response is not 2xx. */
export async function runLoad(environment: LoadEnvironment, run: LoadRun, seconds: number): Promise<Sample> {
  const machine = machineTimes();
  const measuredCpu = (): number => cpuSeconds([...run.pids, environment.upstreamPid]) + ownCpuSeconds();
  const [from, at] = [measuredCpu(), performance.now()];
  const measured = await GENERATORS[run.generator ?? 'wrk'](environment, run, seconds);
  const wall = (performance.now() - at) / 1_000;
  const { busy, stolen } = machineTimes();
  return {
    ...measured,
    residentMegabytes: residentMegabytes(run.pids),
    others: (Math.max(0, busy - machine.busy - (measuredCpu() - from)) + stolen - machine.stolen) / wall,
  };
}
