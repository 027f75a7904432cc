import { Fault } from '../ports/fault.ts';
import { errorFields, type Logger } from './logger.ts';

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

const MAX_FAULTS = 64;

/**
 * Logs requests that failed because of a dependency: the first for each failure at once, later ones at most once a minute with
 * their number. Other errors are logged each time, with their stack.
 */
export function createFailureReporter(
  log: Pick<Logger, 'error'>,
  event: string,
): (requestId: string, error: unknown) => void {
  const report = (requestId: string, error: unknown, requests?: number): void =>
    log.error(event, { request_id: requestId, requests, ...errorFields(error) });
  const createThrottled = () =>
    throttleReports((requests, requestId: string, fault: Fault) => report(requestId, fault, requests));
  const byFault = new Map<string, ReturnType<typeof createThrottled>>();
  const reportOthers = createThrottled();
  return (requestId, error) => {
    if (!(error instanceof Fault)) return report(requestId, error);
    const key = `${error.code} ${error.message}`;
    let reportFault = byFault.get(key);
    if (reportFault === undefined) {
      reportFault = byFault.size < MAX_FAULTS ? createThrottled() : reportOthers;
      if (reportFault !== reportOthers) byFault.set(key, reportFault);
    }
    reportFault(1, requestId, error);
  };
}
