import { hostname } from 'node:os';
import type { RequestFacts } from './access-log.ts';
import { errorFields, type Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import { createOutbox } from './outbox.ts';
import { openPoster } from './post.ts';
import { isSampled, isTraceparent, newSpanId, newTraceId, spanIdOf, traceIdOf } from './trace.ts';

/**
 * One server span for each request of the traces that are chosen, sent to an OpenTelemetry collector by OTLP/HTTP in
 * JSON. Nobody waits for the collector; what it does not take is lost and counted. A span holds no path, no query, no
 * header and no identity.
 */
export interface Tracer {
  /** The span of a request that begins; undefined when its trace is not chosen. */
  begin(traceparent: string | undefined, trusted: boolean): SpanContext | undefined;
  ended(facts: RequestFacts): void;
  close(): Promise<void>;
}

export interface SpanContext {
  /** As it is sent to the upstream: our span is the parent of what happens there. */
  readonly trace: string;
  /** The span that called us; empty when the trace begins here. */
  readonly parentSpan: string;
}

export interface TracerOptions {
  readonly url: string;
  /** Which part of the traces, from 0 to 1. */
  readonly ratio: number;
  readonly token?: string | undefined;
  readonly ca?: string | undefined;
  readonly service: string;
  readonly version: string;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly lingerMs?: number;
}

const MOST_SPANS = 4_096;
const BATCH = 512;
const LINGER_MS = 1_000;
const TRIES = 3;
const CLOSE_MS = 2_000;

interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly Attribute[];
  readonly status: { readonly code?: number };
}

interface Attribute {
  readonly key: string;
  readonly value: { readonly stringValue: string } | { readonly intValue: string };
}

export function openTracer(options: TracerOptions): Tracer {
  const { url, ratio, token, ca, log, metrics } = options;
  const poster = openPoster({ url, ca });
  const dropped = metrics.counter('gatehouse_spans_dropped_total');
  const resource = {
    attributes: [
      text('service.name', options.service),
      text('service.version', options.version),
      text('service.instance.id', `${hostname()}:${process.pid}`),
    ],
  };
  let told = false;
  const outbox = createOutbox<Span>({
    most: MOST_SPANS,
    batch: BATCH,
    lingerMs: options.lingerMs ?? LINGER_MS,
    tries: TRIES,
    async deliver(spans) {
      const body = JSON.stringify({
        resourceSpans: [{ resource, scopeSpans: [{ scope: { name: 'gatehouse' }, spans }] }],
      });
      const status = await poster.post(body, token === undefined ? {} : { authorization: `Bearer ${token}` });
      if (status < 200 || status > 299) throw new Error(`the collector answered ${status}`);
    },
    onLost: (lost) => {
      dropped.value += lost;
    },
    onFailure(error) {
      if (!told) log.warn('spans_not_taken', { ...errorFields(error), stack: undefined });
      told = true;
    },
    onRecovered: () => {
      told = false;
    },
  });

  return {
    begin(parent, trusted) {
      const known = parent !== undefined && isTraceparent(parent);
      const traceId = known ? traceIdOf(parent) : newTraceId();
      // Whether a stranger wants to be recorded is no reason to do it; a listed proxy has decided for the whole trace.
      if (!isChosen(traceId, ratio) && !(known && trusted && isSampled(parent))) return undefined;
      return { trace: `00-${traceId}-${newSpanId()}-01`, parentSpan: known ? spanIdOf(parent) : '' };
    },
    ended(facts) {
      if (facts.parentSpan !== undefined && facts.trace !== undefined) outbox.put(spanOf(facts, facts.trace));
    },
    async close() {
      dropped.value += await outbox.close(CLOSE_MS);
      poster.close();
    },
  };
}

/** The same answer wherever the trace comes by: by the last 52 bits of its id. */
function isChosen(traceId: string, ratio: number): boolean {
  if (ratio >= 1) return true;
  return Number.parseInt(traceId.slice(19), 16) < ratio * 2 ** 52;
}

const SERVER = 2;
const FAILED = 2;

function spanOf(facts: RequestFacts, trace: string): Span {
  const end = Date.now();
  const { parentSpan = '', status, method = '', rule, reason, clientId, upstream, decision } = facts;
  const attributes = [
    text('http.request.method', METHOD.test(method) ? method : '_OTHER'),
    { key: 'http.response.status_code', value: { intValue: String(status) } },
    text('gatehouse.request_id', facts.id),
  ];
  if (rule !== undefined) attributes.push(text('http.route', rule));
  if (decision !== undefined) attributes.push(text('gatehouse.decision', decision));
  // A detail behind the word may quote what a stranger sent.
  if (reason !== undefined) attributes.push(text('gatehouse.reason', /^[a-z_]*/.exec(reason)?.[0] ?? ''));
  if (facts.identity !== undefined && clientId !== undefined)
    attributes.push(text('gatehouse.client_id', clientId));
  if (upstream !== undefined) attributes.push(text('gatehouse.upstream', upstream));
  if (status >= 500) attributes.push(text('error.type', String(status)));
  return {
    traceId: traceIdOf(trace),
    spanId: spanIdOf(trace),
    ...(parentSpan !== '' && { parentSpanId: parentSpan }),
    name: `${METHOD.test(method) ? method : 'HTTP'} ${rule ?? ''}`.trim(),
    kind: SERVER,
    startTimeUnixNano: nanoseconds(end - facts.seconds * 1_000),
    endTimeUnixNano: nanoseconds(end),
    attributes,
    status: status >= 500 ? { code: FAILED } : {},
  };
}

const METHOD = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)$/;

/** As text: a number of that size has no room in JSON. */
const nanoseconds = (ms: number): string => `${Math.round(ms * 1_000)}000`;

function text(key: string, value: string): Attribute {
  return { key, value: { stringValue: value } };
}
