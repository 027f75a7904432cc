import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { createMetrics } from '../../src/observability/metrics.ts';
import { openTracer } from '../../src/observability/tracing.ts';
import { until } from '../support/serve-process.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { type HttpReceiver, startHttpReceiver } from './audit-receivers.ts';

interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: {
    readonly key: string;
    readonly value: { stringValue?: string; intValue?: string };
  }[];
  readonly status: { readonly code?: number };
}

let collector: HttpReceiver;
let gateway: TestGateway;
beforeAll(async () => {
  collector = await startHttpReceiver();
  gateway = await startGateway((settings) => ({
    ...settings,
    tracing: { otlp: `${collector.url}/v1/traces`, ratio: 1, token: 'collector-token', service: 'front' },
  }));
});
afterAll(async () => {
  await gateway.close();
  await collector.close();
});

const spans = (from: HttpReceiver = collector): Span[] =>
  from.deliveries.flatMap(({ body }) => {
    const { resourceSpans } = JSON.parse(body) as { resourceSpans: { scopeSpans: { spans: Span[] }[] }[] };
    return resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans));
  });
const attribute = (span: Span, name: string): string | undefined => {
  const value = span.attributes.find(({ key }) => key === name)?.value;
  return value?.stringValue ?? value?.intValue;
};
const waitForSpan = (traceId: string): Promise<Span> =>
  until(`a span with trace id ${traceId} is exported`, () => spans().find((span) => span.traceId === traceId));

test('a request becomes one server span between the caller and the upstream', async () => {
  const { access_token: token } = await gateway.grant();
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
  const before = Date.now();
  await gateway.api('/files/one?secret=hush', token, {
    headers: { traceparent: `00-${trace}-00f067aa0ba902b7-00` },
  });
  const span = await waitForSpan(trace);
  expect(span).toMatchObject({ parentSpanId: '00f067aa0ba902b7', kind: 2, status: {} });
  expect(span.spanId).toMatch(/^[0-9a-f]{16}$/);
  expect(span.spanId).not.toBe('00f067aa0ba902b7');
  expect(span.name).toMatch(/^GET routes\[\d+\] \/files/);
  expect(gateway.upstream.requests.at(-1)?.headers['traceparent']).toBe(`00-${trace}-${span.spanId}-01`);
  expect(attribute(span, 'http.request.method')).toBe('GET');
  expect(attribute(span, 'http.response.status_code')).toBe('200');
  expect(attribute(span, 'gatehouse.client_id')).toBe('report-runner');
  expect(attribute(span, 'gatehouse.upstream')).toBe('default');
  const [start, end] = [Number(span.startTimeUnixNano) / 1e6, Number(span.endTimeUnixNano) / 1e6];
  expect(start).toBeLessThanOrEqual(end);
  expect(start).toBeGreaterThan(before - 1_000);
  expect(end).toBeLessThan(Date.now() + 1_000);
  const line = await until('the request is logged', () => gateway.log.find((entry) => entry['trace_id'] === trace));
  expect(attribute(span, 'gatehouse.request_id')).toBe(line['request_id']);
});

test('rejections and token API requests are also traced, and no span contains a path, query, token or identity', async () => {
  const refused = 'aaaabbbbccccddddeeeeffff00001111';
  await gateway.api('/files/hidden-path?q=hush', 'eyJhbGciOi.nonsense', {
    headers: { traceparent: `00-${refused}-00f067aa0ba902b7-01` },
  });
  const span = await waitForSpan(refused);
  expect(attribute(span, 'gatehouse.decision')).toBe('refused');
  expect(attribute(span, 'gatehouse.reason')).toMatch(/^token_/);
  await until('a span of the token API is exported', () =>
    spans().some(({ name }) => name === 'POST authsvc:certificate'),
  );
  const all = collector.deliveries.map(({ body }) => body).join('\n');
  expect(all).not.toMatch(/hush|hidden-path|eyJ|local:\{/);
  const [{ headers } = { headers: {} }] = collector.deliveries;
  expect(headers).toMatchObject({
    authorization: 'Bearer collector-token',
    'content-type': 'application/json',
  });
  const { resourceSpans } = JSON.parse(collector.deliveries[0]?.body ?? '') as {
    resourceSpans: { resource: { attributes: { key: string; value: { stringValue: string } }[] } }[];
  };
  expect(resourceSpans[0]?.resource.attributes).toContainEqual({
    key: 'service.name',
    value: { stringValue: 'front' },
  });
});

test('a failing upstream yields a span with an error status', async () => {
  await gateway.reload((settings) => ({
    ...settings,
    upstreams: { ...settings.upstreams, default: { url: 'http://127.0.0.1:1' } },
  }));
  const { access_token: token } = await gateway.grant();
  const trace = '11112222333344445555666677778888';
  expect(
    (await gateway.api('/files/x', token, { headers: { traceparent: `00-${trace}-00f067aa0ba902b7-01` } })).status,
  ).toBe(502);
  const span = await waitForSpan(trace);
  expect(span.status.code).toBe(2);
  expect(attribute(span, 'error.type')).toBe('502');
});

test('traces are sampled by trace id, consistently across replicas, and only trusted proxies can override the decision', () => {
  const tracer = (ratio: number) =>
    openTracer({
      url: collector.url,
      ratio,
      service: 'gatehouse',
      version: '0',
      log: createLogger({ level: 'error', format: 'json', write: () => {} }),
      metrics: createMetrics(),
    });
  const [tracerA, tracerB] = [tracer(0.25), tracer(0.25)];
  const ids = Array.from({ length: 4_000 }, () => crypto.randomUUID().replaceAll('-', ''));
  const parent = (id: string, flags = '01'): string => `00-${id}-00f067aa0ba902b7-${flags}`;
  const chosen = ids.filter((id) => tracerA.startSpan(parent(id), false) !== undefined);
  expect(chosen.length).toBeGreaterThan(800);
  expect(chosen.length).toBeLessThan(1_200);
  expect(ids.filter((id) => tracerB.startSpan(parent(id), false) !== undefined)).toEqual(chosen);
  const left = ids.find((id) => !chosen.includes(id)) ?? '';
  expect(tracerA.startSpan(parent(left, '01'), true)).toMatchObject({ parentSpan: '00f067aa0ba902b7' });
  expect(tracerA.startSpan(parent(left, '00'), true)).toBeUndefined();
  expect(tracer(1).startSpan('nonsense', false)).toMatchObject({ parentSpan: '' });
});

test('with an unreachable collector, spans are dropped and counted, and no request waits', async () => {
  const unreachable = await startGateway((settings) => ({
    ...settings,
    tracing: { otlp: 'http://127.0.0.1:1/v1/traces', ratio: 1 },
  }));
  const { metrics } = unreachable.server;
  try {
    const { access_token: token } = await unreachable.grant();
    for (let index = 0; index < 20; index += 1)
      expect((await unreachable.api(`/files/${index}`, token)).status).toBe(200);
    await until('the export failure is logged', () =>
      unreachable.log.some(({ event }) => event === 'span_export_failed'),
    );
  } finally {
    await unreachable.close();
  }
  const { gatehouse_spans_dropped_total: dropped = [] } = await metrics.snapshot();
  expect(dropped[0]?.[1]).toBeGreaterThan(0);
});
