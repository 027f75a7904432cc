import { smallest } from '../../lib/extremes.ts';
import type { Target, UpstreamSettings } from './targets.ts';

/** A request that holds a connection slot of a target, or waits for one. */
export interface SlotHolder {
  /** Everything that arrived of the body was forwarded: the client is slow. */
  readonly isWaitingForClient: boolean;
  /** Bytes of the response that the client has not read. */
  readonly unreadBytes: number;
  /** The slot is granted. */
  onSlotGranted(): void;
  /** Other requests need the slot, and the client of this one is slow: end it. */
  onEvicted(): void;
}

type SlotLimits = Pick<UpstreamSettings, 'connections' | 'maxPending' | 'eventStreams'>;

/** The requests of one client: of one identity, or of one network where there is no token. */
interface Share {
  readonly key: string;
  held: number;
  uploads: number;
  eventStreams: number;
  /** In order of arrival. */
  readonly waiting: Slot[];
  readonly waitingUploads: Slot[];
}

/**
 * One client may hold this many times as many slots as are free. This keeps slots free for other clients without a fixed
 * limit: a single client gets 112 of 128, and all of them where there are fewer than 8.
 */
export const FREE_FACTOR = 7;
/** A client that has taken or sent too little for this long is slow. */
const SLOW_MS = 1_000;
/** Bytes per second. A client that sends or reads less may lose its slot to another client. */
const SLOW_RATE = 16_384;
/** Shares without requests that are kept for the next request of their client. */
const IDLE_SHARES = 1_000;

/**
 * The connection slots of one target.
 *
 * Slow clients must not hold all slots. Requests whose body is still arriving ("uploads") hold at most half of them, and
 * while other requests wait, clients that do not read their response hold at most a quarter. Free slots go to the waiting
 * client that holds the fewest. Event streams may be silent for an hour: they are counted apart and hold no slot
 * (docs/decisions/0045-event-streams.md).
 */
