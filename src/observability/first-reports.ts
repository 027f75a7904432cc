const MOST_REPORTED = 256;
const BURST = 10;
const REFILL_MS = 10_000;

/**
 * Names that clients send and that are to be logged: each once, few at a time, and no more than a fixed number, since any
 * client can invent names. Returns the fields to add, or undefined when the name is not to be logged.
 */
export function firstReports(): (name: string) => { readonly note?: string } | undefined {
  const reported = new Set<string>();
  let left = BURST;
  let since = performance.now();
  return (name) => {
    if (reported.size >= MOST_REPORTED || reported.has(name)) return undefined;
    const refilled = Math.floor((performance.now() - since) / REFILL_MS);
    if (refilled > 0) {
      left = Math.min(BURST, left + refilled);
      since += refilled * REFILL_MS;
    }
    if (left === 0) return undefined;
    left -= 1;
    reported.add(name);
    return reported.size === MOST_REPORTED ? { note: 'further hosts are not reported' } : {};
  };
}
