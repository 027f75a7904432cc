import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { dropGauges, formatExposition, mergeSnapshots } from '../../src/observability/metric-registry.ts';
import { createMetrics } from '../../src/observability/metrics.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { needs } from '../set-up/programs.ts';
import { startRedis } from '../support/redis-server.ts';
import { adminRequest, type Scrape, scrape } from '../support/scrape.ts';
import { until } from '../support/serve-process.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

needs('promtool');

let gateway: TestGateway;

beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const scrapeGateway = () => scrape(gateway.adminPort);
/** Requests are counted when they end, shortly after the response arrived. */
const waitForValue = (sample: string, value: number) =>
  until(`${sample} is ${value}`, async () => (await scrapeGateway()).value(sample) === value);

test('a request is counted by rule, method and status, and its duration is recorded', async () => {
  const { access_token: token } = await gateway.grant();
  for (let times = 0; times < 3; times += 1) expect((await gateway.api('/files/a', token)).status).toBe(200);
  const files = [...(await scrapeGateway()).samples.keys()].find((name) =>
    /requests_total\{rule="[^"]*\/files/.test(name),
  );
  const rule = /rule="([^"]+)"/.exec(files ?? '')?.[1] ?? '';
  await waitForValue(`gatehouse_http_requests_total{rule="${rule}",method="GET",code="200"}`, 3);
  const found = await scrapeGateway();
  expect(found.value(`gatehouse_http_request_duration_seconds_count{rule="${rule}"}`)).toBe(3);
  expect(found.value(`gatehouse_http_request_duration_seconds_bucket{rule="${rule}",le="+Inf"}`)).toBe(3);
  expect(found.value(`gatehouse_http_request_duration_seconds_sum{rule="${rule}"}`)).toBeGreaterThan(0);
  expect(found.value('gatehouse_upstream_requests_total{upstream="default",code="2xx"}')).toBe(3);
  expect(found.value('gatehouse_upstream_request_duration_seconds_count{upstream="default"}')).toBe(3);
  expect(found.value('gatehouse_auth_decisions_total{decision="forwarded",reason="none"}')).toBe(3);
  expect(found.value('gatehouse_http_requests_in_flight')).toBe(0);
});

test('grant operations are counted', async () => {
  const before = await scrapeGateway();
  const readIncrease = async (sample: string) => (await scrapeGateway()).value(sample) - before.value(sample);
  const grant = await gateway.grant();
  const next = (await gateway.refresh(grant.refresh_token)).json as {
    refresh_token: string;
    access_token: string;
  };
  await gateway.api('/authsvc/Revoke/Token', next.access_token);
  expect(await readIncrease('gatehouse_tokens_issued_total{grant="certificate"}')).toBe(1);
  expect(await readIncrease('gatehouse_tokens_issued_total{grant="refresh"}')).toBe(1);
  expect(await readIncrease('gatehouse_revocations_total')).toBe(1);
  expect(await readIncrease('gatehouse_audit_events_total{event="grant_issued"}')).toBe(1);
  expect(await readIncrease('gatehouse_store_operation_duration_seconds_count{op="grants.create"}')).toBe(1);

  const stolen = await gateway.grant();
  await gateway.refresh(stolen.refresh_token);
  gateway.clock.advance(120);
  expect((await gateway.refresh(stolen.refresh_token)).status).toBe(400);
  expect(await readIncrease('gatehouse_refresh_reuse_detected_total')).toBe(1);
  expect(await readIncrease('gatehouse_revocations_total')).toBe(2);
});

