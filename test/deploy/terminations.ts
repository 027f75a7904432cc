import { expect, onTestFinished } from 'vitest';
import { endOnce, terminationFolder } from './termination.ts';

/** Terminates the program under load so many times; no request may be lost. */
export async function terminate(times: number, preStopSeconds: number): Promise<void> {
  const milliseconds = preStopSeconds * 1_000;
  const folder = await terminationFolder(`${milliseconds}ms`, milliseconds + 300);
  onTestFinished(() => folder.remove());
  for (let time = 1; time <= times; time += 1) {
    const ending = await endOnce(folder, milliseconds);
    expect({ time, ...ending }).toMatchObject({ time, exitCode: 0, failures: [] });
    // Before the signal, in flight, an upload, and a late one.
    expect(ending.asked).toBeGreaterThanOrEqual(4);
  }
}
