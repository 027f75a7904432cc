import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { finish, spawnChild } from '../support/child-process.ts';
import { goProgram } from '../support/go-program.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** h2spec: the conformance tests for RFC 9113 and RFC 7541. 2.2.1 is the last version with a Go module. */
const h2spec = goProgram(
  fileURLToPath(new URL('./h2spec', import.meta.url)),
  'h2spec',
  'github.com/summerwind/h2spec/cmd/h2spec',
);
const CASES = 145;
/** Cases that `--strict` adds. */
const STRICT_CASES = 1;
/** How long a case waits for a reaction; generous for a busy machine. */
const CASE_SECONDS = 10;

const OPTIONS = ['--tls', '--insecure', '--timeout', String(CASE_SECONDS), '--junit-report'];

if (h2spec.missing !== undefined)
  console.log(`test/conformance/http2-h2spec.full.test.ts is skipped. ${h2spec.missing}`);

interface Report {
  readonly cases: number;
  /** The title of each case that failed, with what was expected. */
  readonly failed: readonly string[];
}

/** JUnit: a `testcase` contains `failure` or `skipped` if it did not pass. */
function parseReport(xml: string): Report {
  const cases = [...xml.matchAll(/<testcase package="([^"]*)" classname="([^"]*)"[^>]*?(?:\/>|>([^]*?)<\/testcase>)/g)];
  const failed = cases
    .filter(([, , , content = '']) => /<(?:failure|error|skipped)/.test(content))
    .map(([, section, title, content = '']) => `${section} ${title}: ${content.replace(/<[^>]*>/g, ' ').trim()}`);
  return { cases: cases.length, failed };
}

describe.skipIf(h2spec.missing !== undefined)('h2spec', () => {
  let program: string;
  let gateway: TestGateway;
  let folder: TempFolder;
  beforeAll(async () => {
    program = await h2spec.build();
    folder = tempFolder('h2spec');
    gateway = await startGateway();
  }, 1_000_000);
  afterAll(async () => {
    await gateway?.close();
    folder?.remove();
  });

  async function run(...options: string[]): Promise<Report> {
    const report = join(folder.path, 'report.xml');
    const { stdout } = await finish(
      spawnChild(
        [
          program,
          ...`--host localhost --port ${gateway.port} --path /health`.split(' '),
          ...OPTIONS,
          report,
          ...options,
        ],
        { env: { PATH: process.env['PATH'], TEST_RUN_FOLDER: process.env['TEST_RUN_FOLDER'] } },
      ),
      900,
    );
    const { cases, failed } = parseReport(readFileSync(report, 'utf8'));
    // Its summary agrees with the report.
    expect(stdout).toContain(`${cases} tests, ${cases - failed.length} passed`);
    return { cases, failed };
  }

  test('all cases pass', async () => {
    expect(await run()).toEqual({ cases: CASES, failed: [] });
  });

  test('all cases pass with --strict', async () => {
    expect(await run('--strict')).toEqual({ cases: CASES + STRICT_CASES, failed: [] });
  });

  test('no error was logged, and other clients are served', async () => {
    expect(gateway.log.filter(({ level }) => level === 'error')).toEqual([]);
    expect((await gateway.request({ path: '/health' })).status).toBe(200);
  });
});
