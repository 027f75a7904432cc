import { hash } from 'node:crypto';
import type { Logger } from '../../observability/logger.ts';
import type { UpstreamSettings } from './targets.ts';
import { Targets } from './targets.ts';
import { readUpstreamTlsFiles, type UpstreamTlsFiles } from './tls-files.ts';
import { Upstream } from './upstream.ts';
import { Tunnels } from './websocket.ts';

/** One upstream, for requests and for WebSockets. */
export interface UpstreamHandle {
  readonly upstream: Upstream;
  readonly tunnels: Tunnels;
}

/** The upstreams of one configuration. */
export interface UpstreamSet {
  get(name: string): UpstreamHandle | undefined;
  /** Upstreams that no other configuration uses are closed; running requests may end within this time. */
  release(withinSeconds: number): Promise<void>;
}

interface SharedUpstream extends UpstreamHandle {
  readonly key: string;
  readonly name: string;
  readonly targets: Targets;
  references: number;
}

/**
 * Upstreams survive a reload: if settings and files of an upstream are unchanged, its connections and the state of its
 * targets are kept.
 */
export class UpstreamRegistry {
  readonly #log: Logger;
  readonly #active = new Map<string, SharedUpstream>();

  constructor(log: Logger) {
    this.#log = log;
  }

  /** Throws when a file of an upstream cannot be used; nothing is opened then. */
  acquire(settingsByName: Readonly<Record<string, UpstreamSettings>>): UpstreamSet {
    // All files are read before anything is opened.
    const prepared = Object.entries(settingsByName).map(
      ([name, settings]) => [name, settings, readUpstreamTlsFiles(name, settings)] as const,
    );
    const handles = new Map(prepared.map(([name, ...rest]) => [name, this.#open(name, ...rest)]));
    for (const handle of handles.values()) handle.references += 1;
    let released = false;
    return {
      get: (name) => handles.get(name),
      release: async (withinSeconds) => {
        if (released) return;
        released = true;
        for (const handle of handles.values()) handle.references -= 1;
        const unused = [...handles.values()].filter(({ references }) => references === 0);
        await Promise.all(unused.map((handle) => this.#close(handle, withinSeconds)));
      },
    };
  }

  /** After a reload two upstreams may have the same name; they are added up. */
  getStatus() {
    return [...Map.groupBy(this.#active.values(), ({ name }) => name)].map(([name, sameName]) => ({
      name,
      pending: sum(sameName, ({ targets }) => sum(targets.all, ({ pending }) => pending)),
      streams: sum(sameName, ({ targets }) => sum(targets.all, ({ streams }) => streams)),
      targets: sum(sameName, ({ targets }) => targets.all.length),
      ejected: sum(sameName, ({ targets }) => targets.countEjected()),
    }));
  }

  /** Closes all of them. */
  async close(): Promise<void> {
    await Promise.all([...this.#active.values()].map((handle) => this.#close(handle, 0)));
  }

  #open(name: string, settings: UpstreamSettings, tlsFiles: UpstreamTlsFiles): SharedUpstream {
    // These settings belong to the configuration; connections do not depend on them.
    const { rewriteLocation: _, assertion: _also, paths: _paths, ...connectionSettings } = settings;
    const key = hash('sha256', JSON.stringify([name, connectionSettings, tlsFiles]), 'base64url');
    const known = this.#active.get(key);
    if (known !== undefined) return known;
    const targets = new Targets(settings.targets, {
      ejection: settings.ejection,
      onEvent: ({ event, ...fields }) => this.#log.warn(event, { upstream: name, ...fields }),
    });
    const opened: SharedUpstream = {
      key,
      name,
      targets,
      upstream: new Upstream(settings, targets, tlsFiles),
      tunnels: new Tunnels(settings, targets, tlsFiles),
      references: 0,
    };
    this.#active.set(key, opened);
    return opened;
  }

  async #close({ key, upstream, tunnels }: SharedUpstream, withinSeconds: number): Promise<void> {
    this.#active.delete(key);
    tunnels.close();
    await upstream.close(withinSeconds);
  }
}

const sum = <T>(items: readonly T[], getValue: (item: T) => number): number =>
  items.reduce((total, item) => total + getValue(item), 0);
