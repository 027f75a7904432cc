/**
 * Runs the tests of docs/reliability.md one after the other, and writes their figures into it: `npm run reliability`.
 * `--only` selects rows by id, `--quick` uses small counts and writes nothing, `--list` prints the commands.
 */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { Figures } from '../test/support/figures.ts';
import { renderReliability } from './reliability/page.ts';
import { RESULTS_FILE, type RowResult, readResults } from './reliability/results.ts';
import { formatCommand, RELIABILITY_ROWS, type ReliabilityRow } from './reliability/rows.ts';

const { values } = parseArgs({
  options: {
    only: { type: 'string', multiple: true },
    quick: { type: 'boolean', default: false },
    list: { type: 'boolean', default: false },
  },
});
const root = join(import.meta.dirname, '..');
const rows = RELIABILITY_ROWS.filter(
  ({ id }) => values.only === undefined || values.only.some((text) => id.includes(text)),
);
if (rows.length === 0)
  throw new Error(`--only: no row matches; the ids are ${RELIABILITY_ROWS.map(({ id }) => id).join(', ')}`);

if (values.list) for (const row of rows) console.log(`${row.id.padEnd(22)} ${formatCommand(row)}`);
else process.exitCode = (await runAll()) ? 0 : 1;

async function runAll(): Promise<boolean> {
  const failed: string[] = [];
  for (const row of rows) {
    console.log(`\n== ${row.id}: ${values.quick ? 'small counts' : formatCommand(row)}`);
    const result = await runRow(row);
    if (!result.passed) failed.push(row.id);
    if (!values.quick) save(row.id, result);
    console.log(`${row.id}: ${result.passed ? 'passed' : 'FAILED'} in ${Math.round(result.seconds)} s`);
  }
  console.log(failed.length === 0 ? `\n${rows.length} passed` : `\nfailed: ${failed.join(', ')}`);
  return failed.length === 0;
}

async function runRow(row: ReliabilityRow): Promise<RowResult> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-reliability-'));
  const report = join(folder, 'vitest.json');
  const figuresFolder = join(folder, 'figures');
  const isVitest = row.command[1] === 'test' || /^test:(?:full|cluster)$/.test(row.command[2] ?? '');
  const words = (values.quick && row.quickArgs) || row.command;
  const [program = '', ...args] = isVitest
    ? [...words, '--reporter=default', '--reporter=json', `--outputFile.json=${report}`]
    : words;
  const before = loadavg()[0] ?? 0;
  const startedAt = performance.now();
  try {
    const code = await new Promise<number | null>((resolve, reject) => {
      const child = spawn(program, args, {
        cwd: root,
        env: { ...process.env, ...(values.quick ? {} : row.env), FIGURES_FOLDER: figuresFolder },
        stdio: ['ignore', 'inherit', 'inherit'],
      });
      child.on('error', reject);
      child.on('exit', resolve);
    });
    const tests = isVitest ? readTests(report) : undefined;
    return {
      date: new Date().toISOString(),
      commit: readCommit(),
      machine: `${cpus().length} × ${cpus()[0]?.model ?? 'unknown'}, Node ${process.versions.node}`,
      seconds: (performance.now() - startedAt) / 1_000,
      load: [before, loadavg()[0] ?? 0],
      // A filter that matches no test passes too, and proves nothing.
      passed: code === 0 && tests?.passed !== 0,
      ...(tests !== undefined && { tests }),
      figures: readFigures(figuresFolder),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function readTests(report: string): NonNullable<RowResult['tests']> {
  if (!existsSync(report)) return { passed: 0, failed: 0, skipped: 0 };
  const { numPassedTests, numFailedTests, testResults } = JSON.parse(readFileSync(report, 'utf8')) as {
    numPassedTests: number;
    numFailedTests: number;
    testResults: { assertionResults: { status: string }[] }[];
  };
  // Tests that a filter excludes are not skipped tests.
  const skipped = testResults
    .flatMap(({ assertionResults }) => assertionResults)
    .filter(({ status }) => status === 'pending').length;
  return { passed: numPassedTests, failed: numFailedTests, skipped };
}

function readFigures(folder: string): Readonly<Record<string, Figures>> {
  if (!existsSync(folder)) return {};
  return Object.fromEntries(
    readdirSync(folder)
      .toSorted()
      .map((file) => {
        const { name, figures } = JSON.parse(readFileSync(join(folder, file), 'utf8')) as {
          name: string;
          figures: Figures;
        };
        return [name, figures];
      }),
  );
}

function readCommit(): string {
  const git = (...args: string[]): string => execFileSync('git', args, { cwd: root, encoding: 'utf8' }).trim();
  const isChanged = git('status', '--porcelain', '--untracked-files=no', '--', 'src', 'test') !== '';
  return `${git('rev-parse', '--short', 'HEAD')}${isChanged ? ' with changes' : ''}`;
}

function save(id: string, result: RowResult): void {
  const all = { ...readResults(), [id]: result };
  const sorted = Object.fromEntries(
    RELIABILITY_ROWS.flatMap((row) => {
      const found = all[row.id];
      return found === undefined ? [] : [[row.id, found] as const];
    }),
  );
  writeFileSync(RESULTS_FILE, `${JSON.stringify(sorted, undefined, 2)}\n`);
  writeFileSync(join(root, 'docs/reliability.md'), renderReliability());
}
