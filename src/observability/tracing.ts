import { hostname } from 'node:os';
import { DeliveryQueue } from '../lib/delivery-queue.ts';
import type { RequestRecord } from './access-log.ts';
import { openPoster } from './json-poster.ts';
import { errorFields, type Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import { getSpanId, getTraceId, isSampled, isTraceparent, newSpanId, newTraceId } from './trace-context.ts';

export interface SpanContext {
  /** The traceparent for the upstream, with this span as the parent. Named as in `RequestNotes`, which receives it. */
  readonly trace: string;
  /** Empty for a root span. */
  readonly parentSpan: string;
}

interface TracerOptions {
  readonly url: string;
  /** Ratio of sampled traces, from 0 to 1. */
  readonly ratio: number;
  readonly token?: string | undefined;
  readonly ca?: string | undefined;
  readonly service: string;
  readonly version: string;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly lingerMs?: number;
}

const MAX_SPANS = 4_096;
const BATCH_SIZE = 512;
const LINGER_MS = 1_000;
const MAX_ATTEMPTS = 3;
const CLOSE_TIMEOUT_MS = 2_000;

export type Tracer = ReturnType<typeof openTracer>;

/**
 * Sends one server span per sampled request to an OpenTelemetry collector over OTLP/HTTP in JSON. Requests do not wait for
 * the collector; spans it does not accept are dropped and counted. A span has no path, query, header or identity; that of a gRPC call has
 * its method.
 */
export function openTracer(options: TracerOptions) {
  const { url, ratio, token, ca, log, metrics } = options;
  const poster = openPoster({ url, ca });
  const dropped = metrics.counter('gatehouse_spans_dropped_total');
  const resource = {
    attributes: [
      stringAttribute('service.name', options.service),
      stringAttribute('service.version', options.version),
      stringAttribute('service.instance.id', `${hostname()}:${process.pid}`),
    ],
  };
  let isFailureReported = false;
  const queue = new DeliveryQueue<ReturnType<typeof createSpan>>({
    maxPending: MAX_SPANS,
    batchSize: BATCH_SIZE,
    lingerMs: options.lingerMs ?? LINGER_MS,
    maxAttempts: MAX_ATTEMPTS,
    async deliver(spans) {
      const body = JSON.stringify({
        resourceSpans: [{ resource, scopeSpans: [{ scope: { name: 'gatehouse' }, spans }] }],
      });
      const status = await poster.post(body, token === undefined ? {} : { authorization: `Bearer ${token}` });
      if (status < 200 || status > 299) throw new Error(`the collector responded with ${status}`);
    },
    onLost: (lost) => {
      dropped.value += lost;
    },
    onFailure(error) {
      if (!isFailureReported) log.warn('span_export_failed', { ...errorFields(error), stack: undefined });
      isFailureReported = true;
    },
    onRecovered: () => {
      isFailureReported = false;
    },
  });

  return {
    /** Undefined if the trace is not sampled. */
    startSpan(parent: string | undefined, trusted: boolean): SpanContext | undefined {
      const isValidParent = parent !== undefined && isTraceparent(parent);
      const traceId = isValidParent ? getTraceId(parent) : newTraceId();
      // Only trusted proxies may decide that a trace is sampled.
      if (!isSampledByRatio(traceId, ratio) && !(isValidParent && trusted && isSampled(parent))) return undefined;
      return {
        trace: `00-${traceId}-${newSpanId()}-01`,
        parentSpan: isValidParent ? getSpanId(parent) : '',
      };
    },
    endSpan(record: RequestRecord): void {
      if (record.parentSpan !== undefined && record.traceparent !== undefined)
        queue.enqueue(createSpan(record, record.traceparent));
    },
    async close(): Promise<void> {
      dropped.value += await queue.close(CLOSE_TIMEOUT_MS);
      await poster.close();
    },
  };
}

/** By the last 52 bits of the trace id, so that all replicas decide the same. */
const isSampledByRatio = (traceId: string, ratio: number): boolean =>
  ratio >= 1 || Number.parseInt(traceId.slice(19), 16) < ratio * 2 ** 52;

interface Attribute {
  readonly key: string;
  readonly value: { readonly stringValue: string } | { readonly intValue: string };
}

const SPAN_KIND_SERVER = 2;
const STATUS_CODE_ERROR = 2;

function createSpan(record: RequestRecord, traceparent: string) {
  const end = Date.now();
  const { parentSpan = '', status, method = '', rule, reason, clientId, upstream, decision } = record;
  const attributes: Attribute[] = [
    stringAttribute('http.request.method', KNOWN_METHOD.test(method) ? method : '_OTHER'),
    { key: 'http.response.status_code', value: { intValue: String(status) } },
    stringAttribute('gatehouse.request_id', record.id),
  ];
  if (rule !== undefined) attributes.push(stringAttribute('http.route', rule));
  if (decision !== undefined) attributes.push(stringAttribute('gatehouse.decision', decision));
  // Details after the first word may contain client input.
  if (reason !== undefined) attributes.push(stringAttribute('gatehouse.reason', /^[a-z_]*/.exec(reason)?.[0] ?? ''));
  if (record.identity !== undefined && clientId !== undefined)
    attributes.push(stringAttribute('gatehouse.client_id', clientId));
  if (upstream !== undefined) attributes.push(stringAttribute('gatehouse.upstream', upstream));
  pushGrpcAttributes(attributes, record);
  const isFailed = status >= 500 || FAILED_CALLS.has(record.grpcStatus);
  if (isFailed) attributes.push(stringAttribute('error.type', String(status >= 500 ? status : record.grpcStatus)));
  return {
    traceId: getTraceId(traceparent),
    spanId: getSpanId(traceparent),
    ...(parentSpan !== '' && { parentSpanId: parentSpan }),
    name: `${KNOWN_METHOD.test(method) ? method : 'HTTP'} ${rule ?? ''}`.trim(),
    kind: SPAN_KIND_SERVER,
    startTimeUnixNano: formatNanoseconds(end - record.seconds * 1_000),
    endTimeUnixNano: formatNanoseconds(end),
    attributes,
    status: isFailed ? { code: STATUS_CODE_ERROR } : {},
  };
}

/** OpenTelemetry's conventions for gRPC: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS. */
const FAILED_CALLS: ReadonlySet<number | undefined> = new Set([2, 4, 12, 13, 14, 15]);

function pushGrpcAttributes(attributes: Attribute[], { grpcStatus, grpcMethod }: RequestRecord): void {
  if (grpcStatus === undefined && grpcMethod === undefined) return;
  attributes.push(stringAttribute('rpc.system', 'grpc'));
  if (grpcMethod !== undefined) attributes.push(stringAttribute('rpc.method', grpcMethod));
  if (grpcStatus !== undefined)
    attributes.push({ key: 'rpc.grpc.status_code', value: { intValue: String(grpcStatus) } });
}

const KNOWN_METHOD = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)$/;

/** Text, since a JSON number cannot represent nanoseconds exactly. */
const formatNanoseconds = (ms: number): string => `${Math.round(ms * 1_000)}000`;

function stringAttribute(key: string, value: string): Attribute {
  return { key, value: { stringValue: value } };
}
