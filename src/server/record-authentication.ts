import { createBoundedCache } from '../lib/bounded-cache.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { RECORD_KINDS, type RecordKind, type RecordLocation } from '../ports/record-authenticator.ts';
import {
  createRecordAuthenticator,
  type KeyedRecordAuthenticator,
  type RecordRefusalReason,
} from '../tokens/record-mac.ts';

/** Seconds between two reports of one record; the metric counts every occurrence. */
const REPORT_INTERVAL = 60;
const MAX_REPORTED = 10_000;

const NOTES: Readonly<Record<RecordRefusalReason, string>> = {
  mac_wrong:
    'this record was modified outside of gatehouse and is treated as absent; find out who can write to the store',
  mac_missing:
    'this record has no MAC and is treated as absent; it was added outside of gatehouse, so find out who can write to the store',
};

/** Logs, audits and counts rejected records. */
export function createReportingAuthenticator(
  log: Logger,
  metrics: Metrics,
  now: () => number,
): KeyedRecordAuthenticator {
  const refusals = (kind: RecordKind, reason: RecordRefusalReason) =>
    metrics.counter('gatehouse_store_records_refused_total', kind, reason);
  // Series start at zero: an alert on the first increase needs a value before it.
  for (const kind of RECORD_KINDS) for (const reason of ['mac_wrong', 'mac_missing'] as const) refusals(kind, reason);
  const reported = createBoundedCache<string, { readonly at: number }>(MAX_REPORTED);
  const shouldReport = ({ kind, id }: RecordLocation): boolean => {
    const name = `${kind} ${id}`;
    const last = reported.get(name);
    if (last !== undefined && Math.abs(now() - last.at) < REPORT_INTERVAL) return false;
    reported.set(name, { at: now() });
    return true;
  };
  return createRecordAuthenticator({
    now,
    onRefused(place, reason) {
      refusals(place.kind, reason).value += 1;
      if (!shouldReport(place)) return;
      const { kind, id } = place;
      log.error('store_record_refused', { kind, record: id, reason, note: NOTES[reason] });
      log.audit('record_refused', { kind, record: id, reason });
    },
  });
}

/** Revocations that Redis lost, or that an attacker removed, were restored from memory. */
export function createRestoredRevocationsReporter(log: Logger, metrics: Metrics): (count: number) => void {
  const restored = metrics.counter('gatehouse_store_revocations_restored_total');
  return (count) => {
    restored.value += count;
    log.error('store_revocations_restored', {
      count,
      note: 'these revocations were missing from Redis and have been restored; find out who can write to it',
    });
    log.audit('revocations_restored', { count });
  };
}
