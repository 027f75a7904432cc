import { expect, onTestFinished } from 'vitest';
import { createTerminationFolder, PRE_STOP_SECONDS, terminateOnce } from './termination.ts';

/** Terminates the program under load `times` times; no request may be lost. */
export async function terminate(times: number): Promise<void> {
  const folder = await createTerminationFolder(`${PRE_STOP_SECONDS}s`);
  onTestFinished(() => folder.remove());
  for (let time = 1; time <= times; time += 1)
    expect({ time, ...(await terminateOnce(folder)) }).toMatchObject({ time, exitCode: 0, failures: [] });
}