test('O13 paths, methods, client ids, hosts and tokens of requests create no new series', async () => {
  await gateway.api('/nowhere', 'not-a-token');
  await gateway.request({ path: '/authsvc/Authorize/Token', method: 'POST', body: '{}' });
  await gateway.request({ path: '/x', method: 'PROPFIND' });
  await until(
    'the requests are counted',
    async () => (await scrapeGateway()).value('gatehouse_http_requests_in_flight') === 0,
  );
  const before = new Set((await scrapeGateway()).samples.keys());
  for (let index = 0; index < 30; index += 1) {
    await gateway.api(`/made-up/${index}?q=${index}`, `nonsense-${index}`, {
      headers: { host: `h${index}.test` },
    });
    await gateway.post('/Authorize/Token', { client_id: `invented-${index}`, refresh_token: `r${index}` });
    await gateway.request({
      path: `/x${index}`,
      method: ['PROPFIND', 'MKCOL', 'LOCK', 'REPORT'][index % 4] ?? 'COPY',
    });
  }
  await until(
    'the requests are counted',
    async () => (await scrapeGateway()).value('gatehouse_http_requests_in_flight') === 0,
  );
  const added = [...(await scrapeGateway()).samples.keys()].filter((name) => !before.has(name));
  // Only reasons and statuses add series; there are few, and none contains client input.
  expect(added.filter((name) => /made-up|invented|nonsense|MKCOL|LOCK|\.test/.test(name))).toEqual([]);
  expect(added.length).toBeLessThan(12);
  expect([...before].filter((name) => name.includes('method="OTHER"')).length).toBeGreaterThan(0);
});

test('failed TLS handshakes and rejected connections are counted', async () => {
  const failures = 'gatehouse_tls_handshake_failures_total';
  const before = (await scrapeGateway()).value(failures);
  const socket = connect(gateway.port, '127.0.0.1', () => socket.write('GET / HTTP/1.1\r\n\r\n'));
  socket.on('error', () => {});
  await waitForValue(failures, before + 1);
  socket.destroy();

  const small = await startGateway((settings) => ({
    ...settings,
    limits: { ...settings.limits, connections: 1 },
  }));
  onTestFinished(() => small.close());
  const sockets = Array.from({ length: 4 }, () => connect(small.port, '127.0.0.1').on('error', () => {}));
  await until('the requests are counted', async () => {
    const found = await scrape(small.adminPort);
    return found.value('gatehouse_connections_refused_total') === 3;
  });
  for (const socket of sockets) socket.destroy();
});

test('while Redis hangs, the metrics report an unreachable store, revocation lag and not ready, and then recover', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-keys-'));
  const file = join(folder, 'keys.json');
  writeKeyringFile(file, createKeyringFile('EdDSA'), { replace: false });
  const server = await startRedis();
  const shared = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: server.url },
    keys: { file },
  }));
  const waitForMetrics = (what: string, condition: (found: Scrape) => boolean) =>
    until(what, async () => condition(await scrape(shared.adminPort)), 40);
  const lag = 'gatehouse_revocation_lag_seconds';
  try {
    await waitForMetrics('it is well', (found) => found.value('gatehouse_store_up') === 1 && found.value(lag) < 2);
    server.pause();
    await waitForMetrics('the store is away', (found) => found.value('gatehouse_store_up') === 0);
    await waitForMetrics('it lags', (found) => found.value(lag) > 2 && found.value('gatehouse_ready') === 0);
    server.resume();
    await waitForMetrics('it is well again', (found) => found.value('gatehouse_ready') === 1 && found.value(lag) < 2);
  } finally {
    server.resume();
    await shared.close();
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }
});

test('promtool accepts the exposition', async () => {
  const { text, contentType } = await scrapeGateway();
  expect(contentType).toBe('text/plain; version=0.0.4; charset=utf-8');
  const { status, stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], {
    input: text,
    encoding: 'utf8',
  });
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '', stderr: '' });
});

test('O13 metrics are served on the admin listener only', async () => {
  expect((await gateway.request({ path: '/metrics' })).status).toBe(401);
  expect((await adminRequest(gateway.adminPort, '/metrics', 'POST')).status).toBe(405);
  const head = await adminRequest(gateway.adminPort, '/metrics', 'HEAD');
  expect([head.status, head.text]).toEqual([200, '']);
});

test('probes have aliases, list every check on request, and are not logged', async () => {
  const before = gateway.logLines.length;
  for (const path of ['/livez', '/healthz', '/ping', '/health/alive', '/readyz', '/ready', '/health/ready'])
    expect((await adminRequest(gateway.adminPort, path)).status).toBe(200);
  const { text } = await adminRequest(gateway.adminPort, '/readyz?verbose');
  expect(JSON.parse(text)).toMatchObject({
    status: 'ready',
    checks: [
      { name: 'accepting', status: 'ok' },
      { name: 'store', status: 'ok' },
      { name: 'revocations', status: 'ok' },
      { name: 'clock', status: 'ok' },
      { name: 'event loop' },
    ],
  });
  expect(JSON.parse((await adminRequest(gateway.adminPort, '/readyz')).text)).toEqual({ status: 'ready' });
  expect(gateway.logLines.length).toBe(before);
});

