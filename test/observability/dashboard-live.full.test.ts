import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCrl } from '../support/pki.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

/**
 * The dashboard with a real Prometheus that scrapes a real gatehouse with two workers under mixed traffic: every query of
 * every panel returns data, with all labels that its legend uses.
 */
interface Target {
  readonly expr: string;
  readonly legendFormat?: string;
}
interface Dashboard {
  readonly panels: readonly { readonly title: string; readonly targets?: readonly Target[] }[];
  readonly templating: { readonly list: readonly { readonly name: string; readonly definition?: string }[] };
}
const dashboard = JSON.parse(
  readFileSync(join(import.meta.dirname, '../../deploy/monitoring/dashboard.json'), 'utf8'),
) as Dashboard;

let folder: ServeFolder;
let server: ServeProcess;
let broken: Server;
let directory: string;
let prometheus: ChildProcess | undefined;
let url: string;
let traffic: Promise<void>;
let clients: Client[] = [];
const over = new AbortController();
let failing = false;

beforeAll(async () => {
  // An upstream that fails, so that the panels of failures have data.
  broken = createServer((request, response) => request.resume().on('end', () => response.writeHead(500).end()));
  await new Promise<void>((resolve) => broken.listen(0, '127.0.0.1', resolve));
  const { port: brokenPort } = broken.address() as AddressInfo;
  folder = await createServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
    upstreams: {
      ...settings.upstreams,
      broken: { url: `http://127.0.0.1:${brokenPort}` },
      gone: { url: 'http://127.0.0.1:1' },
    },
    routes: [
      { path: '/broken/**', public: true, upstream: 'broken' },
      { path: '/gone/**', public: true, upstream: 'gone' },
      { path: '/tried/**', requires: 'reports:write', reportOnly: true },
      ...(settings.routes ?? []),
    ],
    // Nothing listens there.
    trustedIssuers: { corp: { issuer: 'http://127.0.0.1:1', audience: 'files-api' } },
    log: { level: 'info', access: { enabled: false } },
  }));
  folder.write('ca.crl', (await createCrl(folder.ca)).pem);
  folder.configure((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, crls: ['ca.crl'] },
  }));
  server = await startServe(folder);

  directory = mkdtempSync(join(tmpdir(), 'gatehouse-prometheus-'));
  writeFileSync(
    join(directory, 'prometheus.yml'),
    JSON.stringify({
      global: { scrape_interval: '1s' },
      scrape_configs: [{ job_name: 'gatehouse', static_configs: [{ targets: [`127.0.0.1:${server.adminPort}`] }] }],
    }),
  );
  prometheus = spawn(
    'prometheus',
    [
      `--config.file=${join(directory, 'prometheus.yml')}`,
      `--storage.tsdb.path=${join(directory, 'data')}`,
      '--web.listen-address=127.0.0.1:0',
    ],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  const found = Promise.withResolvers<string>();
  let output = '';
  prometheus.stderr?.on('data', (part: Buffer) => {
    output += part.toString();
    const address = /msg="Listening on" address=(\S+)/.exec(output)?.[1];
    if (address !== undefined) found.resolve(address);
  });
  prometheus.once('exit', () => found.reject(new Error(`Prometheus exited: ${output}`)));
  url = `http://${await found.promise}`;
  await until('Prometheus responds', async () => (await fetch(`${url}/-/ready`).catch(() => undefined))?.ok, 60);
  clients = Array.from({ length: 4 }, () => connect(folder, server.port, folder.alice));
  traffic = generateTraffic(over.signal);
});
afterAll(async () => {
  over.abort();
  await traffic;
  for (const client of clients) client.close();
  const running = prometheus;
  if (running?.exitCode === null) {
    const ended = new Promise((resolve) => running.once('exit', resolve));
    running.kill('SIGTERM');
    await ended;
  }
  await folder?.remove();
  broken?.close();
  rmSync(directory, { recursive: true, force: true });
});

