import type { Epoch } from '../domain/epoch.ts';
import type { PendingEntry, PendingOutcome, PendingTerms } from '../ports/shared-limits.ts';

/** One network, with what is pending from it. Every count changes by one at a time, so the largest is always known. */
interface Network {
  readonly name: string;
  readonly below: Map<string, Network>;
  readonly bySize: Map<number, Set<Network>>;
  /** Of the narrowest networks: the entries, oldest first, and when each ends. */
  readonly entries: Map<string, Epoch>;
  count: number;
  largest: number;
}

const newNetwork = (name = ''): Network => ({
  name,
  below: new Map(),
  bySize: new Map(),
  entries: new Map(),
  count: 0,
  largest: 0,
});

/**
 * What is pending under one limit, by network. At the limit, a newcomer replaces the oldest entry of the network that has
 * the most, unless its own network has about as many.
 */
export interface PendingNetworks {
  admit(entry: PendingEntry, terms: PendingTerms, now: Epoch): PendingOutcome;
  release(entry: PendingEntry): void;
  sweep(now: Epoch): void;
  readonly isEmpty: boolean;
}

export function pendingNetworks(): PendingNetworks {
  const all = newNetwork();
  /** By the second in which they end. */
  const ending = new Map<number, Map<string, PendingEntry>>();
  let swept = 0;

  const resize = (above: Network, network: Network, by: 1 | -1): void => {
    const before = above.bySize.get(network.count);
    before?.delete(network);
    if (before?.size === 0) above.bySize.delete(network.count);
    network.count += by;
    if (network.count > 0) {
      const now = above.bySize.get(network.count) ?? new Set();
      above.bySize.set(network.count, now.add(network));
    }
    if (network.count > above.largest) above.largest = network.count;
    else if (!above.bySize.has(above.largest)) above.largest -= 1;
  };

  const add = (entry: PendingEntry, ends: Epoch): void => {
    let above = all;
    all.count += 1;
    for (const name of entry.networks) {
      const network = above.below.get(name) ?? newNetwork(name);
      above.below.set(name, network);
      resize(above, network, 1);
      above = network;
    }
    above.entries.set(entry.id, ends);
    const second = Math.ceil(ends);
    ending.set(second, (ending.get(second) ?? new Map<string, PendingEntry>()).set(entry.id, entry));
  };

  const remove = ({ id, networks }: Pick<PendingEntry, 'id' | 'networks'>): void => {
    const path = pathOf(all, networks);
    const ends = path?.at(-1)?.entries.get(id);
    if (path === undefined || ends === undefined) return;
    path.at(-1)?.entries.delete(id);
    all.count -= 1;
    networks.forEach((name, depth) => {
      const [above, network] = [path[depth], path[depth + 1]];
      if (above === undefined || network === undefined) return;
      resize(above, network, -1);
      if (network.count === 0) above.below.delete(name);
    });
    const second = Math.ceil(ends);
    const others = ending.get(second);
    others?.delete(id);
    if (others?.size === 0) ending.delete(second);
  };

  return {
    admit(entry, { most, perNetwork = most, seconds }, now) {
      const path = pathOf(all, entry.networks);
      if ((path?.at(-1)?.count ?? 0) >= perNetwork) return REFUSED;
      const ends = now + seconds;
      if (all.count < most) {
        add(entry, ends);
        return { admitted: true };
      }
      const crowded = crowdedNetwork(all, entry.networks);
      if (crowded === undefined) return REFUSED;
      const [displaced = ''] = crowded.network.entries.keys();
      remove({ id: displaced, networks: crowded.networks });
      add(entry, ends);
      return { admitted: true, displaced };
    },
    release: remove,
    sweep(now) {
      const second = Math.floor(now);
      if (second === swept) return;
      swept = second;
      for (const [at, entries] of ending) if (at <= second) entries.forEach(remove);
    },
    get isEmpty() {
      return all.count === 0;
    },
  };
}

const REFUSED: PendingOutcome = { admitted: false };

function pathOf(all: Network, names: readonly string[]): readonly Network[] | undefined {
  const path = [all];
  for (const name of names) {
    const network = path.at(-1)?.below.get(name);
    if (network === undefined) return undefined;
    path.push(network);
  }
  return path;
}

interface Crowded {
  readonly network: Network;
  readonly networks: readonly string[];
}

/**
 * The narrowest network that loses an entry to one more from `names`. From wide to narrow: the largest network, if
 * it has at least two more than the newcomer's own; otherwise the networks inside the newcomer's own are compared.
 */
function crowdedNetwork(all: Network, names: readonly string[]): Crowded | undefined {
  let above = all;
  const walked: string[] = [];
  for (const name of names) {
    const own = above.below.get(name);
    if (above.largest >= (own?.count ?? 0) + 2) return narrowestOf(above, walked);
    if (own === undefined) return undefined;
    above = own;
    walked.push(name);
  }
  return undefined;
}

/** The largest network below, its largest, and so on. */
function narrowestOf(from: Network, names: readonly string[]): Crowded {
  let network = from;
  const networks = [...names];
  while (network.below.size > 0) {
    const [largest] = network.bySize.get(network.largest) ?? [];
    if (largest === undefined) break;
    networks.push(largest.name);
    network = largest;
  }
  return { network, networks };
}
