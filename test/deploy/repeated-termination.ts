import { expect, onTestFinished } from 'vitest';
import { PRE_STOP_SECONDS, terminateOnce, terminationFolder } from './termination.ts';

/** Terminates the program under load so many times; no request may be lost. */
export async function terminate(times: number): Promise<void> {
  const folder = await terminationFolder(`${PRE_STOP_SECONDS}s`);
  onTestFinished(() => folder.remove());
  for (let time = 1; time <= times; time += 1)
    expect({ time, ...(await terminateOnce(folder)) }).toMatchObject({ time, exitCode: 0, failures: [] });
}
