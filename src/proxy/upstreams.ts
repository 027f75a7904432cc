import { hash } from 'node:crypto';
import type { Logger } from '../observability/logger.ts';
import { openUpstream, type Upstream } from './forward.ts';
import { type Targets, watchTargets } from './targets.ts';
import { openTunnels, type Tunnels } from './upgrade.ts';
import { readMaterial } from './upstream-files.ts';
import type { UpstreamSettings } from './upstream-settings.ts';

/** How requests and WebSockets get to one upstream. */
export interface Way {
  readonly upstream: Upstream;
  readonly tunnels: Tunnels;
}

/** The upstreams of one configuration. */
export interface Lease {
  get(name: string): Way | undefined;
  /** Gives them back; what nobody else has leased closes, and may take this long for what runs. */
  release(withinSeconds: number): Promise<void>;
}

/**
 * Connections to upstreams outlive a configuration: an upstream whose settings and files are the same in the next one
 * keeps its connections and what is known about its targets.
 */
export interface Upstreams {
  /** Throws when a file of an upstream cannot be used, and has then opened nothing. */
  lease(wanted: Readonly<Record<string, UpstreamSettings>>): Lease;
  /** How they are doing; of two under one name, as after a reload, together. */
  states(): readonly UpstreamState[];
  /** Ends all of them. */
  close(): Promise<void>;
}

export interface UpstreamState {
  readonly name: string;
  /** What was given to it and has not ended. */
  readonly pending: number;
  readonly targets: number;
  /** Targets that are left out. */
  readonly ejected: number;
}

interface Held extends Way {
  readonly key: string;
  readonly name: string;
  readonly targets: Targets;
  leases: number;
}

export function createUpstreams(log: Logger): Upstreams {
  const held = new Map<string, Held>();

  const open = (name: string, settings: UpstreamSettings): (() => Held) => {
    const material = readMaterial(name, settings);
    // What is done with requests and answers belongs to a configuration; the way there does not depend on it.
    const { rewriteLocation: _, assertion: _also, paths: _paths, ...way } = settings;
    const key = hash('sha256', JSON.stringify([name, way, material]), 'base64url');
    return () => {
      const known = held.get(key);
      if (known !== undefined) return known;
      const targets = watchTargets(settings.targets, {
        ejection: settings.ejection,
        tell: ({ event, ...fields }) => log.warn(event, { upstream: name, ...fields }),
      });
      const made: Held = {
        key,
        name,
        targets,
        upstream: openUpstream(settings, targets, material),
        tunnels: openTunnels(settings, targets, material),
        leases: 0,
      };
      held.set(key, made);
      return made;
    };
  };

  const end = async ({ key, upstream, tunnels }: Held, withinSeconds: number): Promise<void> => {
    held.delete(key);
    tunnels.close();
    await upstream.close(withinSeconds);
  };

  return {
    lease(wanted) {
      // All files are read before anything is opened.
      const openers = Object.entries(wanted).map(([name, settings]) => [name, open(name, settings)] as const);
      const ways = new Map(openers.map(([name, make]) => [name, make()]));
      for (const way of ways.values()) way.leases += 1;
      let released = false;
      return {
        get: (name) => ways.get(name),
        async release(withinSeconds) {
          if (released) return;
          released = true;
          for (const way of ways.values()) way.leases -= 1;
          const unused = [...ways.values()].filter(({ leases }) => leases === 0);
          await Promise.all(unused.map((way) => end(way, withinSeconds)));
        },
      };
    },
    states: () =>
      [...Map.groupBy(held.values(), ({ name }) => name)].map(([name, ways]) => ({
        name,
        pending: sum(ways, ({ targets }) => sum(targets.all, ({ pending }) => pending)),
        targets: sum(ways, ({ targets }) => targets.all.length),
        ejected: sum(ways, ({ targets }) => targets.leftOut()),
      })),
    async close() {
      await Promise.all([...held.values()].map((way) => end(way, 0)));
    },
  };
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number =>
  items.reduce((total, item) => total + of(item), 0);
