import { setTimeout as sleep } from 'node:timers/promises';
import { machineTimes } from './linux.ts';
import type { Bed, Errand, Sample } from './wrk.ts';
import { run } from './wrk.ts';

/** Something that takes part in the rounds of a group, by its name. */
export interface Case {
  readonly name: string;
  readonly errand: (round: number) => Errand;
  /** Between two runs; its log has a bound. */
  readonly tidy?: () => void;
}

export interface RoundOptions {
  readonly bed: Bed;
  readonly rounds: number;
  readonly seconds: number;
  readonly say: (text: string) => void;
  readonly patience: Patience;
}

/** How often and how long the whole benchmark waits for a machine that others use as well. */
export interface Patience {
  repeats: number;
  quietSeconds: number;
}

/** More of one core than this, used by others, spoils a run. */
const DISTURBED = 0.1;
const REPEATS_PER_RUN = 2;

export const isQuiet = (...samples: readonly Sample[]): boolean =>
  samples.every(({ others }) => others <= DISTURBED);

/**
 * All cases take turns within a round, so that whatever the machine does meets all of them. A run that others
 * disturbed is repeated, as long as there is patience. A case that fails is left out, with a line.
 */
export async function takeRounds(
  cases: readonly Case[],
  options: RoundOptions,
): Promise<Map<string, Sample[]>> {
  const { rounds, say } = options;
  const samples = new Map<string, Sample[]>(cases.map(({ name }) => [name, []]));
  for (let round = 0; round < rounds; round += 1)
    for (const one of cases) {
      const own = samples.get(one.name);
      if (own === undefined) continue;
      try {
        const sample = await undisturbed(one, round, options);
        say(
          `  round ${round + 1}/${rounds} ${one.name}: ${sample.cpuMicros.toFixed(1)} µs, ` +
            `${Math.round(sample.perSecond)}/s${!isQuiet(sample) ? `, disturbed (${sample.others.toFixed(2)} of a core)` : ''}`,
        );
        own.push(sample);
      } catch (error) {
        say(`skipped: ${one.name}: ${(error as Error).message}`);
        samples.delete(one.name);
      }
      one.tidy?.();
    }
  return samples;
}

async function undisturbed(one: Case, round: number, options: RoundOptions): Promise<Sample> {
  const { bed, seconds, patience } = options;
  for (let repeat = 0; ; repeat += 1) {
    await untilQuiet(patience);
    const sample = await run(bed, one.errand(round), seconds);
    if (isQuiet(sample) || repeat >= REPEATS_PER_RUN || patience.repeats <= 0) return sample;
    patience.repeats -= 1;
  }
}

/** Waits until the machine has been idle for a moment, or patience has come to its end. */
async function untilQuiet(patience: Patience): Promise<void> {
  for (;;) {
    const from = machineTimes();
    await sleep(200);
    const to = machineTimes();
    if ((to.busy - from.busy + to.stolen - from.stolen) / 0.2 <= 2 * DISTURBED) return;
    if (patience.quietSeconds <= 0) return;
    patience.quietSeconds -= 0.7;
    await sleep(500);
  }
}
