import { hash } from 'node:crypto';
import { type OpenedResource, type ResourceScope, SharedResources } from '../../lib/shared-resources.ts';
import type { Logger } from '../../observability/logger.ts';
import { Targets, type UpstreamSettings } from './targets.ts';
import { readUpstreamTlsFiles, type UpstreamTlsFiles } from './tls-files.ts';
import { Upstream } from './upstream.ts';
import { Tunnels } from './websocket.ts';

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

  /** By name. Throws when a file of an upstream cannot be used; nothing is opened then. */
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
