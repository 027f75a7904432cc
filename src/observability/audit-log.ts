import { GRANT_TYPES } from '../domain/integration.ts';
import { DeliveryQueue } from '../lib/delivery-queue.ts';
import { AUDIT_EVENTS, type AuditEvent } from './audit-events.ts';
import { errorFields, formatAuditLine, type LogFields, type Logger } from './logger.ts';
import type { Counter } from './metric-registry.ts';
import type { Metrics } from './metrics.ts';
import { throttleReports } from './report-limiter.ts';

export interface AuditRecord {
  readonly event: AuditEvent;
  /** RFC 3339, UTC. */
  readonly time: string;
  /** JSON, newline included. */
  readonly line: string;
}

export interface AuditSink {
  /** Most events per delivery. */
  readonly batchSize: number;
  /** Resolves when the receiver has accepted them. */
  deliver(records: readonly AuditRecord[]): Promise<void>;
  /** The file was moved: create a new one. */
  reopen?(): void;
  close(): Promise<void>;
}

interface AuditLogOptions {
  /** If omitted, events are written to the log. */
  readonly sink?: AuditSink | undefined;
  /** Events that wait for the sink; beyond that, the oldest are dropped, refusals first. */
  readonly buffer?: number;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly backoffMs?: { readonly initial: number; readonly max: number };
}

/** Above this, removing the first element of an array takes V8 longer, and each event of a full queue removes one. */
const MAX_PENDING = 10_000;
const CLOSE_TIMEOUT_MS = 5_000;

export type AuditLog = ReturnType<typeof openAuditLog>;

/** Counts every audit event and queues it for the sink. Callers do not wait for the delivery. */
export function openAuditLog({ sink, buffer = MAX_PENDING, log, metrics, backoffMs }: AuditLogOptions) {
  const count = createAuditCounter(metrics);
  const dropped = metrics.counter('gatehouse_audit_dropped_total');
  const failed = metrics.counter('gatehouse_audit_failures_total');
  const reportLost = throttleReports((lost) =>
    log.error('audit_events_lost', {
      lost,
      note: 'the audit sink is too slow or unreachable; the oldest events were dropped',
    }),
  );
  const reportFailure = throttleReports((failures, error: unknown) =>
    log.error('audit_sink_failed', { failures, ...errorFields(error), stack: undefined }),
  );
  const queue =
    sink &&
    new DeliveryQueue<AuditRecord>({
      deliver: (records) => sink.deliver(records),
      maxPending: buffer,
      batchSize: sink.batchSize,
      isLowPriority: ({ event }) => AUDIT_EVENTS[event].kind === 'refusal',
      ...(backoffMs !== undefined && { backoffMs }),
      onLost(lost) {
        dropped.value += lost;
        reportLost(lost);
      },
      onFailure(error) {
        failed.value += 1;
        reportFailure(1, error);
      },
      onRecovered: (failures) => log.warn('audit_sink_recovered', { failures }),
    });
  const removeCollector = metrics.addCollector((set) => {
    set('gatehouse_audit_pending', queue?.pending() ?? 0);
    set('gatehouse_audit_blocked', queue?.isBlocked() === true ? 1 : 0);
  });
  const { fields: baseFields = {}, now = Date.now } = log.output ?? {};
  return {
    audit(event: AuditEvent, fields: LogFields = {}): void {
      count(event, fields);
      if (queue === undefined) return log.audit(event, fields);
      const time = new Date(now());
      queue.enqueue({
        event,
        time: time.toISOString(),
        line: formatAuditLine(time, event, baseFields, fields),
      });
    },
    /** The sink does not accept events. */
    isBlocked: () => queue?.isBlocked() === true,
    reopen: () => sink?.reopen?.(),
    async close(): Promise<void> {
      const undelivered = (await queue?.close(CLOSE_TIMEOUT_MS)) ?? 0;
      removeCollector();
      if (undelivered > 0) {
        dropped.value += undelivered;
        log.error('audit_events_lost', {
          lost: undelivered,
          note: 'the audit sink did not accept these events before the shutdown',
        });
      }
      await sink?.close();
    },
  };
}

/** Metrics about grants are derived from audit events, so that both agree. */
function createAuditCounter(metrics: Metrics): (event: AuditEvent, fields: LogFields) => void {
  const issued = (grant: string): Counter => metrics.counter('gatehouse_tokens_issued_total', grant);
  const signIns = (outcome: string): Counter => metrics.counter('gatehouse_sign_ins_total', outcome);
  const events = Object.fromEntries(
    Object.keys(AUDIT_EVENTS).map((event) => [event, metrics.counter('gatehouse_audit_events_total', event)]),
  ) as Record<AuditEvent, Counter>;
  const byGrant = new Map<unknown, Counter>(GRANT_TYPES.map((grant) => [grant, issued(grant)]));
  const refreshed = issued('refresh');
  const revocations = metrics.counter('gatehouse_revocations_total');
  const relatedCounters: Partial<Record<AuditEvent, Counter>> = {
    grant_refreshed: refreshed,
    refresh_retried: refreshed,
    refresh_rolled_forward: refreshed,
    refresh_reuse: metrics.counter('gatehouse_refresh_reuse_detected_total'),
    grant_revoked: revocations,
    sign_in: signIns('ok'),
    sign_in_failed: signIns('failed'),
    locked_out: signIns('locked_out'),
  };
  const increment = (counter: Counter | undefined): void => {
    if (counter !== undefined) counter.value += 1;
  };
  return (event, fields) => {
    increment(events[event]);
    increment(relatedCounters[event]);
    if (event === 'grant_issued') increment(byGrant.get(fields['grant_type']));
    if (event === 'refresh_reuse' && fields['action'] !== 'refused') increment(revocations);
    if (event === 'admin_action' && fields['act'] === 'revoke_grant') increment(revocations);
  };
}
