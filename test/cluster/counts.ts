const readCount = (name: string, fallback: number): number => {
  const value = Number(process.env[name] ?? fallback);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`${name} must be a positive whole number`);
  return value;
};

/**
 * The published figures are with CLUSTER_REQUESTS=100000, CLUSTER_DELETIONS=200 and CLUSTER_RESTARTS=5; the defaults are for a
 * run in between, of about a quarter of an hour.
 */
export const COUNTS = {
  /** Requests during upgrades and scaling. */
  requests: readCount('CLUSTER_REQUESTS', 20_000),
  /** Pods that are deleted under load. */
  deletions: readCount('CLUSTER_DELETIONS', 20),
  /** Rolling restarts of an application with a sidecar, of each kind. */
  restarts: readCount('CLUSTER_RESTARTS', 1),
  /** Requests per second; a slow machine may need fewer. */
  rate: readCount('CLUSTER_RATE', 160),
} as const;
