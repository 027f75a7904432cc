import { expect, onTestFinished, test } from 'vitest';
import { frameClient, requestFields } from '../support/http2-frames.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { scrape } from '../support/scrape.ts';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { startHttpReceiver } from './audit-receivers.ts';

interface Span {
  readonly attributes: readonly { readonly key: string; readonly value: Readonly<Record<string, string>> }[];
  readonly status: { readonly code?: number };
}

test('log, metrics and spans have the method and the result of a gRPC call', async () => {
  const upstream = await startRecordingUpstream();
  onTestFinished(() => upstream.close());
  const collector = await startHttpReceiver();
  onTestFinished(() => collector.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    upstreams: { default: { url: upstream.url } },
    routes: [
      { path: '/test.Public/*', public: true },
      { path: '/test.Files/*', requires: 'files:read' },
    ],
    tracing: { otlp: `${collector.url}/v1/traces`, ratio: 1 },
  }));
  onTestFinished(() => gateway.close());
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
  onTestFinished(() => client.destroy());
  upstream.respondWith((socket, { target }) => {
    const result = target.endsWith('Fail') ? 13 : 0;
    socket.write(
      `HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n0\r\ngrpc-status: ${result}\r\n\r\n`,
    );
  });
  for (const [path, contentType] of [
    ['/test.Public/Get', 'application/grpc'],
    ['/test.Public/Get', 'application/grpc'],
    ['/test.Public/Fail', 'application/grpc'],
    ['/test.Files/Get', 'application/grpc'],
    ['/test.Files/Get', 'application/json'],
  ] as const)
    await client.waitForEnd(client.post([...requestFields(path, 'POST'), ['content-type', contentType]], '\0\0\0\0\0'));
  const lines = await until('all requests are logged', () => {
    const found = gateway.log.filter(({ event }) => event === 'request');
    return found.length === 5 ? found : undefined;
  });
  expect(lines.map((line) => [line['status'], line['grpc_status'], line['grpc_method'], line['decision']])).toEqual([
    [200, 0, 'test.Public/Get', 'forwarded'],
    [200, 0, 'test.Public/Get', 'forwarded'],
    [200, 13, 'test.Public/Fail', 'forwarded'],
    [401, 16, 'test.Files/Get', 'refused'],
    [401, undefined, undefined, 'refused'],
  ]);
  const metrics = await scrape(gateway.adminPort);
  expect(metrics.value('gatehouse_grpc_results_total{upstream="default",code="0"}')).toBe(2);
  expect(metrics.value('gatehouse_grpc_results_total{upstream="default",code="13"}')).toBe(1);
  expect([...metrics.samples.keys()].filter((name) => name.startsWith('gatehouse_grpc')).length).toBeLessThanOrEqual(3);
  const spans = await until('all spans are exported', () => {
    const all = collector.deliveries.flatMap(({ body }) => {
      const { resourceSpans } = JSON.parse(body) as { resourceSpans: { scopeSpans: { spans: Span[] }[] }[] };
      return resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans));
    });
    return all.length === 5 ? all : undefined;
  });
  const read = ({ attributes, status }: Span): unknown[] => [
    ...['rpc.system', 'rpc.method', 'rpc.grpc.status_code', 'error.type'].map(
      (name) => Object.values(attributes.find(({ key }) => key === name)?.value ?? {})[0],
    ),
    status.code,
  ];
  expect(spans.map(read)).toEqual([
    ['grpc', 'test.Public/Get', '0', undefined, undefined],
    ['grpc', 'test.Public/Get', '0', undefined, undefined],
    ['grpc', 'test.Public/Fail', '13', '13', 2],
    ['grpc', 'test.Files/Get', '16', undefined, undefined],
    [undefined, undefined, undefined, undefined, undefined],
  ]);
});
