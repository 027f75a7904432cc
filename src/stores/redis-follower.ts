import { randomBytes } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { SKEW_REFUSED } from './redis-checks.ts';
import { type RedisClient, redisFault } from './redis-client.ts';
import {
  compareIds,
  type Head,
  type KeyedEntry,
  NO_ENTRY,
  type RevocationKeys,
  type RevocationServer,
  readLogEntry,
} from './redis-revocation-scripts.ts';
import type { RevocationView } from './revocation-view.ts';

/**
 * Keeps this process's view of revocations in step with the log in Redis, and knows how sure it may be of it.
 *
 * Epoch and last id are read first, then the snapshot, then the log from that id: nothing falls in between, and what
 * comes twice does no harm. Each log entry names the one before it; when that is not the one applied last, something
 * is missing (trimmed, lost in a failover, another history), and everything is loaded again. What this process knows
 * and the server has lost is published again.
 */
export interface Follower {
  readonly replica: string;
  readonly epoch: () => string;
  readonly floor: () => number;
  /** The floor for a server that was emptied; empty when this replica cannot know what was revoked since. */
  readonly vouchedFloor: () => string;
  /** Milliseconds since the last moment at which all that had been announced was known here. */
  staleness(): number;
  /** How many follow the log, this one included, as the last beat told. */
  followers(): number;
  /** Is the server the one whose history is known here, as far as it was heard from? */
  isCurrent(): boolean;
  /** What an announcement of ours was answered with. */
  saw(head: Head): void;
  /** Throws while the server is not the one whose history is known here; what it lacks then says nothing. */
  requireSame(): Promise<void>;
  stop(): Promise<void>;
}

export interface FollowerOptions {
  readonly server: RevocationServer;
  /** A connection of its own, for reading that waits. */
  readonly reader: RedisClient;
  readonly keys: RevocationKeys;
  readonly view: RevocationView;
  /** Milliseconds after which a view that could not be confirmed no longer counts. */
  readonly lease: number;
  readonly onFault: (fault: Fault) => void;
  /** The server answered, and is the one we follow. */
  readonly onBeat: () => void;
  /** The time that new tokens carry: by the server's clock or this process's, whichever is behind. */
  readonly issuingTime: () => Epoch;
  /** The server lost what it had: others may have things to put back. */
  readonly onDataLoss: () => Promise<void>;
  /** Milliseconds to catch up with the log at first. */
  readonly withinMs?: number;
}

const BLOCK_MS = 1_000;
const BEAT_MS = 500;
/** A reader that is behind for this long has lost its way. */
const BEHIND_MS = 1_000;
const READ_AGAIN_MS = 50;
/** Beyond a snapshot that takes long; each command has a limit of its own. */
const CATCH_UP_MS = 60_000;
/** Milliseconds between two loads of the snapshot while the log cannot be relied on; and a part of the time at most. */
const RELOAD = { leastMs: 2_000, times: 20 };
/** Time synchronisation sets clocks by less than this. */
const STEP_MS = 1_000;
const BATCH = 1_000;
const REPUBLISH_BATCH = 100;

export const newEpoch = (): string => randomBytes(12).toString('base64url');

