import { setTimeout as sleep } from 'node:timers/promises';
import { machineTimes } from './linux.ts';
import type { LoadEnvironment, LoadRun, Sample } from './wrk.ts';
import { runLoad } from './wrk.ts';

/** Something that takes part in the rounds of a group, by its name. */
export interface Case {
  readonly name: string;
  readonly createRun: (round: number) => LoadRun;
  /** Between two runs; its log has a bound. */
  readonly truncateLog?: () => void;
}

export interface RoundOptions {
  readonly environment: LoadEnvironment;
  readonly rounds: number;
  readonly seconds: number;
  readonly log: (text: string) => void;
  readonly retryBudget: RetryBudget;
}

/** How often and how long the whole benchmark waits for a machine that others use as well. */
export interface RetryBudget {
  retries: number;
  quietSeconds: number;
}

/** More of one core than this, used by others, spoils a run. */
const MAX_OTHER_CPU = 0.1;
const RETRIES_PER_RUN = 2;

export const isQuiet = (...samples: readonly Sample[]): boolean =>
  samples.every(({ others }) => others <= MAX_OTHER_CPU);

/**
 * All cases take turns within a round, so that whatever the machine does meets all of them. A run that others
 * disturbed is repeated, as long as there is patience. A case that fails is left out, with a line.
 */
export async function runRounds(
  cases: readonly Case[],
  options: RoundOptions,
): Promise<Map<string, Sample[]>> {
  const { rounds, log } = options;
  const samples = new Map<string, Sample[]>(cases.map(({ name }) => [name, []]));
  for (let round = 0; round < rounds; round += 1)
    for (const one of cases) {
      const caseSamples = samples.get(one.name);
      if (caseSamples === undefined) continue;
      try {
        const sample = await measureUndisturbed(one, round, options);
        log(
          `  round ${round + 1}/${rounds} ${one.name}: ${sample.cpuMicros.toFixed(1)} µs, ` +
            `${Math.round(sample.perSecond)}/s${!isQuiet(sample) ? `, disturbed (${sample.others.toFixed(2)} of a core)` : ''}`,
        );
        caseSamples.push(sample);
      } catch (error) {
        log(`skipped: ${one.name}: ${(error as Error).message}`);
        samples.delete(one.name);
      }
      one.truncateLog?.();
    }
  return samples;
}

async function measureUndisturbed(one: Case, round: number, options: RoundOptions): Promise<Sample> {
  const { environment, seconds, retryBudget } = options;
  for (let retry = 0; ; retry += 1) {
    await waitUntilQuiet(retryBudget);
    const sample = await runLoad(environment, one.createRun(round), seconds);
    if (isQuiet(sample) || retry >= RETRIES_PER_RUN || retryBudget.retries <= 0) return sample;
    retryBudget.retries -= 1;
  }
}

/** Waits until the machine has been idle for a moment, or patience has come to its end. */
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
