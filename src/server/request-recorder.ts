import type { Settings } from '../config/schema.ts';
import type { CompletedRequest, RequestOutcome } from '../http/request-context.ts';
import { createAccessLog, type RequestRecord } from '../observability/access-log.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics, UpstreamErrorKind, UpstreamMetrics } from '../observability/metrics.ts';
import type { RecentEvents } from '../observability/recent-events.ts';
import type { Tracer } from '../observability/tracing.ts';

/** Counts, logs and traces a completed request. */
export type RequestRecorder = (context: CompletedRequest, outcome: RequestOutcome) => void;

interface RequestRecorderDeps {
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly tracer: Tracer | undefined;
  /** For the console; undefined if it is off. */
  readonly recentEvents: RecentEvents | undefined;
}

export function createRequestRecorder(
  { log: settings }: Settings,
  { metrics, tracer, log, recentEvents }: RequestRecorderDeps,
): RequestRecorder {
  const writeAccessLog =
    settings.access.enabled && log.output !== undefined ? createAccessLog(log.output, settings.access) : undefined;
  const recordRefusal = recentEvents?.createRefusalRecorder(settings.access);
  // Reused, so that recording allocates nothing: readers must not keep it.
  const record = {} as RequestRecord;
  return (context, outcome) => {
    fillRecord(record, context, outcome);
    metrics.requestCompleted(metrics.getRule(record.rule), record.method, record.status, getLatency(record, context));
    metrics.countDecision(record.decision, record.decision === 'forwarded' ? undefined : record.reason);
    if (record.reason?.startsWith(RATE_LIMITED) === true)
      metrics.countRateLimited(record.rule, record.reason.slice(RATE_LIMITED.length));
    if (record.upstream !== undefined) countUpstream(metrics.upstream(record.upstream), record);
    writeAccessLog?.(record);
    if (record.decision !== 'forwarded') recordRefusal?.(record);
    tracer?.endSpan(record);
  };
}

/** The duration of a WebSocket or an event stream says nothing about latency. */
function getLatency(record: RequestRecord, { notes }: CompletedRequest): number | undefined {
  if (record.status === 101) return undefined;
  return (notes.transfer ?? notes).isEventStream === true ? record.upstreamSeconds : record.seconds;
}

/** The name of the limit follows. */
const RATE_LIMITED = 'rate_limited: ';

/** Upstream errors by the reason in the access log. */
const UPSTREAM_ERRORS: ReadonlyMap<string | undefined, UpstreamErrorKind> = new Map([
  ['upstream_failed', 'failed'],
  ['upstream_too_slow', 'timeout'],
  ['upstream_aborted', 'aborted'],
  ['overloaded', 'overloaded'],
  ['too_many_event_streams', 'overloaded'],
]);

function countUpstream(counts: UpstreamMetrics, { status, upstreamSeconds, reason, grpcStatus }: RequestRecord): void {
  if (grpcStatus !== undefined) counts.countGrpcResult(grpcStatus);
  if (upstreamSeconds !== undefined || status === 101 || reason === 'upgrade_declined')
    counts.countResponse(status, upstreamSeconds);
  const upstreamError = reason === undefined ? undefined : UPSTREAM_ERRORS.get(reason);
  if (upstreamError !== undefined) counts.countError(upstreamError);
}

/** Always assigns the same members in the same order: the hidden class stays the same. */
function fillRecord(record: RequestRecord, context: CompletedRequest, outcome: RequestOutcome): void {
  const { notes } = context;
  const { transfer = notes } = notes;
  record.id = notes.originalId ?? context.id;
  record.traceparent = notes.trace;
  record.parentSpan = notes.parentSpan;
  record.clientAddress = notes.originalAddress ?? context.clientAddress;
  record.method = context.request.method;
  record.url = context.request.url;
  record.status = outcome.status;
  record.aborted = outcome.aborted;
  record.seconds = outcome.seconds;
  record.upstreamSeconds = transfer.upstreamSeconds;
  record.bytesIn = transfer.bytesIn;
  record.bytesOut = transfer.bytesOut;
  record.rule = notes.rule;
  record.decision = notes.decision;
  record.reason = notes.reason;
  record.identity = notes.identity;
  record.name = notes.name;
  record.clientId = notes.clientId;
  record.grantId = notes.grantId;
  record.upstream = notes.upstream;
  record.originalRequest = notes.original;
  record.grpcStatus = notes.grpcStatus;
  record.grpcMethod = notes.grpcMethod;
}
