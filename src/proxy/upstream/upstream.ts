import { createDeadlines, type Deadlines } from '../../lib/deadlines.ts';
import { type BodyRateLimits } from '../slow-clients.ts';
import { type ConnectionPool, openConnectionPool } from './connection-pool.ts';
import { watchHealth } from './health.ts';
import {
  DEFAULT_BODY_BUFFER,
  DEFAULT_BODY_SECONDS,
  DEFAULT_MAX_PENDING,
  DEFAULT_MIN_RATE,
  type UpstreamSettings,
} from './settings.ts';
import { Slots } from './slots.ts';
import type { Target, Targets } from './targets.ts';
import { createUpstreamSecureContext, type UpstreamTlsFiles } from './tls-files.ts';

/** One upstream: its targets, and the connections to them. */
export interface Upstream {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly bodyRate: BodyRateLimits;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  readonly slotsOf: (target: Target) => Slots;
  readonly poolOf: (target: Target) => ConnectionPool;
  /** Of its exchanges. */
  readonly deadlines: Deadlines;
  /** Lets running exchanges end within this time. */
  close(withinSeconds: number): Promise<void>;
}

export function openUpstream(
  settings: UpstreamSettings,
  targets: Targets,
  tlsFiles: UpstreamTlsFiles,
): Upstream {
  const { connections, maxPending = DEFAULT_MAX_PENDING, timeouts, serverName } = settings;
  const secureContext = createUpstreamSecureContext(tlsFiles);
  const slots = targets.all.map((target) => new Slots(target, { connections, maxPending }));
  const pools = targets.all.map(({ url, index }) =>
    openConnectionPool(url, { serverName, secureContext }, () => slots[index]?.release()),
  );
  const health = settings.health && watchHealth(targets, settings.health, { serverName, material: tlsFiles });
  return {
    timeouts,
    bodyRate: {
      idle: timeouts.idle,
      body: timeouts.body ?? DEFAULT_BODY_SECONDS,
      minRate: settings.minRate ?? DEFAULT_MIN_RATE,
    },
    bodyBuffer: settings.bodyBuffer ?? DEFAULT_BODY_BUFFER,
    targets,
    slotsOf: ({ index }) => slots[index] as Slots,
    poolOf: ({ index }) => pools[index] as ConnectionPool,
    deadlines: createDeadlines(),
    async close(withinSeconds) {
      health?.stop();
      const timer = setTimeout(() => {
        for (const pool of pools) pool.destroy();
      }, withinSeconds * 1_000);
      await Promise.all(pools.map((pool) => pool.close()));
      clearTimeout(timer);
    },
  };
}
