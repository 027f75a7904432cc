import { setTimeout as sleep } from 'node:timers/promises';
import { machineTimes } from './linux.ts';
import type { LoadEnvironment, LoadRun, Sample } from './load-run.ts';
import { runLoad } from './run-load.ts';

/** A load that is measured in every round of a group. */
export interface Case {
  readonly name: string;
  readonly createRun: (round: number) => LoadRun;
  /** Called after each run, so that the log does not fill the disk. */
  readonly truncateLog?: () => void;
}

export interface RoundOptions {
  readonly environment: LoadEnvironment;
  readonly rounds: number;
  readonly seconds: number;
  readonly log: (text: string) => void;
  readonly retryBudget: RetryBudget;
}

/** How often runs are repeated and how long the whole benchmark waits because of other load. */
export interface RetryBudget {
  retries: number;
  quietSeconds: number;
}

/** A run is disturbed if other processes used more than this share of one core. */
const MAX_OTHER_CPU = 0.1;
const RETRIES_PER_RUN = 2;

export const isQuiet = (...samples: readonly Sample[]): boolean =>
  samples.every(({ others }) => others <= MAX_OTHER_CPU);

/**
 * Measures all cases in every round, so that other load on the machine affects them alike. A disturbed run is repeated while
 * the retry budget lasts. A case that fails is skipped with a message.
 */
export async function runRounds(cases: readonly Case[], options: RoundOptions): Promise<Map<string, Sample[]>> {
  const { rounds, log } = options;
  const samples = new Map<string, Sample[]>(cases.map(({ name }) => [name, []]));
  for (let round = 0; round < rounds; round += 1)
    for (const benchCase of cases) {
      const caseSamples = samples.get(benchCase.name);
      if (caseSamples === undefined) continue;
      try {
        const sample = await measureUndisturbed(benchCase, round, options);
        log(
          `  round ${round + 1}/${rounds} ${benchCase.name}: ${sample.cpuMicros.toFixed(1)} µs, ` +
            `${Math.round(sample.perSecond)}/s${!isQuiet(sample) ? `, disturbed (${sample.others.toFixed(2)} of a core)` : ''}`,
        );
        caseSamples.push(sample);
      } catch (error) {
        log(`skipped: ${benchCase.name}: ${(error as Error).message}`);
        samples.delete(benchCase.name);
      }
      benchCase.truncateLog?.();
    }
  return samples;
}

async function measureUndisturbed(benchCase: Case, round: number, options: RoundOptions): Promise<Sample> {
  const { environment, seconds, retryBudget } = options;
  for (let retry = 0; ; retry += 1) {
    await waitUntilQuiet(retryBudget);
    const sample = await runLoad(environment, benchCase.createRun(round), seconds);
    if (isQuiet(sample) || retry >= RETRIES_PER_RUN || retryBudget.retries <= 0) return sample;
    retryBudget.retries -= 1;
  }
}

/** Waits until the machine is idle, or the budget is used up. */
async function waitUntilQuiet(retryBudget: RetryBudget): Promise<void> {
  for (;;) {
    const from = machineTimes();
    await sleep(200);
    const to = machineTimes();
    if ((to.busy - from.busy + to.stolen - from.stolen) / 0.2 <= 2 * MAX_OTHER_CPU) return;
    if (retryBudget.quietSeconds <= 0) return;
    retryBudget.quietSeconds -= 0.7;
    await sleep(500);
  }
}