/** Produces grants, refreshes, reused refresh tokens, revocations, rejections and upstream failures until aborted. */
async function generateTraffic(signal: AbortSignal): Promise<void> {
  await Promise.all(
    clients.map(async (client) => {
      while (!signal.aborted) {
        const grant = await client.grant();
        const headers = { authorization: `Bearer ${grant.access_token}` };
        for (const path of ['/whoami', '/tried/1', '/files/1', ...(failing ? ['/broken/1', '/gone/1'] : [])])
          await client.request({ path, headers });
        await client.request({ path: '/whoami' });
        const next = (await client.refresh(grant.refresh_token)).json['refresh_token'];
        await client.refresh(String(next));
        await client.refresh(grant.refresh_token);
        await client.revoke((await client.grant()).access_token);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }),
  );
}

interface Sample {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: readonly [number, string];
}

async function queryPrometheus<T>(path: string, query: Readonly<Record<string, string>>): Promise<T> {
  const response = await fetch(`${url}/api/v1/${path}?${new URLSearchParams(query).toString()}`);
  const { status, data, error } = (await response.json()) as { status: string; data: T; error?: string };
  if (status !== 'success') throw new Error(`${query['query']}: ${error}`);
  return data;
}

/** Replaces variables like Grafana, for a scrape interval of one second. */
const replaceVariables = (expr: string): string =>
  expr.replaceAll('$__rate_interval', '10s').replaceAll('$job', 'gatehouse').replaceAll('$instance', '.+');

/** Why the panel of a query would be empty or its legend incomplete; undefined if it is not. */
async function findMissing({ expr, legendFormat = '' }: Target): Promise<string | undefined> {
  const { result } = await queryPrometheus<{ result: readonly Sample[] }>('query', {
    query: replaceVariables(expr),
  });
  if (!result.some(({ value }) => Number.isFinite(Number(value[1])))) return 'finds nothing';
  const labels = [...legendFormat.matchAll(/\{\{\s*(\w+)\s*\}\}/g)].map(([, label = '']) => label);
  const absent = labels.filter((label) => result.some(({ metric }) => !metric[label]));
  return absent.length > 0 ? `has no label ${absent.join(', ')}` : undefined;
}

test('A12 Prometheus has values for every variable of the dashboard', async () => {
  for (const { name, definition = '' } of dashboard.templating.list.filter(({ name: of }) => of !== 'datasource')) {
    const [, series = '', label = ''] = /^label_values\((.+), (\w+)\)$/.exec(definition) ?? [];
    await until(`${name} has values`, async () => {
      const values = await queryPrometheus<readonly string[]>(`label/${label}/values`, {
        'match[]': replaceVariables(series),
      });
      return values.length === 1;
    });
  }
});

test('A12 without failures, the error rate is 0 and not missing', async () => {
  const [{ expr } = { expr: '' }] = dashboard.panels.find(({ title }) => title === '5xx responses')?.targets ?? [];
  const readErrorRate = async (): Promise<string | undefined> =>
    (await queryPrometheus<{ result: readonly Sample[] }>('query', { query: replaceVariables(expr) })).result[0]
      ?.value[1];
  await until('the error rate is 0', async () => (await readErrorRate()) === '0', 30);
  failing = true;
  await until('the failure is counted', async () => Number(await readErrorRate()) > 0, 30);
});

test('A12 no panel is empty under traffic: every query returns data with the labels of its legend', async () => {
  const all = dashboard.panels.flatMap(({ title, targets = [] }) => targets.map((target) => ({ title, target })));
  expect(all.length).toBeGreaterThan(40);
  let empty: string[] = [];
  try {
    await until(
      'every panel has data',
      async () => {
        empty = [];
        for (const { title, target } of all) {
          const why = await findMissing(target);
          if (why !== undefined) empty.push(`${title}: ${target.expr} ${why}`);
        }
        return empty.length === 0;
      },
      60,
    );
  } catch {
    expect(empty).toEqual([]);
  }
}, 120_000);
