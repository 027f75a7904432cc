import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';

/**
 * Type-checks the dashboard against the types that Grafana publishes, as source text, so that the compiler reports unknown
 * names, invalid values and missing properties.
 */
const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '../..');
const DASHBOARD = readFileSync(join(ROOT, 'deploy/monitoring/dashboard.json'), 'utf8');

const SDK = '@grafana/grafana-foundation-sdk';
const TYPES = `
import type * as grafana from '${SDK}/dashboard';
import type * as stat from '${SDK}/stat';
import type * as timeseries from '${SDK}/timeseries';
import type * as prometheus from '${SDK}/prometheus';
// In JSON, an enum value is a string.
type Plain<T> = T extends string ? \`\${T}\`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Query = Plain<Omit<prometheus.Dataquery, '_implementsDataqueryVariant' | 'dataqueryName'>>;
type PanelOf<N, O, C> = Omit<Plain<grafana.Panel>, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: N;
  options: Plain<Partial<O>>;
  targets: Query[];
  fieldConfig: Omit<Plain<grafana.FieldConfigSource>, 'defaults'> & {
    defaults: Omit<Plain<grafana.FieldConfig>, 'custom'> & { custom?: Plain<C> };
  };
};
type Panel =
  | PanelOf<'stat', stat.Options, {}>
  | PanelOf<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Plain<grafana.RowPanel>;
type Dashboard = Omit<Plain<grafana.Dashboard>, 'panels'> & { panels: Panel[] };
export const dashboard: Dashboard = `;

const CASES: readonly (readonly [string, string, string])[] = [
  ['a name that does not exist', '"gridPos":', '"gridPosition":'],
  ['a value that is not allowed', '"displayMode": "list"', '"displayMode": "lists"'],
  ['something missing', '"showLegend": true,', ''],
  ['a name that does not exist in a query', '"legendFormat":', '"legend":'],
];

let folder: string;
/** Compiler output for the dashboard and its invalid copies, from one run. */
let report: string;
beforeAll(async () => {
  // Under node_modules, so that the types are resolved.
  const cache = join(ROOT, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  folder = mkdtempSync(join(cache, 'dashboard-'));
  const compilerOptions = {
    strict: true,
    noEmit: true,
    module: 'nodenext',
    target: 'es2024',
    skipLibCheck: true,
    types: [],
  };
  const texts = [DASHBOARD, ...CASES.map(([, from, to]) => DASHBOARD.replace(from, to))];
  const files = texts.map((json, index) => {
    writeFileSync(join(folder, `dashboard-${index}.ts`), `${TYPES}${json};\n`);
    return `dashboard-${index}.ts`;
  });
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }));
  const tsc = join(ROOT, 'node_modules/.bin/tsc');
  const { stdout, stderr } = await run(tsc, ['-p', folder], { cwd: folder, timeout: 110_000 }).catch(
    // The compiler exits with an error because of the invalid copies.
    (error: { readonly stdout: string; readonly stderr: string }) => error,
  );
  report = stdout + stderr;
}, 120_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const errorsIn = (index: number): readonly string[] =>
  report.split('\n').filter((line) => line.startsWith(`dashboard-${index}.ts(`));

test('A12 Grafana’s own types accept the dashboard', () => {
  expect(errorsIn(0)).toEqual([]);
});

test.each(CASES.map(([what, from], index) => [what, from, index + 1] as const))(
  'A12 Grafana’s types reject %s',
  (_what, from, index) => {
    expect(DASHBOARD).toContain(from);
    expect(errorsIn(index)).toEqual([expect.stringContaining('error TS')]);
  },
);
