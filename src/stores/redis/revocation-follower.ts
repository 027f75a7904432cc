import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Epoch } from '../../domain/grant.ts';
import { Fault } from '../../ports/fault.ts';
import { MAX_SKEW_SECONDS } from '../../ports/store.ts';
import { isGrantKey, type KeyedEntry, type RevocationView } from '../revocation-rules.ts';
import { batches } from './batch.ts';
import { type RedisClient, toRedisFault } from './client.ts';
import {
  compareIds,
  type KnownState,
  type LogHead,
  NO_ENTRY,
  type RevocationKeys,
  type RevocationScripts,
  readLogEntry,
} from './revocation-scripts.ts';

export interface RevocationFollowerOptions {
  readonly scripts: RevocationScripts;
  /** A connection of its own, for blocking reads. */
  readonly reader: RedisClient;
  readonly keys: RevocationKeys;
  readonly view: RevocationView;
  /** Milliseconds for which an unconfirmed view may be used. */
  readonly lease: number;
  readonly onFault: (fault: Fault) => void;
  /** The server replied, and has the history that is followed. */
  readonly onHeartbeat: () => void;
  /** The time at which new tokens are issued: by the server's clock or this process's, whichever is behind. */
  readonly issuingTime: () => Epoch;
  /** The server lost its data: the caller restores what else it knows. */
  readonly onDataLoss: () => Promise<void>;
}

const BLOCK_MS = 1_000;
const HEARTBEAT_INTERVAL_MS = 500;
/** A reader that is behind for longer has lost its position. */
const MAX_BEHIND_MS = 1_000;
const READ_RETRY_MS = 50;
const APPLY_POLL_MS = 2;
/** For the first catch-up with the log; not including the snapshot, whose commands have timeouts of their own. */
const CATCH_UP_TIMEOUT_MS = 60_000;
const BATCH = 1_000;
const REPUBLISH_BATCH = 100;

export const createEpoch = (): string => randomBytes(12).toString('base64url');

/** How far the log of a server was applied here. The epoch identifies the server's history. */
interface Position {
  readonly epoch: string;
  readonly floor: number;
  readonly applied: string;
  /** All revocations of clients, identities and trusted issuers up to this number are applied. */
  readonly number: number;
}

/** What was known when the server's history turned out to have changed. */
interface KnownHistory extends Pick<Position, 'epoch' | 'floor'> {
  /** Whether the view was within its lease, so that no revocation is missing from it. */
  readonly wasCurrent: boolean;
}

type SyncState =
  | { readonly kind: 'following' }
  /** The snapshot is loaded, and what the server has lost of `previous` is published again. */
  | { readonly kind: 'syncing'; readonly previous: KnownHistory | undefined; readonly done: Promise<void> }
  /** Not loaded yet, or loading failed; the next heartbeat tries again. */
  | { readonly kind: 'unsynced'; readonly previous: KnownHistory | undefined };

interface Heartbeat {
  readonly sentAt: number;
  /** The last log entry at that time. */
  readonly lastId: string;
}

/**
 * Keeps the revocation view of this process in sync with the log in Redis, and knows how current it is.
 *
 * Epoch and last id are read first, then the snapshot, then the log from that id, so nothing is missed; applying an entry
 * twice is harmless. Each log entry names its predecessor. If that is not the entry applied last, something is missing
 * (trimmed, lost in a failover, another history): everything is loaded again, and revocations that the server has lost
 * are published again.
 */
