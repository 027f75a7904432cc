import { GRANT_TYPES } from '../domain/integration.ts';
import { AUDIT_EVENTS, type AuditEvent, kindOf } from './audit-events.ts';
import { auditLine, errorFields, type LogFields, type Logger } from './logger.ts';
import type { Counter } from './metric-registry.ts';
import type { Metrics } from './metrics.ts';
import { createOutbox } from './outbox.ts';

export interface AuditRecord {
  readonly event: AuditEvent;
  /** RFC 3339, UTC. */
  readonly time: string;
  /** JSON, newline included. */
  readonly line: string;
}

/** Where audit events go. */
export interface AuditSink {
  /** Most events at once. */
  readonly batch: number;
  /** Resolves when they are out of our hands. */
  deliver(records: readonly AuditRecord[]): Promise<void>;
  /** The file was moved away: go on with a new one. */
  reopen?(): void;
  close(): Promise<void>;
}

export interface AuditLog {
  audit(event: AuditEvent, fields?: LogFields): void;
  /** What happens now might never be recorded. */
  isBlocked(): boolean;
  reopen(): void;
  close(): Promise<void>;
}

export interface AuditLogOptions {
  /** Left out: among the log lines. */
  readonly sink?: AuditSink | undefined;
  readonly buffer: number;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly pauseMs?: { readonly first: number; readonly longest: number };
}

const CLOSE_MS = 5_000;
const TELL_AGAIN_MS = 60_000;

/** Counts every audit event and hands it to its sink. Nobody waits for the sink. */
export function openAuditLog({ sink, buffer, log, metrics, pauseMs }: AuditLogOptions): AuditLog {
  const count = auditCounts(metrics);
  if (sink === undefined) {
    const forget = metrics.collect((set) => {
      set('gatehouse_audit_pending', 0);
      set('gatehouse_audit_blocked', 0);
    });
    return {
      audit(event, fields = {}) {
        count(event, fields);
        log.audit(event, fields);
      },
      isBlocked: () => false,
      reopen: () => {},
      close: async () => forget(),
    };
  }

  const dropped = metrics.counter('gatehouse_audit_dropped_total');
  const failed = metrics.counter('gatehouse_audit_failures_total');
  const alarm = seldom((lost) =>
    log.error('audit_events_lost', {
      lost,
      note: 'the audit sink takes too little; the oldest were given up',
    }),
  );
  const tellFailure = seldom((failures, error: unknown) =>
    log.error('audit_sink_failed', { failures, ...errorFields(error), stack: undefined }),
  );
  const outbox = createOutbox<AuditRecord>({
    deliver: (records) => sink.deliver(records),
    most: buffer,
    batch: sink.batch,
    isLesser: ({ event }) => kindOf(event).kind === 'refusal',
    ...(pauseMs !== undefined && { pauseMs }),
    onLost(lost) {
      dropped.value += lost;
      alarm(lost);
    },
    onFailure(error) {
      failed.value += 1;
      tellFailure(1, error);
    },
    onRecovered: (failures) => log.warn('audit_sink_back', { failures }),
  });
  const forget = metrics.collect((set) => {
    set('gatehouse_audit_pending', outbox.pending());
    set('gatehouse_audit_blocked', outbox.isBlocked() ? 1 : 0);
  });
  const { fields: everywhere = {}, now = Date.now } = log.output ?? {};
  return {
    audit(event, fields = {}) {
      count(event, fields);
      const time = new Date(now());
      outbox.put({ event, time: time.toISOString(), line: auditLine(time, event, everywhere, fields) });
    },
    isBlocked: () => outbox.isBlocked(),
    reopen: () => sink.reopen?.(),
    async close() {
      const left = await outbox.close(CLOSE_MS);
      forget();
      if (left > 0) {
        dropped.value += left;
        log.error('audit_events_lost', {
          lost: left,
          note: 'the audit sink did not take them before the end',
        });
      }
      await sink.close();
    },
  };
}

/** What the audit log hears of is what is counted about grants. */
function auditCounts(metrics: Metrics): (event: AuditEvent, fields: LogFields) => void {
  const issued = (grant: string): Counter => metrics.counter('gatehouse_tokens_issued_total', grant);
  const signIns = (outcome: string): Counter => metrics.counter('gatehouse_sign_ins_total', outcome);
  const events = Object.fromEntries(
    Object.keys(AUDIT_EVENTS).map((event) => [event, metrics.counter('gatehouse_audit_events_total', event)]),
  ) as Record<AuditEvent, Counter>;
  const byGrant = new Map<unknown, Counter>(GRANT_TYPES.map((grant) => [grant, issued(grant)]));
  const refreshed = issued('refresh');
  const revocations = metrics.counter('gatehouse_revocations_total');
  const also: Partial<Record<AuditEvent, Counter>> = {
    grant_refreshed: refreshed,
    refresh_repeated: refreshed,
    refresh_rolled_forward: refreshed,
    refresh_reuse: metrics.counter('gatehouse_refresh_reuse_detected_total'),
    grant_revoked: revocations,
    sign_in: signIns('ok'),
    sign_in_failed: signIns('failed'),
    locked_out: signIns('locked_out'),
  };
  const add = (counter: Counter | undefined): void => {
    if (counter !== undefined) counter.value += 1;
  };
  return (event, fields) => {
    add(events[event]);
    add(also[event]);
    if (event === 'grant_issued') add(byGrant.get(fields['grantType']));
    if (event === 'refresh_reuse' && fields['action'] !== 'refused') add(revocations);
    if (event === 'admin_act' && fields['act'] === 'end grant') add(revocations);
  };
}

/** Says it at once, and then at most once a minute, for all that happened meanwhile. */
function seldom<A extends readonly unknown[]>(tell: (count: number, ...rest: A) => void) {
  let toldAt = Number.NEGATIVE_INFINITY;
  let since = 0;
  return (count: number, ...rest: A): void => {
    since += count;
    const now = performance.now();
    if (now - toldAt < TELL_AGAIN_MS) return;
    toldAt = now;
    tell(since, ...rest);
    since = 0;
  };
}
