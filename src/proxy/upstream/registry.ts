import { hash } from 'node:crypto';
import { createDeadlines } from '../../lib/deadlines.ts';
import { type OpenedResource, type ResourceScope, SharedResources } from '../../lib/shared-resources.ts';
import type { Logger } from '../../observability/logger.ts';
import type { BodyRateLimits } from '../body-deadline.ts';
import { ConnectionPool } from './connection-pool.ts';
import { Slots } from './connection-slots.ts';
import { watchHealth } from './health.ts';
import { Http2Pool } from './http2/pool.ts';
import type { UpstreamPool } from './stream.ts';
import { type Target, Targets, type UpstreamSettings } from './targets.ts';
import { createUpstreamSecureContext, readUpstreamTlsFiles, type UpstreamTlsFiles } from './tls-files.ts';
import { Tunnels } from './websocket.ts';

/** Bytes per second. */
const MIN_BODY_RATE = 240;

/** One upstream: its targets, and the connections to them. */
export class Upstream {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly bodyRate: BodyRateLimits;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  /** A connection carries many exchanges. */
  readonly isMultiplexed: boolean;
  /** Deadlines of all exchanges with this upstream. */
  readonly deadlines = createDeadlines();
  readonly #slots: readonly Slots[];
  readonly #pools: readonly UpstreamPool[];
  readonly #health: { stop(): void } | undefined;

  constructor(settings: UpstreamSettings, targets: Targets, tlsFiles: UpstreamTlsFiles) {
    const { connections, timeouts, serverName, minRate = MIN_BODY_RATE } = settings;
    const secureContext = createUpstreamSecureContext(tlsFiles);
    this.timeouts = timeouts;
    this.bodyRate = { idle: timeouts.idle, body: timeouts.body, minRate };
    this.bodyBuffer = settings.bodyBuffer;
    this.targets = targets;
    this.isMultiplexed = settings.protocol === 'http2';
    this.#slots = targets.all.map((target) => new Slots(target, settings));
    this.#pools = targets.all.map(({ url, index }) =>
      this.isMultiplexed
        ? new Http2Pool(url, { serverName, secureContext })
        : new ConnectionPool(url, { serverName, secureContext }, connections, () => this.#slots[index]?.release()),
    );
    this.#health =
      settings.health && watchHealth(targets, settings.health, { isHttp2: this.isMultiplexed, serverName, tlsFiles });
  }

  slotsOf({ index }: Target): Slots {
    return this.#slots[index] as Slots;
  }

  poolOf({ index }: Target): UpstreamPool {
    return this.#pools[index] as UpstreamPool;
  }

  async close(): Promise<void> {
    this.#health?.stop();
    await Promise.all(this.#pools.map((pool) => pool.close()));
  }
}

/** One upstream, for requests and for WebSockets. */
export interface UpstreamHandle {
  readonly name: string;
  readonly targets: Targets;
  readonly upstream: Upstream;
  readonly tunnels: Tunnels;
}

/**
 * Upstreams survive a reload: if settings and files of an upstream are unchanged, its connections and the state of its
 * targets are kept.
 */
export class UpstreamRegistry extends SharedResources<UpstreamHandle> {
  readonly #log: Logger;

  constructor(log: Logger) {
    super();
    this.#log = log;
  }

  /** Returns the upstreams by name. Throws if a file of an upstream cannot be used; then nothing is opened. */
  acquire(
    settingsByName: Readonly<Record<string, UpstreamSettings>>,
    scope: ResourceScope,
  ): ReadonlyMap<string, UpstreamHandle> {
    // All files are read before anything is opened.
    const prepared = Object.entries(settingsByName).map(
      ([name, settings]) => [name, settings, readUpstreamTlsFiles(name, settings)] as const,
    );
    return new Map(
      prepared.map(([name, settings, tlsFiles]) => {
        // These settings belong to the configuration; connections do not depend on them.
        const { rewriteLocation: _, assertion: _also, paths: _paths, ...connectionSettings } = settings;
        const id = hash('sha256', JSON.stringify([name, connectionSettings, tlsFiles]), 'base64url');
        return [name, this.share(id, () => this.#open(name, settings, tlsFiles), scope)];
      }),
    );
  }

  /** After a reload two upstreams may have the same name; they are added up. */
  getStatus() {
    return [...Map.groupBy(this.list(), ({ name }) => name)].map(([name, sameName]) => ({
      name,
      pending: sum(sameName, ({ targets }) => sum(targets.all, ({ pending }) => pending)),
      streams: sum(sameName, ({ targets }) => sum(targets.all, ({ streams }) => streams)),
      targets: sum(sameName, ({ targets }) => targets.all.length),
      ejected: sum(sameName, ({ targets }) => targets.countEjected()),
    }));
  }

  #open(name: string, settings: UpstreamSettings, tlsFiles: UpstreamTlsFiles): OpenedResource<UpstreamHandle> {
    const targets = new Targets(settings.targets, {
      ejection: settings.ejection,
      onEvent: ({ event, ...fields }) => this.#log.warn(event, { upstream: name, ...fields }),
    });
    const upstream = new Upstream(settings, targets, tlsFiles);
    const tunnels = new Tunnels(settings, targets, tlsFiles);
    return {
      resource: { name, targets, upstream, tunnels },
      async close() {
        tunnels.close();
        await upstream.close();
      },
    };
  }
}

const sum = <T>(items: readonly T[], getValue: (item: T) => number): number =>
  items.reduce((total, item) => total + getValue(item), 0);