export class RevocationFollower {
  /** The beginning is for people; the rest makes it unique. */
  readonly replica = `${hostname().slice(0, 63)}.${process.pid}.${randomBytes(9).toString('base64url')}`;
  readonly #options: RevocationFollowerOptions;
  readonly #reloader: ReturnType<typeof createSnapshotReloader>;
  readonly #stopController = new AbortController();
  #state: SyncState = { kind: 'unsynced', previous: undefined };
  #position: Position = { epoch: '', floor: 0, applied: NO_ENTRY, number: 0 };
  #confirmedAt = Number.NEGATIVE_INFINITY;
  /** Its reply named an entry that is not applied yet. */
  #pendingHeartbeat: Heartbeat | undefined;
  #runningHeartbeat: { readonly done: Promise<void>; isRepeatRequested: boolean } | undefined;
  #followerCount = 1;
  #reading: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: RevocationFollowerOptions) {
    this.#options = options;
    this.#reloader = createSnapshotReloader(() => this.#loadSnapshot(), options.onFault);
  }

  /** Resolves when all that was announced before is applied. */
  async start(): Promise<void> {
    await this.#sync();
    await this.#catchUp();
    this.#reading = this.#readLoop();
    this.#timer = setInterval(() => this.#requestHeartbeat(), HEARTBEAT_INTERVAL_MS).unref();
    // Announcers wait until this replica reports what it has read since its first heartbeat.
    this.#requestHeartbeat();
  }

  async stop(): Promise<void> {
    if (this.#isStopped()) return;
    this.#stopController.abort();
    clearInterval(this.#timer);
    this.#options.reader.close();
    const syncing = this.#state.kind === 'syncing' ? this.#state.done : undefined;
    await Promise.allSettled([this.#reading, this.#runningHeartbeat?.done, syncing, this.#reloader.settle()]);
    await this.#options.scripts.leave(this.replica).catch(() => {});
  }

  /** Tokens issued earlier are rejected: their revocations may have been lost. */
  floor(): number {
    return this.#position.floor;
  }

  /** For a server that lost its data. */
  knownState(): KnownState {
    const { wasCurrent, floor } = this.#getKnownHistory() ?? { wasCurrent: false };
    return { floor: wasCurrent ? String(floor) : '', number: this.#position.number };
  }

  /** All revocations of clients, identities and trusted issuers up to this number are applied here. */
  lastNumber(): number {
    return this.#position.number;
  }

  /** Resolves when an entry of the log is applied here, or after a timeout: then the reader is stuck, and a heartbeat starts it anew. */
  async waitUntilApplied(id: string, timeoutMs: number): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    while (this.#isBehind(id) && performance.now() < deadline && !this.#isStopped()) await sleep(APPLY_POLL_MS);
  }

  /** Milliseconds since all announced revocations were known here. */
  staleness(): number {
    return performance.now() - this.#confirmedAt;
  }

  /** The number of replicas that follow the log, as of the last heartbeat. */
  followerCount(): number {
    return this.#followerCount;
  }

  /** As far as known, the server has the history that was applied here. */
  isCurrent(): boolean {
    return this.#state.kind === 'following';
  }

  /** Checks the reply to an announcement for a changed history. */
  observeHead({ epoch }: LogHead): void {
    if (epoch !== this.#position.epoch && this.#state.kind !== 'syncing') this.#syncInBackground();
  }

  /** Throws if the server does not have the history that was applied here: a record missing from it may have been lost. */
  async requireSameHistory(): Promise<void> {
    const epoch = await this.#options.scripts.epoch();
    if (this.isCurrent() && epoch === this.#position.epoch) return;
    this.#syncInBackground();
    throw new Fault('store_unavailable', 'Redis: the server was replaced or lost its data');
  }

  #isStopped(): boolean {
    return this.#stopController.signal.aborted;
  }

  #reportFault(error: unknown): void {
    this.#options.onFault(toRedisFault(error));
  }

  #getKnownHistory(): KnownHistory | undefined {
    if (this.#state.kind !== 'following') return this.#state.previous;
    const { epoch, floor } = this.#position;
    return { epoch, floor, wasCurrent: this.staleness() <= this.#options.lease };
  }

  #sync(): Promise<void> {
    if (this.#state.kind === 'syncing') return this.#state.done;
    const previous = this.#getKnownHistory();
    const done = this.#load(previous).then(
      () => {
        this.#state = { kind: 'following' };
      },
      (error: unknown) => {
        this.#state = { kind: 'unsynced', previous };
        throw error;
      },
    );
    this.#state = { kind: 'syncing', previous, done };
    return done;
  }

  #syncInBackground(): void {
    if (!this.#isStopped()) this.#sync().catch((error: unknown) => this.#reportFault(error));
  }

  async #load(previous: KnownHistory | undefined): Promise<void> {
    const { scripts, issuingTime, onDataLoss } = this.#options;
    const knownFloor = previous?.wasCurrent === true ? previous.floor : undefined;
    const head = await scripts.initialize(createEpoch(), knownFloor === undefined ? '' : String(knownFloor));
    await this.#loadSnapshot();
    const epoch = head.epoch ?? '';
    const floor = knownFloor ?? head.floor;
    // Read before the snapshot, which therefore contains all revocations up to it.
    const number = Math.max(this.#position.number, head.number);
    this.#position = { epoch, floor, applied: head.lastId, number };
    // Tokens issued before the floor would be rejected at once. If the clocks differ by more, none are issued.
    const secondsToFloor = Math.min(floor - issuingTime(), MAX_SKEW_SECONDS + 1);
    const { signal } = this.#stopController;
    if (secondsToFloor > 0) await sleep(secondsToFloor * 1_000, undefined, { signal }).catch(() => {});
    this.#reloader.observe(head.lastId, head.now);
    this.#pendingHeartbeat = undefined;
    if (previous === undefined) return;
    await this.#republish(epoch);
    if (previous.epoch === epoch) return;
    await onDataLoss();
    if (knownFloor !== undefined) await scripts.lowerFloor(knownFloor);
  }

  async #loadSnapshot(): Promise<void> {
    for await (const page of this.#options.scripts.snapshot()) this.#add(page);
  }

  #add(entries: readonly KeyedEntry[]): void {
    for (const [key, entry] of entries) this.#options.view.add(key, entry);
  }

  async #republish(epoch: string): Promise<void> {
    const { scripts, view } = this.#options;
    for await (const batch of batches(view.entries(), REPUBLISH_BATCH))
      await scripts.announce(epoch, this.knownState(), batch);
  }

  /** One at a time; a request meanwhile sends one more. */
  #requestHeartbeat(): void {
    if (this.#isStopped()) return;
    if (this.#runningHeartbeat !== undefined) {
      this.#runningHeartbeat.isRepeatRequested = true;
      return;
    }
    const done = this.#sendHeartbeat()
      .catch((error: unknown) => this.#reportFault(error))
      .finally(() => {
        const isRepeatRequested = this.#runningHeartbeat?.isRepeatRequested === true;
        this.#runningHeartbeat = undefined;
        if (isRepeatRequested) this.#requestHeartbeat();
      });
    this.#runningHeartbeat = { done, isRepeatRequested: false };
  }

  async #sendHeartbeat(): Promise<void> {
    const { scripts, lease, onHeartbeat } = this.#options;
    if (this.#state.kind === 'syncing') return;
    const sentAt = performance.now();
    const { applied } = this.#position;
    const head = await scripts.heartbeat(this.replica, applied, lease);
    // A sync may have begun meanwhile.
    if ((this.#state as SyncState).kind === 'syncing') return;
    if (!this.#isSameHistory(head, applied)) return this.#syncInBackground();
    this.#position = { ...this.#position, floor: head.floor };
    this.#followerCount = head.followerCount;
    this.#confirm({ sentAt, lastId: head.lastId });
    this.#reloader.reloadIfNeeded(this.#position.applied, head.now);
    onHeartbeat();
    const behindSince = this.#pendingHeartbeat?.sentAt ?? sentAt;
    if (sentAt - behindSince > MAX_BEHIND_MS) this.#syncInBackground();
  }

  /** Same epoch, and not behind what the server had already sent. */
  #isSameHistory(head: LogHead, appliedBefore: string): boolean {
    const { epoch } = this.#position;
    return this.isCurrent() && head.epoch === epoch && compareIds(head.lastId, appliedBefore) >= 0;
  }

  #confirm(heartbeat: Heartbeat): void {
    // The oldest pending heartbeat comes first; under steady traffic the newest would never be confirmed.
    this.#pendingHeartbeat ??= heartbeat;
    if (this.#isBehind(this.#pendingHeartbeat.lastId)) return;
    this.#confirmedAt = Math.max(this.#confirmedAt, this.#pendingHeartbeat.sentAt);
    this.#pendingHeartbeat = undefined;
    if (!this.#isBehind(heartbeat.lastId)) this.#confirmedAt = Math.max(this.#confirmedAt, heartbeat.sentAt);
  }

  #isBehind(lastId: string): boolean {
    return compareIds(this.#position.applied, lastId) < 0;
  }

  /** Reads the log up to the reply of the first heartbeat: later announcements wait for this replica. */
  async #catchUp(): Promise<void> {
    const { scripts, lease } = this.#options;
    const deadline = performance.now() + CATCH_UP_TIMEOUT_MS;
    const hasTimeLeft = (): boolean => performance.now() < deadline;
    // The first heartbeat registers this replica, and announcers wait for it: read the backlog before.
    while (hasTimeLeft() && (await this.#read()) === BATCH);
    while (hasTimeLeft()) {
      const sentAt = performance.now();
      const head = await scripts.heartbeat(this.replica, this.#position.applied, lease);
      this.#followerCount = head.followerCount;
      if (!this.#isSameHistory(head, this.#position.applied)) {
        await this.#sync();
        continue;
      }
      while (this.#isBehind(head.lastId) && hasTimeLeft() && (await this.#read()) > 0);
      // A server with another history has not registered this replica yet.
      if (this.#isBehind(head.lastId) || head.epoch !== this.#position.epoch) continue;
      this.#confirmedAt = sentAt;
      return;
    }
    // Announcers must not wait for a replica that has given up.
    await scripts.leave(this.replica).catch(() => {});
    throw new Fault('store_unavailable', 'Redis: could not catch up with the revocation log in time');
  }

  async #readLoop(): Promise<void> {
    while (!this.#isStopped()) {
      try {
        if ((await this.#read(BLOCK_MS)) > 0) this.#requestHeartbeat();
      } catch (error) {
        if (this.#isStopped()) return;
        this.#reportFault(error);
        await sleep(READ_RETRY_MS);
      }
    }
  }

  /** Applies the next entries of the log; returns how many were read. */
  async #read(blockMs?: number): Promise<number> {
    const { reader, keys } = this.#options;
    if (this.#state.kind === 'syncing') await this.#state.done;
    const { applied } = this.#position;
    const reply = await reader.execute((redis) =>
      blockMs === undefined
        ? redis.xread('COUNT', BATCH, 'STREAMS', keys.log, applied)
        : redis.xread('COUNT', BATCH, 'BLOCK', blockMs, 'STREAMS', keys.log, applied),
    );
    const messages = reply?.[0]?.[1] ?? [];
    // After a sync meanwhile, the reply does not continue the current position.
    if (this.#position.applied !== applied || this.#state.kind === 'syncing') return 0;
    if (!this.#apply(messages)) await this.#sync();
    return messages.length;
  }

  /** False if an entry is missing. */
  #apply(messages: readonly [id: string, fields: string[]][]): boolean {
    for (const [id, fields] of messages) {
      const { previous, entries } = readLogEntry(fields);
      if (previous !== this.#position.applied) return false;
      this.#add(entries);
      const number = getHighestNumber(this.#position.number, entries);
      this.#position = { ...this.#position, applied: id, number };
    }
    return true;
  }
}

const getHighestNumber = (known: number, entries: readonly KeyedEntry[]): number =>
  entries.reduce((highest, [key, { limit }]) => (isGrantKey(key) ? highest : Math.max(highest, limit)), known);

/** Between two loads of the snapshot; and loading takes a twentieth of the time at most. */
const MIN_INTERVAL_MS = 2_000;
const DURATION_FACTOR = 20;
/** Time synchronization adjusts clocks by less than this. */
const CLOCK_STEP_MS = 1_000;

type ReloadState =
  | { readonly kind: 'idle'; readonly notBefore: number }
  | { readonly kind: 'loading'; readonly done: Promise<void> };

/**
 * Log ids are times of the server. A position ahead of its clock means that the clock was set back, or that another program
 * wrote to the log; new entries then get lower ids and are not read. Until the clock has passed the position, and once
 * after that, the snapshot is loaded repeatedly.
 */
function createSnapshotReloader(load: () => Promise<void>, onFault: (fault: Fault) => void) {
  let isNeeded = false;
  let state: ReloadState = { kind: 'idle', notBefore: Number.NEGATIVE_INFINITY };

  const reload = async (): Promise<void> => {
    const startedAt = performance.now();
    let notBefore = startedAt;
    try {
      await load();
      const endedAt = performance.now();
      notBefore = endedAt + Math.max(MIN_INTERVAL_MS, DURATION_FACTOR * (endedAt - startedAt));
    } catch (error) {
      isNeeded = true;
      onFault(toRedisFault(error));
    }
    state = { kind: 'idle', notBefore };
  };
  const observe = (position: string, serverTime: number): void => {
    isNeeded ||= isAhead(position, serverTime);
  };
  return {
    /** Notes whether the position is ahead of the server's clock (milliseconds). */
    observe,
    reloadIfNeeded(position: string, serverTime: number): void {
      observe(position, serverTime);
      if (!isNeeded || state.kind === 'loading' || performance.now() < state.notBefore) return;
      isNeeded = isAhead(position, serverTime);
      if (isAhead(position, serverTime + CLOCK_STEP_MS))
        onFault(
          new Fault(
            'store_corrupt',
            'Redis: the revocation log is ahead of the server clock; the clock was set back, or another program writes to the log',
          ),
        );
      state = { kind: 'loading', done: reload() };
    },
    settle: async (): Promise<void> => (state.kind === 'loading' ? state.done : undefined),
  };
}

const isAhead = (position: string, serverTime: number): boolean => Number(position.split('-', 1)[0]) > serverTime;
