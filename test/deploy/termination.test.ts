import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { endOnce, type TerminationFolder, terminationFolder } from '../support/termination.ts';

/** `npm run test:terminate` does it 200 times, and three times with the default pre-stop time. */
const LOOPS = Number(process.env['TERMINATIONS'] ?? 10);
const WITH_DEFAULT = Number(process.env['TERMINATIONS_DEFAULT'] ?? 0);

describe.each([
  { preStop: '200ms', milliseconds: 200, loops: LOOPS },
  { preStop: '5s', milliseconds: 5_000, loops: WITH_DEFAULT },
])('A8 terminations with a pre-stop time of $preStop', ({ preStop, milliseconds, loops }) => {
  let folder: TerminationFolder;
  beforeAll(async () => {
    folder = await terminationFolder(preStop, milliseconds + 300);
  });
  afterAll(() => folder.remove());

  test.skipIf(loops === 0)(
    `${loops} times: nobody notices, neither those who were being served nor those who came late`,
    async () => {
      let asked = 0;
      for (let loop = 1; loop <= loops; loop += 1) {
        const ending = await endOnce(folder, milliseconds);
        asked += ending.asked;
        expect({ loop, ...ending }).toMatchObject({ loop, exitCode: 0, failures: [] });
        // Before, in flight, upload, and somebody who came late.
        expect(ending.asked).toBeGreaterThanOrEqual(4);
      }
      console.log(`${loops} terminations, ${asked} requests, 0 failures`);
    },
    (loops + 1) * 30_000,
  );
});
