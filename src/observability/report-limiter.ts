const MAX_REPORTED = 256;
const BURST = 10;
const REFILL_MS = 10_000;

/**
 * Limits log events about names that clients send: each name once, at a low rate, and a fixed number in total. Returns
 * the fields to log, or undefined if the name must not be logged.
 */
export function createReportLimiter(): (name: string) => { readonly note?: string } | undefined {
  const reported = new Set<string>();
  let tokens = BURST;
  let refilledAt = performance.now();
  return (name) => {
    if (reported.size >= MAX_REPORTED || reported.has(name)) return undefined;
    const refilled = Math.floor((performance.now() - refilledAt) / REFILL_MS);
    if (refilled > 0) {
      tokens = Math.min(BURST, tokens + refilled);
      refilledAt += refilled * REFILL_MS;
    }
    if (tokens === 0) return undefined;
    tokens -= 1;
    reported.add(name);
    return reported.size === MAX_REPORTED ? { note: 'further hosts are not reported' } : {};
  };
}

const REPORT_INTERVAL_MS = 60_000;

/** Reports the first occurrence at once, later ones at most once a minute with their total. */
export function throttleReports<A extends readonly unknown[]>(report: (count: number, ...rest: A) => void) {
  let reportedAt = Number.NEGATIVE_INFINITY;
  let unreported = 0;
  return (count: number, ...rest: A): void => {
    unreported += count;
    const now = performance.now();
    if (now - reportedAt < REPORT_INTERVAL_MS) return;
    reportedAt = now;
    report(unreported, ...rest);
    unreported = 0;
  };
}
