import { flattenString } from '../lib/flat-string.ts';
import { redactStart } from '../lib/redact.ts';
import { RingBuffer } from '../lib/ring-buffer.ts';
import type { AccessLogOptions, RequestRecord } from './access-log.ts';
import type { AuditEvent } from './audit-events.ts';
import type { LogFields, LogValue } from './logger.ts';
import { redactValue } from './logger.ts';

/** A refused or failed request. Contains no token, header, query or body. */
export type RecentRefusal = ReturnType<typeof createRefusal>;

export interface RecentAuditEvent {
  readonly time: number;
  readonly event: AuditEvent;
  readonly fields: LogFields;
}

export interface RecentEventsQuery {
  readonly kind: 'refusals' | 'audit';
  readonly limit: number;
  /** Only the refusal of the request with this id. */
  readonly id?: string;
  /** Only events that contain this text in any field, without letter case. */
  readonly text?: string;
}

/** Newest first. */
export interface RecentEventsResult {
  readonly refusals: readonly RecentRefusal[];
  readonly audit: readonly RecentAuditEvent[];
}

export const NO_RECENT_EVENTS: RecentEventsResult = { refusals: [], audit: [] };

export type RecentEvents = ReturnType<typeof createRecentEvents>;

const CAPACITY = 500;

/** The last refusals and audit events of this process, in memory, for the console. `now`: in seconds. */
export function createRecentEvents(now: () => number) {
  const refusals = new RingBuffer<RecentRefusal>(CAPACITY);
  const audit = new RingBuffer<RecentAuditEvent>(CAPACITY);
  const getTime = (): number => Math.floor(now() * 1_000);
  return {
    /** Records refused requests; fields that the access log hides are omitted here too. */
    createRefusalRecorder(options: Pick<AccessLogOptions, 'exclude' | 'pseudonymise'>) {
      const hidden = new Set<string>([...options.exclude, ...options.pseudonymise]);
      // The name would reveal the identity.
      if (hidden.has('identity')) hidden.add('name');
      return (record: RequestRecord): void => {
        if (record.decision === undefined || !RECORDED_DECISIONS.has(record.decision)) return;
        refusals.add(createRefusal(record, getTime(), hidden));
      };
    },
    recordAudit(event: AuditEvent, fields: LogFields = {}): void {
      audit.add({ time: getTime(), event, fields: boundFields(fields) });
    },
    find: (query: RecentEventsQuery): RecentEventsResult => ({
      refusals: query.kind === 'refusals' ? select(refusals, query) : [],
      audit: query.kind === 'audit' ? select(audit, query) : [],
    }),
  };
}

/** Combines the results of several processes. */
export const mergeRecentEvents = (results: readonly RecentEventsResult[], limit: number): RecentEventsResult => ({
  refusals: takeNewest(limit, results, ({ refusals }) => refusals),
  audit: takeNewest(limit, results, ({ audit }) => audit),
});

const takeNewest = <T extends { readonly time: number }>(
  limit: number,
  results: readonly RecentEventsResult[],
  select: (result: RecentEventsResult) => readonly T[],
): readonly T[] =>
  results
    .flatMap(select)
    .toSorted((a, b) => b.time - a.time)
    .slice(0, limit);

const RECORDED_DECISIONS: ReadonlySet<string> = new Set(['refused', 'would_refuse', 'failed']);

const MAX_METHOD = 32;
const MAX_PATH = 512;
const MAX_TEXT = 256;

function createRefusal(record: RequestRecord, time: number, hidden: ReadonlySet<string>) {
  const optional = <N extends string>(name: N, value: string | undefined, max = MAX_TEXT) =>
    value === undefined || hidden.has(name) ? undefined : ({ [name]: copyText(value, max) } as Record<N, string>);
  return {
    /** Milliseconds since 1970. */
    time,
    id: record.id,
    method: copyText(record.method ?? '', MAX_METHOD),
    status: record.status,
    decision: record.decision ?? '',
    ...optional('path', record.url?.split('?', 1)[0], MAX_PATH),
    ...optional('from', record.clientAddress),
    ...optional('rule', record.rule),
    /** A code, or a code and its detail: `token_invalid: expired`. */
    ...optional('reason', record.reason),
    ...optional('identity', record.identity),
    ...optional('name', record.name),
    ...optional('client', record.clientId),
    ...optional('grant', record.grantId),
    ...optional('upstream', record.upstream),
    ...optional('original', record.originalRequest, MAX_PATH),
  };
}

/** A copy: a slice would keep the whole request target in memory. */
const copyText = (text: string, max: number): string => flattenString(redactStart(text, max));

const MAX_LIST = 32;

const boundFields = (fields: LogFields): LogFields =>
  Object.fromEntries(
    Object.entries(fields)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [name, boundValue(redactValue(name, value))]),
  );

function boundValue(value: LogValue): LogValue {
  if (typeof value === 'string') return value.length > MAX_PATH ? `${value.slice(0, MAX_PATH)}…` : value;
  if (Array.isArray(value))
    return (value as readonly string[]).slice(0, MAX_LIST).map((text) => text.slice(0, MAX_TEXT));
  return value;
}

function select<T extends RecentRefusal | RecentAuditEvent>(
  buffer: RingBuffer<T>,
  { limit, id, text }: RecentEventsQuery,
): readonly T[] {
  const wanted = text?.toLowerCase();
  return buffer
    .newestFirst()
    .filter((event) => id === undefined || ('id' in event && event.id === id))
    .filter((event) => wanted === undefined || containsText(event, wanted))
    .take(limit)
    .toArray();
}

const containsText = (event: RecentRefusal | RecentAuditEvent, wanted: string): boolean => {
  const { time: _time, ...rest } = event;
  const values = 'fields' in rest ? [rest.event, ...Object.values(rest.fields)] : Object.values(rest);
  return values.flat().some((value) => String(value).toLowerCase().includes(wanted));
};
