import { createDeadlines } from '../../lib/deadlines.ts';
import type { BodyRateLimits } from '../body-deadline.ts';
import { ConnectionPool } from './connection-pool.ts';
import { Slots } from './connection-slots.ts';
import { watchHealth } from './health.ts';
import type { Target, Targets, UpstreamSettings } from './targets.ts';
import { createUpstreamSecureContext, type UpstreamTlsFiles } from './tls-files.ts';

/** Bytes per second. */
const MIN_BODY_RATE = 240;

/** One upstream: its targets, and the connections to them. */
export class Upstream {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly bodyRate: BodyRateLimits;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  /** Deadlines of all exchanges with this upstream. */
  readonly deadlines = createDeadlines();
  readonly #slots: readonly Slots[];
  readonly #pools: readonly ConnectionPool[];
  readonly #health: { stop(): void } | undefined;

  constructor(settings: UpstreamSettings, targets: Targets, tlsFiles: UpstreamTlsFiles) {
    const { connections, timeouts, serverName, minRate = MIN_BODY_RATE } = settings;
    const secureContext = createUpstreamSecureContext(tlsFiles);
    this.timeouts = timeouts;
    this.bodyRate = { idle: timeouts.idle, body: timeouts.body, minRate };
    this.bodyBuffer = settings.bodyBuffer;
    this.targets = targets;
    this.#slots = targets.all.map((target) => new Slots(target, settings));
    this.#pools = targets.all.map(
      ({ url, index }) =>
        new ConnectionPool(url, { serverName, secureContext }, connections, () => this.#slots[index]?.release()),
    );
    this.#health = settings.health && watchHealth(targets, settings.health, { serverName, tlsFiles });
  }

  slotsOf({ index }: Target): Slots {
    return this.#slots[index] as Slots;
  }

  poolOf({ index }: Target): ConnectionPool {
    return this.#pools[index] as ConnectionPool;
  }

  async close(): Promise<void> {
    this.#health?.stop();
    await Promise.all(this.#pools.map((pool) => pool.close()));
  }
}
