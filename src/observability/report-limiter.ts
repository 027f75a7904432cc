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
