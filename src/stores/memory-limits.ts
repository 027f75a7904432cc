import type { Epoch } from '../domain/grant.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { createTokenBuckets } from '../lib/rate-limiter.ts';
import {
  COUNT_SLICE_SECONDS,
  type PendingEntry,
  type PendingLimits,
  type PendingOutcome,
  type SharedLimits,
} from '../ports/shared-limits.ts';

const MAX_NAMES = 50_000;

/**
 * Counters in the memory of one process, for itself or its workers. The least recently used names are evicted; processes
 * with quotas keep the counts of their own requests.
 */
export function createMemoryLimits(now: () => Epoch, processes = 1): SharedLimits {
  const buckets = createTokenBuckets(now, MAX_NAMES);
  /** One per client, and one for all: not bounded by `MAX_NAMES`, since a limit in use must not be evicted. */
  const pendingByLimit = new Map<string, PendingNetworks>();
  const windows = createBoundedCache<string, Map<number, number>>(MAX_NAMES);
  return {
    take: async (bucket, rate, amount, allowDebt) => buckets.consume(bucket, rate, amount, allowDebt),
    async count(name, { max = Number.POSITIVE_INFINITY, seconds }, amount) {
      const at = now();
      const counts = windows.get(name) ?? new Map<number, number>();
      let active = 0;
      for (const [slice, count] of counts)
        if (slice * COUNT_SLICE_SECONDS <= at) counts.delete(slice);
        else active += count;
      const before = Math.max(0, active);
      if (amount === 0 || (amount > 0 && before + amount > max)) return before;
      const slice = Math.ceil((at + seconds) / COUNT_SLICE_SECONDS);
      counts.set(slice, (counts.get(slice) ?? 0) + Math.max(amount, -before));
      windows.set(name, counts);
      return before;
    },
    async admit(limit, entry, limits) {
      const at = now();
      const pending = pendingByLimit.get(limit) ?? createPendingNetworks();
      pending.sweep(at);
      const outcome = pending.admit(entry, limits, at);
      if (pending.isEmpty) pendingByLimit.delete(limit);
      else pendingByLimit.set(limit, pending);
      return outcome;
    },
    async release(limit, entry) {
      const pending = pendingByLimit.get(limit);
      pending?.release(entry);
      if (pending?.isEmpty === true) pendingByLimit.delete(limit);
    },
    processCount: () => processes,
  };
}

/** A network with its pending entries. Counts change by one at a time, so the largest child is always known. */
interface Network {
  readonly name: string;
  readonly parent: Network | undefined;
  readonly children: Map<string, Network>;
  readonly childrenByCount: Map<number, Set<Network>>;
  /** The entries, oldest first; only the narrowest networks have any. */
  readonly entries: Set<Entry>;
  count: number;
  /** The count of the largest child. */
  largest: number;
}

interface Entry {
  readonly id: string;
  readonly network: Network;
  readonly expirySecond: number;
}

const createNetwork = (name = '', parent?: Network): Network => ({
  name,
  parent,
  children: new Map(),
  childrenByCount: new Map(),
  entries: new Set(),
  count: 0,
  largest: 0,
});

/**
 * Pending entries under one limit, by network. At the limit, a new entry replaces the oldest entry of the largest network,
 * unless its own network is about as large.
 */
function createPendingNetworks() {
  const root = createNetwork();
  const entriesById = new Map<string, Entry>();
  const entriesByExpiry = new Map<number, Set<Entry>>();
  let lastSweep = 0;

  const add = ({ id, networks }: PendingEntry, expiresAt: Epoch): void => {
    let network = root;
    for (const name of networks) {
      const child = network.children.get(name) ?? createNetwork(name, network);
      network.children.set(name, child);
      network = child;
    }
    const entry = { id, network, expirySecond: Math.ceil(expiresAt) };
    network.entries.add(entry);
    updateCounts(network, 1);
    entriesById.set(id, entry);
    addToGroup(entriesByExpiry, entry.expirySecond, entry);
  };

  const remove = (entry: Entry): void => {
    entry.network.entries.delete(entry);
    updateCounts(entry.network, -1);
    entriesById.delete(entry.id);
    removeFromGroup(entriesByExpiry, entry.expirySecond, entry);
  };

  return {
    admit(entry: PendingEntry, limits: PendingLimits, now: Epoch): PendingOutcome {
      const { total, perNetwork = total, seconds } = limits;
      if (countEntries(root, entry.networks) >= perNetwork) return { admitted: false };
      if (root.count < total) {
        add(entry, now + seconds);
        return { admitted: true };
      }
      const [evicted] = findNetworkToEvictFrom(root, entry.networks)?.entries ?? [];
      if (evicted === undefined) return { admitted: false };
      remove(evicted);
      add(entry, now + seconds);
      return { admitted: true, evicted: evicted.id };
    },
    release({ id }: PendingEntry): void {
      const entry = entriesById.get(id);
      if (entry !== undefined) remove(entry);
    },
    sweep(now: Epoch): void {
      const second = Math.floor(now);
      if (second === lastSweep) return;
      lastSweep = second;
      for (const [expiry, entries] of entriesByExpiry) if (expiry <= second) entries.forEach(remove);
    },
    get isEmpty(): boolean {
      return root.count === 0;
    },
  };
}

type PendingNetworks = ReturnType<typeof createPendingNetworks>;

function addToGroup<Value>(groups: Map<number, Set<Value>>, key: number, value: Value): void {
  const group = groups.get(key) ?? new Set();
  groups.set(key, group.add(value));
}

function removeFromGroup<Value>(groups: Map<number, Set<Value>>, key: number, value: Value): void {
  const group = groups.get(key);
  group?.delete(value);
  if (group?.size === 0) groups.delete(key);
}

/** Updates the counts of a network and of all networks that contain it. */
function updateCounts(narrowest: Network, by: 1 | -1): void {
  for (let network: Network | undefined = narrowest; network !== undefined; network = network.parent) {
    const { parent } = network;
    if (parent !== undefined) removeFromGroup(parent.childrenByCount, network.count, network);
    network.count += by;
    if (parent === undefined) return;
    if (network.count === 0) parent.children.delete(network.name);
    else addToGroup(parent.childrenByCount, network.count, network);
    if (network.count > parent.largest) parent.largest = network.count;
    else if (!parent.childrenByCount.has(parent.largest)) parent.largest -= 1;
  }
}

function countEntries(root: Network, names: readonly string[]): number {
  let network: Network | undefined = root;
  for (const name of names) network = network?.children.get(name);
  return network?.count ?? 0;
}

/**
 * The narrowest network that loses an entry to a new one from `names`. From wide to narrow: the largest network, if it has
 * at least two entries more than the new entry's own; otherwise the networks inside the latter are compared.
 */
function findNetworkToEvictFrom(root: Network, names: readonly string[]): Network | undefined {
  let network = root;
  for (const name of names) {
    const own = network.children.get(name);
    if (network.largest >= (own?.count ?? 0) + 2) return findLargest(network);
    if (own === undefined) return undefined;
    network = own;
  }
  return undefined;
}

/** Descends into the largest network on each level. */
function findLargest(network: Network): Network {
  const [largest] = network.childrenByCount.get(network.largest) ?? [];
  return largest === undefined ? network : findLargest(largest);
}