export async function follow(options: FollowerOptions): Promise<Follower> {
  const { server, reader, keys, view, lease } = options;
  const replica = randomBytes(9).toString('base64url');
  let epoch: string | undefined;
  let floor = 0;
  let applied = NO_ENTRY;
  let knownAt = Number.NEGATIVE_INFINITY;
  /** A beat that was answered with an id we have not applied yet. */
  let waiting: { readonly sentAt: number; readonly last: string } | undefined;
  /** What was known before the server was found changed, until all of it is published again. */
  let owed: { readonly epoch: string; readonly floor: number; readonly informed: boolean } | undefined;
  let syncing: Promise<void> | undefined;
  let followers = 1;
  let stopped = false;
  const ending = new AbortController();

  const add = (entries: Iterable<KeyedEntry>): void => {
    for (const [key, entry] of entries) view.add(key, entry);
  };
  const confirm = (sentAt: number, last: string): void => {
    // An older beat that is still waiting comes first, or under steady traffic none would ever count.
    waiting ??= { sentAt, last };
    if (compareIds(applied, waiting.last) < 0) return;
    knownAt = Math.max(knownAt, waiting.sentAt);
    waiting = undefined;
    if (compareIds(applied, last) >= 0) knownAt = Math.max(knownAt, sentAt);
  };
  const staleness = (): number => performance.now() - knownAt;

  /**
   * Ids of the log are times of the server. A position ahead of its clock is from before the clock was set back, or others
   * have written it, and then new entries come before it and are not read: until it is past, and once after that, the
   * snapshot is loaded again and again.
   */
  const isAheadOf = (now: number): boolean => Number(applied.split('-', 1)[0]) > now;
  let isAhead = false;
  let nextReload = Number.NEGATIVE_INFINITY;
  let reloading: Promise<void> | undefined;
  const reload = async (): Promise<void> => {
    const began = performance.now();
    for await (const page of server.snapshot()) add(page);
    const took = performance.now() - began;
    nextReload = performance.now() + Math.max(RELOAD.leastMs, RELOAD.times * took);
  };
  const reloadIfAhead = (now: number): void => {
    const isStillAhead = isAheadOf(now);
    isAhead ||= isStillAhead;
    if (!isAhead || reloading !== undefined || performance.now() < nextReload) return;
    isAhead = isStillAhead;
    if (isAheadOf(now + STEP_MS))
      options.onFault(
        new Fault(
          'store_corrupt',
          'Redis: its log of revocations is ahead of its clock; the clock was set back, or others write to the log',
        ),
      );
    reloading = reload()
      .catch((error: unknown) => {
        isAhead = true;
        options.onFault(redisFault(error));
      })
      .finally(() => {
        reloading = undefined;
      });
  };

  const vouchedFloor = (): string => {
    const informed = owed?.informed ?? staleness() <= lease;
    return informed ? String(owed?.floor ?? floor) : '';
  };

  const sync = async (): Promise<void> => {
    if (epoch !== undefined) owed ??= { epoch, floor, informed: staleness() <= lease };
    const informed = owed?.informed === true;
    const head = await server.begin(newEpoch(), informed ? String(owed?.floor) : '');
    for await (const page of server.snapshot()) add(page);
    epoch = head.epoch ?? '';
    floor = informed ? (owed?.floor ?? 0) : head.floor;
    // Tokens issued before the floor would be rejected at once. With clocks further apart nothing is issued.
    const early = Math.min(floor - options.issuingTime(), SKEW_REFUSED + 1);
    if (early > 0) await pause(early * 1_000, undefined, { signal: ending.signal }).catch(() => {});
    applied = head.last;
    isAhead ||= isAheadOf(head.now);
    waiting = undefined;
    if (owed === undefined) return;
    await republish();
    if (owed.epoch !== epoch) {
      await options.onDataLoss();
      if (informed) await server.vouch(owed.floor);
    }
    owed = undefined;
  };
  const republish = async (): Promise<void> => {
    let batch: KeyedEntry[] = [];
    const send = async (): Promise<void> => {
      if (batch.length > 0) await server.announce(epoch ?? '', vouchedFloor(), batch);
      batch = [];
    };
    for (const one of view.entries()) {
      batch.push(one);
      if (batch.length === REPUBLISH_BATCH) await send();
    }
    await send();
  };
  const syncAgain = (): Promise<void> => {
    syncing ??= sync().finally(() => {
      syncing = undefined;
    });
    return syncing;
  };
  /** From the background: whoever waits for nothing must not fail; the lease runs on meanwhile. */
  const syncLater = (): void => {
    if (!stopped) syncAgain().catch((error: unknown) => options.onFault(redisFault(error)));
  };

  /** Is the server still the one we follow, and not behind what it had already told us? */
  const isSame = (head: Head, appliedThen: string): boolean =>
    owed === undefined && head.epoch === epoch && compareIds(head.last, appliedThen) >= 0;
  const beat = async (): Promise<void> => {
    if (syncing !== undefined) return;
    const sentAt = performance.now();
    const appliedThen = applied;
    const head = await server.beat(replica, appliedThen, lease);
    if (syncing !== undefined) return;
    if (!isSame(head, appliedThen)) return syncLater();
    floor = head.floor;
    followers = head.followers;
    confirm(sentAt, head.last);
    reloadIfAhead(head.now);
    options.onBeat();
    if (waiting !== undefined && sentAt - waiting.sentAt > BEHIND_MS) syncLater();
  };
  let beating: Promise<void> | undefined;
  let beatAgain = false;
  /** One at a time; asked for meanwhile, one more follows. */
  const beatSoon = (): void => {
    if (stopped) return;
    if (beating !== undefined) {
      beatAgain = true;
      return;
    }
    beating = beat()
      .catch((error: unknown) => options.onFault(redisFault(error)))
      .finally(() => {
        beating = undefined;
        if (beatAgain) {
          beatAgain = false;
          beatSoon();
        }
      });
  };

  /** False when there is a gap. */
  const apply = (messages: readonly [id: string, fields: string[]][]): boolean => {
    for (const [id, fields] of messages) {
      const { previous, entries } = readLogEntry(fields);
      if (previous !== applied) return false;
      add(entries);
      applied = id;
    }
    return true;
  };
  const readOnce = async (block: number | undefined): Promise<number> => {
    await syncing;
    const from = applied;
    const answer = await reader.ask((redis) =>
      block === undefined
        ? redis.xread('COUNT', BATCH, 'STREAMS', keys.log, from)
        : redis.xread('COUNT', BATCH, 'BLOCK', block, 'STREAMS', keys.log, from),
    );
    const messages = answer?.[0]?.[1] ?? [];
    // Everything was loaded again meanwhile, and this answer continues something else.
    if (applied !== from || syncing !== undefined || messages.length === 0) return 0;
    if (!apply(messages)) await syncAgain();
    return messages.length;
  };
  const readOn = async (): Promise<void> => {
    for (;;) {
      try {
        if (stopped) return;
        if ((await readOnce(BLOCK_MS)) > 0) beatSoon();
      } catch (error) {
        if (stopped) return;
        options.onFault(redisFault(error));
        await pause(READ_AGAIN_MS);
      }
    }
  };

  await syncAgain();
  const deadline = performance.now() + (options.withinMs ?? CATCH_UP_MS);
  const inTime = (): boolean => performance.now() < deadline;
  // Announcers wait for listed replicas: a backlog is read before the first beat lists this one.
  while (inTime() && (await readOnce(undefined)) === BATCH);
  for (;;) {
    if (!inTime()) {
      // Announcers should not wait for a replica that gave up.
      await server.leave(replica).catch(() => {});
      throw new Fault(
        'store_unavailable',
        'Redis: its log of revocations could not be caught up with in time',
      );
    }
    const sentAt = performance.now();
    const head = await server.beat(replica, applied, lease);
    followers = head.followers;
    if (!isSame(head, applied)) {
      await syncAgain();
      continue;
    }
    // Only up to the beat: what is announced later waits for us. Under steady traffic the log never ends.
    const isBehind = (): boolean => compareIds(applied, head.last) < 0;
    while (isBehind() && inTime() && (await readOnce(undefined)) > 0);
    // Another history in between has not listed this replica yet.
    if (isBehind() || head.epoch !== epoch) continue;
    knownAt = sentAt;
    break;
  }
  const reading = readOn();
  const timer = setInterval(beatSoon, BEAT_MS).unref();
  // Announcers wait for what was read beyond the first beat.
  beatSoon();
  return {
    replica,
    epoch: () => epoch ?? '',
    floor: () => floor,
    vouchedFloor,
    staleness,
    followers: () => followers,
    async requireSame() {
      const found = await server.epoch();
      if (owed === undefined && syncing === undefined && found === epoch) return;
      syncLater();
      throw new Fault('store_unavailable', 'Redis: it is another one than before, or was emptied');
    },
    isCurrent: () => owed === undefined && syncing === undefined,
    saw: (head) => {
      if (head.epoch !== epoch && syncing === undefined) syncLater();
    },
    async stop() {
      if (stopped) return;
      stopped = true;
      ending.abort();
      clearInterval(timer);
      reader.close();
      await Promise.allSettled([reading, beating, syncing, reloading]);
      await server.leave(replica).catch(() => {});
    },
  };
}
