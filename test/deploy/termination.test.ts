import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startServe, until } from '../support/serve-process.ts';
import { endOnce, send, type TerminationFolder, terminationFolder } from './termination.ts';

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
      let [asked, tooLate] = [0, 0];
      for (let loop = 1; loop <= loops; loop += 1) {
        const ending = await endOnce(folder, milliseconds);
        asked += ending.asked;
        tooLate += ending.tooLate;
        expect({ loop, ...ending }).toMatchObject({ loop, exitCode: 0, failures: [] });
        // Before, in flight, upload, and somebody who came late.
        expect(ending.asked).toBeGreaterThanOrEqual(4);
      }
      console.log(`${loops} terminations, ${asked} requests, 0 failures, ${tooLate} came too late to count`);
    },
    (loops + 1) * 30_000,
  );
});

test('A8 who has connected before the door closes is let in, however busy gatehouse was then', async () => {
  const folder = await terminationFolder('1s', 0);
  try {
    const busy =
      "process.on('SIGWINCH',()=>{const end=performance.now()+2500;while(performance.now()<end);})";
    const server = await startServe(folder, { nodeOptions: ['--import', `data:text/javascript,${busy}`] });
    server.signal('SIGTERM');
    await until('it drains', () => server.log.some(({ event }) => event === 'draining'));
    // From here on it looks at nothing, and the pre-stop time runs out meanwhile.
    server.signal('SIGWINCH');
    const late = send(folder, server.port, '/late');
    late.finish('');
    expect(await late.answer).toEqual({ status: 200, text: 'ok' });
    expect((await server.ended).code).toBe(0);
  } finally {
    await folder.remove();
  }
});
