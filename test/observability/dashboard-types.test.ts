import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';

/**
 * The dashboard held against the types Grafana publishes of its own format: as text of a program, so that the compiler
 * finds names that do not exist, values that are not allowed, and what is missing.
 */
const ROOT = join(import.meta.dirname, '../..');
const DASHBOARD = readFileSync(join(ROOT, 'deploy/monitoring/dashboard.json'), 'utf8');

const SDK = '@grafana/grafana-foundation-sdk';
const TYPES = `
import type * as grafana from '${SDK}/dashboard';
import type * as stat from '${SDK}/stat';
import type * as timeseries from '${SDK}/timeseries';
import type * as prometheus from '${SDK}/prometheus';
// In JSON a value of an enumeration is its text.
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

let folder: string;
beforeAll(() => {
  // Below node_modules, so that the types are found.
  const cache = join(ROOT, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  folder = mkdtempSync(join(cache, 'dashboard-'));
  const options = {
    strict: true,
    noEmit: true,
    module: 'nodenext',
    target: 'es2024',
    skipLibCheck: true,
    types: [],
  };
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, files: ['d.ts'] }));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** What the compiler says about it. */
function judged(json: string): string {
  writeFileSync(join(folder, 'd.ts'), `${TYPES}${json};\n`);
  const { stdout, stderr, status } = spawnSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', folder], {
    cwd: folder,
    encoding: 'utf8',
    timeout: 120_000,
  });
  return status === 0 ? 'sound' : stdout + stderr;
}

test('A12 Grafana’s own types have nothing against the dashboard', () => {
  expect(judged(DASHBOARD)).toBe('sound');
});

test.each([
  ['a name that does not exist', '"gridPos":', '"gridPosition":'],
  ['a value that is not allowed', '"displayMode": "list"', '"displayMode": "lists"'],
  ['something missing', '"showLegend": true,', ''],
  ['a name that does not exist in a query', '"legendFormat":', '"legend":'],
])('A12 they would find %s', (_what, from, to) => {
  expect(DASHBOARD).toContain(from);
  expect(judged(DASHBOARD.replace(from, to))).toContain('error TS');
});
