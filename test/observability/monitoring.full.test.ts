import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:http2';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { METRIC_NAMES, METRICS, type MetricName } from '../../src/observability/metric-table.ts';
import { needs } from '../set-up/programs.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { createCrl } from '../support/pki.ts';
import { type Scrape, scrape } from '../support/scrape.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

needs('promtool');

const FOLDER = join(import.meta.dirname, '../../deploy/monitoring');
const readMonitoringFile = (name: string): string => readFileSync(join(FOLDER, name), 'utf8');

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly labels: { readonly severity: string };
  readonly annotations: { readonly summary: string; readonly description: string };
}
interface Panel {
  readonly type: string;
  readonly title: string;
  readonly targets?: readonly { readonly expr: string }[];
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
}

const rules = (parse(readMonitoringFile('rules.yaml')) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  (group) => group.rules,
);
const dashboard = JSON.parse(readMonitoringFile('dashboard.json')) as {
  panels: Panel[];
  annotations: { list: { expr: string }[] };
  templating: { list: { definition?: string }[] };
};
const queries = [
  ...dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)),
  ...dashboard.annotations.list.map(({ expr }) => expr),
  ...dashboard.templating.list.flatMap(({ definition }) => definition ?? []),
];

/** The metrics of an expression and the labels in their selectors. */
const listMetrics = (expr: string): { readonly metric: string; readonly labels: readonly string[] }[] =>
  [...expr.matchAll(/\b((?:gatehouse|process|nodejs)_[a-z0-9_]+)(?:\{([^}]*)\})?/g)].map(
    ([, metric = '', inner = '']) => ({
      metric,
      labels: [...inner.matchAll(/([a-z_]+)\s*(?:=~|!~|!=|=)/g)].map(([, label = '']) => label),
    }),
  );

const findFamily = (metric: string): MetricName | undefined =>
  METRIC_NAMES.find((name) => {
    const { type } = METRICS[name];
    return metric === name || (type === 'histogram' && new RegExp(`^${name}_(?:bucket|sum|count)$`).test(metric));
  });

let gateway: TestGateway;
let issuer: ForeignIssuerServer;
let live: Scrape;
beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-crl-'));
  const crl = join(folder, 'ca.crl');
  issuer = await startForeignIssuer();
  gateway = await startGateway();
  writeFileSync(crl, (await createCrl(gateway.ca)).pem);
  await gateway.reload((settings) => ({
    ...settings,
    certificates: {
      ...settings.certificates,
      // Nothing listens there.
      issuers: [{ file: 'ca.pem', ocsp: { url: 'http://127.0.0.1:1/', softFail: true } }],
      crls: [crl, { url: 'http://127.0.0.1:1/ca.crl' }],
    },
    audit: { sink: 'stdout' },
    trustedIssuers: {
      corp: {
        issuer: issuer.url,
        audience: 'files-api',
        introspection: { url: `${issuer.url}/introspect`, clientId: 'gatehouse', clientSecret: 'a secret' },
      },
    },
    routes: [...(settings.routes ?? []), { path: '/limited', public: true, rate: '1/h' }],
  }));
  rmSync(folder, { recursive: true });
  const { access_token: token } = await gateway.grant();
  await gateway.api('/files/x', token);
  await gateway.api('/files/x');
  await gateway.api('/limited');
  await gateway.api('/limited');
  await sendGrpcCall('/whoami');
  live = await until('the keys of the issuer were fetched', async () => {
    const found = await scrape(gateway.adminPort);
    return found.families.has('gatehouse_issuer_keys_age_seconds') ? found : undefined;
  });
});
/** A call without a token. */
async function sendGrpcCall(path: string): Promise<void> {
  const session = connect(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
  const stream = session.request({ ':method': 'POST', ':path': path, 'content-type': 'application/grpc' });
  stream.end().resume();
  await once(stream, 'close');
  session.close();
}

afterAll(async () => {
  await gateway?.close();
  issuer?.close();
});

test('promtool accepts the alert rules and their tests', () => {
  const run = (...args: string[]) => spawnSync('promtool', args, { cwd: FOLDER, encoding: 'utf8' });
  const check = run('check', 'rules', 'rules.yaml');
  expect(check.status, check.stdout + check.stderr).toBe(0);
  const tests = run('test', 'rules', 'rules.test.yaml');
  expect(tests.status, tests.stdout + tests.stderr).toBe(0);
});

test('every alert is tested to fire and not to fire, and describes the remedy', () => {
  const { tests } = parse(readMonitoringFile('rules.test.yaml')) as {
    tests: { alert_rule_test: { alertname: string; exp_alerts: unknown[] }[] }[];
  };
  const tried = tests.flatMap(({ alert_rule_test: cases }) => cases);
  for (const { alert, labels, annotations } of rules) {
    const mine = tried.filter(({ alertname }) => alertname === alert);
    expect(
      mine.some(({ exp_alerts: fired }) => fired.length > 0),
      `${alert} fires`,
    ).toBe(true);
    expect(
      mine.some(({ exp_alerts: fired }) => fired.length === 0),
      `${alert} does not fire`,
    ).toBe(true);
    expect(['critical', 'warning']).toContain(labels.severity);
    expect(annotations.description.length).toBeGreaterThan(20);
  }
});

test.each([
  ['alert rules', rules.map(({ expr }) => expr)],
  ['dashboard', queries],
])('every metric and label the %s name are in a live scrape of a running gateway', (_what, expressions) => {
  const uses = expressions.flatMap(listMetrics);
  expect(uses.length).toBeGreaterThan(15);
  for (const { metric, labels } of uses) {
    const family = findFamily(metric);
    expect(family, `${metric} is a metric`).toBeDefined();
    if (family === undefined) continue;
    expect(live.families.has(family), `${metric} is scraped`).toBe(true);
    const known = [...METRICS[family].labels, 'job', 'instance', 'le'];
    for (const label of labels) expect(known, `a label of ${metric}`).toContain(label);
  }
});

test('every metric occurs in a live scrape', () => {
  expect(METRIC_NAMES.filter((name) => !live.families.has(name))).toEqual([]);
});

test('the queries of the dashboard are valid PromQL, and no panels overlap', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-promql-'));
  const plain = (expr: string): string =>
    expr.replaceAll('$__rate_interval', '5m').replaceAll('$job', '.*').replaceAll('$instance', '.*');
  const checked = queries.filter((expr) => !expr.startsWith('label_values'));
  const file = join(folder, 'queries.json');
  writeFileSync(
    file,
    JSON.stringify({
      groups: [
        {
          name: 'queries',
          rules: checked.map((expr, index) => ({ record: `query:${index}`, expr: plain(expr) })),
        },
      ],
    }),
  );
  const { status, stdout, stderr } = spawnSync('promtool', ['check', 'rules', file], { encoding: 'utf8' });
  rmSync(folder, { recursive: true });
  expect(status, stdout + stderr).toBe(0);
  const taken = new Set<string>();
  for (const { title, gridPos } of dashboard.panels)
    for (let x = gridPos.x; x < gridPos.x + gridPos.w; x += 1)
      for (let y = gridPos.y; y < gridPos.y + gridPos.h; y += 1) {
        expect(x, title).toBeLessThan(24);
        expect(taken.has(`${x},${y}`), title).toBe(false);
        taken.add(`${x},${y}`);
      }
});