export class Slots {
  readonly target: Target;
  readonly #connections: number;
  readonly #maxPending: number;
  readonly #maxUploads: number;
  readonly #maxStalled: number;
  readonly #maxEventStreams: number;
  readonly #shares = new Map<string, Share>();
  /** Shares with requests that wait, the one that was served last at the end. */
  readonly #queue = new Set<Share>();
  /** Slots that are held, without order. A Set would keep them in memory after they are left (`OpenStreams` has the reason). */
  readonly #slots: Slot[] = [];
  /** How many of them are uploads, and how many have a client that does not read. */
  #uploads = 0;
  #stalled = 0;
  /** Slots in use: those that are held, and those that are left but not released. */
  #held = 0;
  #eventStreams = 0;
  #waiting = 0;
  #waitingUploads = 0;
  #sequence = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(target: Target, { connections, maxPending, eventStreams }: SlotLimits) {
    this.target = target;
    this.#connections = connections;
    this.#maxPending = maxPending;
    this.#maxUploads = Math.ceil(connections / 2);
    this.#maxStalled = Math.floor(connections / 4);
    this.#maxEventStreams = eventStreams;
  }

  /** Clients with requests, and some without. */
  get knownClients(): number {
    return this.#shares.size;
  }

  /** Grants a slot now or later. False: neither, because too many requests wait. */
  enter(slot: Slot, key: string, isUpload: boolean): boolean {
    const share = this.#getShare(key);
    const ahead = isUpload ? share.waitingUploads : share.waiting;
    const isNext = ahead.length === 0 && this.#mayHold(share, isUpload);
    if (!isNext && !this.#mayWait(share, isUpload)) {
      this.#forgetIdle(share);
      return false;
    }
    this.target.pending += 1;
    slot.assign(share, isUpload, ++this.#sequence);
    if (isNext) this.#grant(slot);
    else {
      ahead.push(slot);
      this.#waiting += 1;
      if (isUpload) this.#waitingUploads += 1;
      this.#queue.add(share);
      this.#evict();
    }
    return true;
  }

  /** `releasesLater`: the connection is free only after `release` was called. */
  leave(slot: Slot, releasesLater: boolean): void {
    const { share, isUpload } = slot;
    if (share === undefined) return;
    slot.share = undefined;
    if (slot.isEventStream) this.#leaveEventStream(share, releasesLater);
    else if (slot.isHeld) {
      this.#giveUp(slot, share);
      if (!releasesLater) this.release();
    } else {
      const list = isUpload ? share.waitingUploads : share.waiting;
      list.splice(list.indexOf(slot), 1);
      this.#removeFromQueue(share, isUpload);
      this.target.pending -= 1;
    }
    this.#forgetIdle(share);
  }

  #leaveEventStream(share: Share, releasesLater: boolean): void {
    share.eventStreams -= 1;
    this.#eventStreams -= 1;
    this.target.streams -= 1;
    // Its connection is counted again until `release`.
    if (releasesLater) this.#held += 1;
    else this.target.pending -= 1;
  }

  release(): void {
    this.target.pending -= 1;
    this.#held -= 1;
    this.#scheduleServe();
  }

  /** The response is an event stream: its slot is free for others. False: there are too many event streams. */
  markEventStream(slot: Slot): boolean {
    const { share } = slot;
    if (share === undefined || !slot.isHeld || slot.isEventStream || !this.#mayHoldEventStream(share)) return false;
    this.#giveUp(slot, share);
    slot.isEventStream = true;
    share.eventStreams += 1;
    this.#eventStreams += 1;
    this.target.streams += 1;
    this.#held -= 1;
    this.#scheduleServe();
    return true;
  }

  /** The whole body has arrived. */
  markUploaded(slot: Slot): void {
    const { share } = slot;
    if (share === undefined || !slot.isUpload) return;
    this.#endUpload(slot, share);
    if (this.#waitingUploads > 0) this.#scheduleServe();
  }

  markStalled(slot: Slot): void {
    if (!slot.isStalled) this.#stalled += 1;
    slot.isStalled = true;
    if (this.#waiting > 0) this.#evict();
  }

  clearStalled(slot: Slot): void {
    if (slot.isStalled) this.#stalled -= 1;
    slot.isStalled = false;
  }

  #getShare(key: string): Share {
    let share = this.#shares.get(key);
    if (share === undefined) {
      share = { key, held: 0, uploads: 0, eventStreams: 0, waiting: [], waitingUploads: [] };
      this.#shares.set(key, share);
    }
    return share;
  }

  #forgetIdle(share: Share): void {
    if (this.#shares.size > IDLE_SHARES && isIdle(share)) this.#shares.delete(share.key);
  }

  #mayHold(share: Share, isUpload: boolean): boolean {
    if (share.held >= FREE_FACTOR * (this.#connections - this.#held)) return false;
    return !isUpload || share.uploads < FREE_FACTOR * (this.#maxUploads - this.#uploads);
  }

  #mayHoldEventStream({ eventStreams }: Share): boolean {
    return eventStreams < FREE_FACTOR * (this.#maxEventStreams - this.#eventStreams);
  }

  /** The same rule for the queue; uploads may use half of it. */
  #mayWait({ waiting, waitingUploads }: Share, isUpload: boolean): boolean {
    const queued = waiting.length + waitingUploads.length;
    if (queued >= FREE_FACTOR * (this.#maxPending - this.#waiting)) return false;
    return !isUpload || this.#waitingUploads < Math.ceil(this.#maxPending / 2);
  }

  #grant(slot: Slot): void {
    const { share } = slot;
    if (share === undefined) return;
    this.#held += 1;
    share.held += 1;
    if (slot.isUpload) {
      share.uploads += 1;
      this.#uploads += 1;
    }
    slot.index = this.#slots.push(slot) - 1;
    slot.grant();
  }

  /** The opposite of `#grant`, except for the count of slots in use. */
  #giveUp(slot: Slot, share: Share): void {
    share.held -= 1;
    if (slot.isUpload) this.#endUpload(slot, share);
    this.clearStalled(slot);
    const last = this.#slots.pop() as Slot;
    if (last === slot) return;
    this.#slots[slot.index] = last;
    last.index = slot.index;
  }

  #endUpload(slot: Slot, share: Share): void {
    slot.isUpload = false;
    share.uploads -= 1;
    this.#uploads -= 1;
  }

  #removeFromQueue(share: Share, isUpload: boolean): void {
    this.#waiting -= 1;
    if (isUpload) this.#waitingUploads -= 1;
    if (share.waiting.length + share.waitingUploads.length === 0) this.#queue.delete(share);
  }

  /** In a microtask: many requests that fail at once would recurse. */
  #scheduleServe(): void {
    if (this.#waiting > 0) queueMicrotask(() => this.#serve());
  }

  #serve(): void {
    for (let share = this.#nextShare(); share !== undefined; share = this.#nextShare()) {
      const isUpload = this.#isUploadNext(share);
      const slot = (isUpload ? share.waitingUploads : share.waiting).shift() as Slot;
      this.#moveToEnd(share);
      this.#removeFromQueue(share, isUpload);
      this.#grant(slot);
    }
    if (this.#waiting > 0) this.#evict();
  }

  #moveToEnd(share: Share): void {
    if (this.#queue.size === 1) return;
    this.#queue.delete(share);
    this.#queue.add(share);
  }

  /** Finds the waiting client that holds the fewest slots and may have another one. */
  #nextShare(): Share | undefined {
    if (this.#held >= this.#connections) return undefined;
    let next: Share | undefined;
    for (const share of this.#queue) {
      if (next !== undefined && share.held >= next.held) continue;
      const { waiting, waitingUploads } = share;
      const mayHold =
        (waiting.length > 0 && this.#mayHold(share, false)) ||
        (waitingUploads.length > 0 && this.#mayHold(share, true));
      if (mayHold) next = share;
    }
    return next;
  }

  #isUploadNext(share: Share): boolean {
    const [request, upload] = [share.waiting[0], share.waitingUploads[0]];
    if (upload === undefined || !this.#mayHold(share, true)) return false;
    return request === undefined || upload.sequence < request.sequence;
  }

  /** Ends requests of slow clients while others wait for their slots, beginning with the client that holds the most. */
  #evict(): void {
    const now = performance.now();
    let recheck = false;
    if (this.#waiting > this.#waitingUploads)
      while (this.#stalled > this.#maxStalled) {
        const victim = findLargest(this.#slots, 'held', (slot) => slot.isSlowReader(now));
        recheck ||= victim === undefined;
        if (victim === undefined) break;
        victim.evict();
      }
    if (this.#waitingUploads > 0 && this.#uploads >= this.#maxUploads) {
      const victim = findLargest(this.#slots, 'uploads', (slot) => slot.isSlowUpload(now));
      const fewest = smallest([...this.#queue].filter(hasUploads).map(({ uploads }) => uploads));
      if (victim?.share !== undefined && victim.share.uploads > fewest + 1) victim.evict();
      else recheck = true;
    }
    if (!recheck || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (this.#waiting > 0) this.#evict();
    }, SLOW_MS / 2).unref();
  }
}

const isIdle = ({ held, eventStreams, waiting, waitingUploads }: Share): boolean =>
  held === 0 && eventStreams === 0 && waiting.length === 0 && waitingUploads.length === 0;

const hasUploads = ({ waitingUploads }: Share): boolean => waitingUploads.length > 0;

/** A matching slot of the client with the most slots or uploads. */
function findLargest(
  slots: readonly Slot[],
  counter: 'held' | 'uploads',
  isCandidate: (slot: Slot) => boolean,
): Slot | undefined {
  let largest: Slot | undefined;
  for (const slot of slots)
    if (isCandidate(slot) && (slot.share?.[counter] ?? 0) > (largest?.share?.[counter] ?? 0)) largest = slot;
  return largest;
}

/** The slot of one request, used again for the next request of its holder. */
export class Slot {
  /** For `Slots` only, like all members without a comment. */
  share: Share | undefined = undefined;
  isUpload = false;
  isHeld = false;
  isEventStream = false;
  isStalled = false;
  sequence = 0;
  index = 0;
  readonly #holder: SlotHolder;
  #slots: Slots | undefined = undefined;
  #since = 0;
  #bytesSent = 0;
  #lastUnreadBytes = 0;

  constructor(holder: SlotHolder) {
    this.#holder = holder;
  }

  /** `isUpload`: the body has not arrived completely. False: too many requests wait. */
  enter(slots: Slots, key: string, isUpload: boolean): boolean {
    this.#slots = slots;
    return slots.enter(this, key, isUpload);
  }

  /** Once for each `enter`; further calls have no effect. */
  leave(releasesLater = false): void {
    this.#slots?.leave(this, releasesLater);
  }

  /** This much of the body has been forwarded. */
  addBytes(bytes: number): void {
    this.#bytesSent += bytes;
  }

  markUploaded(): void {
    if (this.isUpload && this.isHeld) this.#slots?.markUploaded(this);
  }

  /** False: it keeps its slot, because there are too many event streams. */
  markEventStream(): boolean {
    return this.#slots?.markEventStream(this) === true;
  }

  /** The client does not read the response. */
  markStalled(): void {
    // An event stream holds no slot that others wait for.
    if (this.share === undefined || !this.isHeld || this.isEventStream) return;
    this.#since = performance.now();
    this.#lastUnreadBytes = this.#holder.unreadBytes;
    this.#slots?.markStalled(this);
  }

  /** The client reads the response again. */
  clearStalled(): void {
    if (this.isStalled) this.#slots?.clearStalled(this);
  }

  assign(share: Share, isUpload: boolean, sequence: number): void {
    this.share = share;
    this.isUpload = isUpload;
    this.isHeld = false;
    this.isEventStream = false;
    this.sequence = sequence;
  }

  grant(): void {
    this.isHeld = true;
    if (this.isUpload) {
      this.#since = performance.now();
      this.#bytesSent = 0;
    }
    this.#holder.onSlotGranted();
  }

  isSlowReader(now: number): boolean {
    const elapsed = now - this.#since;
    if (!this.isStalled || elapsed < SLOW_MS) return false;
    const { unreadBytes } = this.#holder;
    if (this.#lastUnreadBytes - unreadBytes < (SLOW_RATE * elapsed) / 1_000) return true;
    this.#lastUnreadBytes = unreadBytes;
    this.#since = now;
    return false;
  }

  isSlowUpload(now: number): boolean {
    if (!this.isUpload || !this.#holder.isWaitingForClient) return false;
    const elapsed = now - this.#since;
    return elapsed >= SLOW_MS && this.#bytesSent < (SLOW_RATE * elapsed) / 1_000;
  }

  evict(): void {
    this.#holder.onEvicted();
    // Otherwise a holder that does not leave would be chosen again.
    this.leave();
  }
}
