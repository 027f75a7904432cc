import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

/**
 * Runs `npm test` several times and reports the duration and the failures of each run:
 * `npm run test:repeat -- --times 10 --busy`. With `--busy`, one process per core keeps the CPU busy.
 */
const { values } = parseArgs({
  options: { times: { type: 'string', default: '5' }, busy: { type: 'boolean', default: false } },
});

interface Report {
  readonly numPassedTests: number;
  readonly numPendingTests: number;
  readonly testResults: readonly {
    readonly assertionResults: readonly { readonly status: string; readonly fullName: string }[];
  }[];
}

const times = Number(values.times);
if (!(times >= 1)) throw new RangeError('--times must be a positive number');
const load = values.busy
  ? cpus().map(() =>
      spawn(process.execPath, ['-e', 'const parent = process.ppid; while (process.ppid === parent);'], {
        stdio: 'ignore',
      }),
    )
  : [];
const folder = mkdtempSync(join(tmpdir(), 'gatehouse-repeat-'));
const cleanUp = (): void => {
  for (const child of load) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
};
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    cleanUp();
    running?.kill(signal);
    process.exit(1);
  });
let running: ChildProcess | undefined;
let failedRuns = 0;
try {
  console.log('| run | seconds | passed | skipped | exit code | failed |\n|---|---|---|---|---|---|');
  for (let run = 1; run <= times; run += 1) {
    const file = join(folder, `${run}.json`);
    const begun = performance.now();
    const child = spawn('npm', ['test', '--', '--reporter=default', '--reporter=json', `--outputFile.json=${file}`], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    running = child;
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => (output += text));
    const [code] = (await once(child, 'close')) as [number | null];
    const seconds = Math.round((performance.now() - begun) / 1_000);
    if (!existsSync(file)) throw new Error(`npm test exited with ${code} before its first test:\n${output}`);
    const { numPassedTests, numPendingTests, testResults } = JSON.parse(readFileSync(file, 'utf8')) as Report;
    const failed = testResults
      .flatMap(({ assertionResults }) => assertionResults)
      .filter(({ status }) => status === 'failed')
      .map(({ fullName }) => fullName);
    console.log(`| ${run} | ${seconds} | ${numPassedTests} | ${numPendingTests} | ${code} | ${failed.join('; ')} |`);
    if (code === 0) continue;
    failedRuns += 1;
    console.error(output.slice(-20_000));
  }
} finally {
  cleanUp();
}
process.exitCode = failedRuns === 0 ? 0 : 1;
