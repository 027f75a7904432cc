import type { Settings } from '../config/schema.ts';
import type { DoneCall } from '../http/call.ts';
import { createAccessLog, type RequestFacts } from '../observability/access-log.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics, UpstreamError, UpstreamMetrics } from '../observability/metrics.ts';
import type { Tracer } from '../observability/tracing.ts';
import type { CallEnd } from '../tls/listener.ts';

/** What is done about every request that has ended: counted, and told to whoever wants to know. */
export type RequestEnded = (facts: RequestFacts) => void;

export interface RequestLogDeps {
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly tracer: Tracer | undefined;
}

export function requestEnded({ log: settings }: Settings, deps: RequestLogDeps): RequestEnded {
  const { metrics, tracer, log } = deps;
  const write =
    settings.access.enabled && log.output !== undefined
      ? createAccessLog(log.output, settings.access)
      : undefined;
  return (facts) => {
    // A WebSocket lasts as long as it is wanted: that says nothing about how fast we are.
    const seconds = facts.status === 101 ? undefined : facts.seconds;
    metrics.requestDone(metrics.ruleNamed(facts.rule), facts.method, facts.status, seconds);
    metrics.decided(facts.decision, facts.decision === 'forwarded' ? undefined : facts.reason);
    if (facts.upstream !== undefined) countUpstream(metrics.upstream(facts.upstream), facts);
    write?.(facts);
    tracer?.ended(facts);
  };
}

/** Why a request got no proper answer of its upstream, by the reason in its log line. */
const FAULTS: ReadonlyMap<string | undefined, UpstreamError> = new Map([
  ['upstream_failed', 'failed'],
  ['upstream_too_slow', 'timeout'],
  ['upstream_broke_off', 'broke_off'],
  ['overloaded', 'overloaded'],
]);

function countUpstream(counts: UpstreamMetrics, { status, upstreamSeconds, reason }: RequestFacts): void {
  if (upstreamSeconds !== undefined || status === 101 || reason === 'upgrade_declined')
    counts.answered(status, upstreamSeconds);
  const fault = reason === undefined ? undefined : FAULTS.get(reason);
  if (fault !== undefined) counts.failed(fault);
}

/** Filled anew for each call: whoever is told takes from it what it wants at once. */
const facts: RequestFacts = {
  id: '',
  trace: undefined,
  parentSpan: undefined,
  from: '',
  method: undefined,
  url: undefined,
  status: 0,
  aborted: false,
  seconds: 0,
  upstreamSeconds: undefined,
  bytesIn: undefined,
  bytesOut: undefined,
  rule: undefined,
  decision: undefined,
  reason: undefined,
  identity: undefined,
  clientId: undefined,
  grantId: undefined,
  upstream: undefined,
  original: undefined,
};

export function factsOf(call: DoneCall, end: CallEnd): RequestFacts {
  const { notes } = call;
  facts.id = call.id;
  facts.trace = notes.trace;
  facts.parentSpan = notes.parentSpan;
  facts.from = call.clientAddress;
  facts.method = call.request.method;
  facts.url = call.request.url;
  facts.status = end.status;
  facts.aborted = end.aborted;
  facts.seconds = end.seconds;
  const { carried = notes } = notes;
  facts.upstreamSeconds = carried.upstreamSeconds;
  facts.bytesIn = carried.bytesIn;
  facts.bytesOut = carried.bytesOut;
  facts.rule = notes.rule;
  facts.decision = notes.decision;
  facts.reason = notes.reason;
  facts.identity = notes.identity;
  facts.clientId = notes.clientId;
  facts.grantId = notes.grantId;
  facts.upstream = notes.upstream;
  facts.original = notes.original;
  return facts;
}
