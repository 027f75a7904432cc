import { createDeadlines } from '../../lib/deadlines.ts';
import type { BodyRateLimits } from '../body-deadline.ts';
import { ConnectionPool } from './connection-pool.ts';
import { Slots } from './connection-slots.ts';
import { watchHealth } from './health.ts';
import {
  DEFAULT_BODY_BUFFER,
  DEFAULT_BODY_SECONDS,
  DEFAULT_EVENT_STREAMS,
  DEFAULT_EVENTS_SECONDS,
  DEFAULT_MAX_PENDING,
  DEFAULT_MIN_RATE,
  type UpstreamSettings,
} from './settings.ts';
import type { Target, Targets } from './targets.ts';
import { createUpstreamSecureContext, type UpstreamTlsFiles } from './tls-files.ts';

/** One upstream: its targets, and the connections to them. */
export class Upstream {
  readonly timeouts: UpstreamSettings['timeouts'] & { readonly events: number };
  readonly bodyRate: BodyRateLimits;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  /** Of its exchanges. */
  readonly deadlines = createDeadlines();
  readonly #slots: readonly Slots[];
  readonly #pools: readonly ConnectionPool[];
  readonly #health: { stop(): void } | undefined;

  constructor(settings: UpstreamSettings, targets: Targets, tlsFiles: UpstreamTlsFiles) {
    const { connections, timeouts, serverName } = settings;
    const { maxPending = DEFAULT_MAX_PENDING, eventStreams = DEFAULT_EVENT_STREAMS } = settings;
    const secureContext = createUpstreamSecureContext(tlsFiles);
    this.timeouts = { ...timeouts, events: timeouts.events ?? DEFAULT_EVENTS_SECONDS };
    this.bodyRate = {
      idle: timeouts.idle,
      body: timeouts.body ?? DEFAULT_BODY_SECONDS,
      minRate: settings.minRate ?? DEFAULT_MIN_RATE,
    };
    this.bodyBuffer = settings.bodyBuffer ?? DEFAULT_BODY_BUFFER;
    this.targets = targets;
    this.#slots = targets.all.map((target) => new Slots(target, { connections, maxPending, eventStreams }));
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

  /** Lets running exchanges end within this time. */
  async close(withinSeconds: number): Promise<void> {
    this.#health?.stop();
    const timer = setTimeout(() => {
      for (const pool of this.#pools) pool.destroy();
    }, withinSeconds * 1_000);
    await Promise.all(this.#pools.map((pool) => pool.close()));
    clearTimeout(timer);
  }
}