test('the expiry of certificates and CRLs, connections and the store are exposed', async () => {
  const found = await scrapeGateway();
  const now = Date.now() / 1_000;
  expect(found.value('gatehouse_tls_cert_not_after_seconds{cert="listener"}')).toBeGreaterThan(now);
  expect(found.value('gatehouse_tls_cert_not_after_seconds{cert="issuer:ca"}')).toBeGreaterThan(now);
  expect(found.value('gatehouse_connections')).toBeGreaterThan(0);
  expect(found.value('gatehouse_store_up')).toBe(1);
  expect(found.value('gatehouse_ready')).toBe(1);
  expect(found.value('gatehouse_workers')).toBe(1);
  expect(found.value('gatehouse_revocation_lag_seconds')).toBe(0);
  expect(found.value('gatehouse_config_reload_success_timestamp_seconds')).toBeGreaterThan(now - 600);
  expect(found.value('process_resident_memory_bytes')).toBeGreaterThan(1e7);
  expect(found.value('process_open_fds')).toBeGreaterThan(5);
});

test('metrics of several processes are merged: counters are summed, gauges aggregated by kind, and counts of exited processes kept', async () => {
  const make = async (requests: number, lag: number) => {
    const metrics = createMetrics();
    const rule = metrics.registerRule('a "rule"\\ with\nodd signs');
    for (let index = 0; index < requests; index += 1) {
      metrics.requestStarted();
      if (index > 0) metrics.requestCompleted(rule, 'GET', 200, 0.002);
    }
    metrics.addCollector((set) => {
      set('gatehouse_event_loop_lag_seconds', lag);
      set('gatehouse_store_up', lag > 1 ? 0 : 1);
    });
    return metrics.snapshot();
  };
  const [first, second, exited] = await Promise.all([make(3, 0.5), make(5, 2), make(11, 9)]);
  const text = formatExposition(mergeSnapshots([first, second, dropGauges(exited)]));
  const label = 'rule="a \\"rule\\"\\\\ with\\nodd signs"';
  expect(text).toContain(`gatehouse_http_requests_total{${label},method="GET",code="200"} 16\n`);
  expect(text).toContain(`gatehouse_http_request_duration_seconds_bucket{${label},le="0.0025"} 16\n`);
  expect(text).toContain(`gatehouse_http_request_duration_seconds_bucket{${label},le="0.001"} 0\n`);
  expect(text).toContain('gatehouse_http_requests_in_flight 2\n');
  expect(text).toContain('gatehouse_event_loop_lag_seconds 2\n');
  expect(text).toContain('gatehouse_store_up 0\n');
  const { status } = spawnSync('promtool', ['check', 'metrics'], { input: text, encoding: 'utf8' });
  expect(status).toBe(0);
});

test('an unknown method and an invalid status are counted as other', async () => {
  const metrics = createMetrics();
  metrics.requestCompleted(metrics.getRule(undefined), 'BREW', 1_000);
  const text = formatExposition(await metrics.snapshot());
  expect(text).toContain('gatehouse_http_requests_total{rule="none",method="OTHER",code="other"} 1\n');
});

test('the number of series is bounded across many configurations', async () => {
  const metrics = createMetrics();
  for (let index = 0; index < 3_000; index += 1)
    metrics.requestCompleted(metrics.registerRule(`routes[0] /v${index}`), 'GET', 200, 0.1);
  for (let index = 0; index < 3_000; index += 1)
    metrics.countDecision('refused', `reason_${String.fromCharCode(97 + (index % 26))}${'x'.repeat(index % 60)}`);
  const { gatehouse_http_requests_total: requests = [], gatehouse_auth_decisions_total: decisions = [] } =
    await metrics.snapshot();
  expect(requests.length).toBeLessThanOrEqual(1_000);
  expect(decisions.length).toBeLessThanOrEqual(2_001);
  expect(requests.reduce((sum, [, value]) => sum + value, 0)).toBe(3_000);
});
