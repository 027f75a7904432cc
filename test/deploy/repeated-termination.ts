import { expect, onTestFinished } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { createTerminationFolder, PRE_STOP_SECONDS, terminateOnce } from './termination.ts';

/** Terminates the program under load `times` times; no request may be lost. */
export async function terminate(times: number): Promise<void> {
  const folder = await createTerminationFolder(`${PRE_STOP_SECONDS}s`);
  onTestFinished(() => folder.remove());
  let requests = 0;
  for (let time = 1; time <= times; time += 1) {
    const result = await terminateOnce(folder);
    expect({ time, ...result }).toMatchObject({ time, exitCode: 0, failures: [] });
    requests += result.sent;
  }
  recordFigures('terminations', { terminations: times, requests, 'failed requests': 0 });
}
