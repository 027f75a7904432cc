import type { Settings } from '../config/schema.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { RecordKind, RecordPlace } from '../ports/record-authenticator.ts';
import { type RecordMac, type RefusedBecause, recordMac } from '../tokens/record-mac.ts';

/** Seconds between two reports about one record; the metric counts each time. */
const REPORT_AGAIN = 60;
const REMEMBERED = 10_000;
const ACCEPTED = 'gatehouse_store_records_unauthenticated_total';
const KINDS: readonly RecordKind[] = ['grants', 'devices', 'userCodes', 'notes'];

const NOTES: Readonly<Record<RefusedBecause, string>> = {
  mac_wrong:
    'this record was altered outside of gatehouse and is treated as absent; find out who can write to the store',
  mac_missing:
    'this record has no MAC and is treated as absent (store.unauthenticatedRecords: refuse); an earlier release wrote it, or it was added outside of gatehouse',
};

export interface RecordAuthenticationOptions {
  readonly settings: Settings;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly now: () => number;
}

/** The authenticator of a serving process: what it refuses is logged, audited and counted. */
export function recordAuthentication(options: RecordAuthenticationOptions): RecordMac {
  const { settings, log, metrics, now } = options;
  const accepted = (kind: RecordKind) => metrics.counter(ACCEPTED, kind);
  const refusals = (kind: RecordKind, reason: RefusedBecause) =>
    metrics.counter('gatehouse_store_records_refused_total', kind, reason);
  // Series that begin at zero: an alert on the first increase needs a value before it.
  for (const kind of KINDS) {
    accepted(kind);
    for (const reason of ['mac_wrong', 'mac_missing'] as const) refusals(kind, reason);
  }
  const reported = boundedCache<string, { readonly at: number }>(REMEMBERED);
  const isDue = ({ kind, id }: RecordPlace): boolean => {
    const name = `${kind} ${id}`;
    const last = reported.get(name);
    if (last !== undefined && Math.abs(now() - last.at) < REPORT_AGAIN) return false;
    reported.set(name, { at: now() });
    return true;
  };
  return recordMac({
    now,
    unauthenticated: settings.store.unauthenticatedRecords,
    onRefused(place, reason) {
      refusals(place.kind, reason).value += 1;
      if (!isDue(place)) return;
      const { kind, id } = place;
      log.error('store_record_refused', { kind, record: id, reason, note: NOTES[reason] });
      log.audit('record_refused', { kind, record: id, reason });
    },
    onAccepted({ kind }) {
      accepted(kind).value += 1;
    },
  });
}

/** How many grants without a MAC were accepted. */
export const acceptedGrants = (metrics: Metrics): (() => number) => {
  const accepted = metrics.counter(ACCEPTED, 'grants');
  return () => accepted.value;
};

/** An attacker removed revocations from Redis, or it lost some: this process had them in memory. */
export function revocationsRestored({
  log,
  metrics,
}: Pick<RecordAuthenticationOptions, 'log' | 'metrics'>): (count: number) => void {
  const restored = metrics.counter('gatehouse_store_revocations_restored_total');
  return (count) => {
    restored.value += count;
    log.error('store_revocations_restored', {
      count,
      note: 'these revocations were missing from Redis and have been put back; find out who can write to it',
    });
    log.audit('revocations_restored', { count });
  };
}
