import type { Fault } from '../../ports/fault.ts';

/** Reports outages of the server to the operator. */
export interface AvailabilityOptions {
  /** At the beginning of an outage, then at most once a minute; `seconds` since it began. */
  readonly onUnreachable?: ((reason: string, seconds: number) => void) | undefined;
  /** At the end of an outage, with its duration. */
  readonly onReachable?: ((seconds: number) => void) | undefined;
  /** Other faults, each code at most once a minute. */
  readonly onFault?: ((fault: Fault) => void) | undefined;
  /** Milliseconds of a monotonic clock. */
  readonly now?: () => number;
}

const REMINDER_INTERVAL_MS = 60_000;
/** One connection may fail while another works: an outage ends when nothing has failed for this long. */
export const STABLE_MS = 2_000;

export function createAvailabilityMonitor({
  onUnreachable,
  onReachable,
  onFault,
  now = () => performance.now(),
}: AvailabilityOptions) {
  const reportedAt = new Map<string, number>();
  let outage: { readonly since: number; readonly failedAt: number; readonly recoveredAt?: number } | undefined;
  const isDue = (code: string, at: number): boolean => {
    if (at - (reportedAt.get(code) ?? Number.NEGATIVE_INFINITY) < REMINDER_INTERVAL_MS) return false;
    reportedAt.set(code, at);
    return true;
  };
  return {
    reportFailure(fault: Fault): void {
      const at = now();
      if (fault.code !== 'store_unavailable') {
        if (isDue(fault.code, at)) onFault?.(fault);
        return;
      }
      if (outage === undefined) reportedAt.delete(fault.code);
      outage = { since: outage?.since ?? at, failedAt: at };
      if (isDue(fault.code, at)) onUnreachable?.(fault.message.replace(/^Redis: /, ''), (at - outage.since) / 1_000);
    },
    /** Called after a heartbeat. */
    reportSuccess(): void {
      if (outage === undefined) return;
      const at = now();
      const { since, failedAt, recoveredAt = at } = outage;
      outage = { since, failedAt, recoveredAt };
      if (at - failedAt < STABLE_MS) return;
      outage = undefined;
      onReachable?.((recoveredAt - since) / 1_000);
    },
  };
}
