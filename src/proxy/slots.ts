import type { Target } from './targets.ts';

/** A request that holds a connection slot of a target, or waits for one. */
export interface SlotHolder {
  /** All that arrived of the body was forwarded: if nothing moves, it is the client. */
  readonly waitsForClient: boolean;
  /** Bytes of the response that the client has not read. */
  readonly unread: number;
  /** The slot is granted. */
  onSlot(): void;
  /** The slot is needed by others and the client of this request is slow: end the request. */
  onEvicted(): void;
}

export interface SlotTerms {
  readonly connections: number;
  readonly maxPending: number;
}

/** The requests of one client: of one identity, or of one network where there is no token. */
interface Share {
  readonly key: string;
  held: number;
  uploads: number;
  /** In order of arrival. */
  readonly waiting: Slot[];
  readonly waitingUploads: Slot[];
}

/**
 * One client may hold this many times as many slots as are left free. It keeps slots free for other clients before they
 * come, without a fixed limit: 112 of 128 for a single client, all of them where there are fewer than 8.
 */
const FREE_FACTOR = 7;
/** A client that has taken or sent too little for this long is slow. */
const SLOW_MS = 1_000;
/** Bytes per second. A client that sends or reads less may lose its slot to another client. */
const SLOW_RATE = 16_384;
/** Shares without requests that are kept, so that a client's next request needs no new one. */
const IDLE_SHARES = 1_000;

/**
 * The connection slots of one target, for requests of both paths.
 *
 * A slot whose use depends on the client is worth less than one that the upstream works on. Requests whose body is still
 * arriving ("uploads") hold at most half of the slots, and while other requests wait, at most a quarter is held for clients
 * that do not read their response. Free slots go to the waiting client that holds the fewest.
 */
export class Slots {
  readonly target: Target;
  readonly #connections: number;
  readonly #maxPending: number;
  readonly #maxUploads: number;
  readonly #maxStalled: number;
  readonly #shares = new Map<string, Share>();
  /** Shares with requests that wait, the one that was served last at the end. */
  readonly #queue = new Set<Share>();
  readonly #stalled = new Set<Slot>();
  readonly #uploading = new Set<Slot>();
  #held = 0;
  #waiting = 0;
  #waitingUploads = 0;
  #sequence = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(target: Target, { connections, maxPending }: SlotTerms) {
    this.target = target;
    this.#connections = connections;
    this.#maxPending = maxPending;
    this.#maxUploads = Math.ceil(connections / 2);
    this.#maxStalled = Math.floor(connections / 4);
  }

  /** Clients that are remembered: those with requests, and some of those that had any. */
  get clients(): number {
    return this.#shares.size;
  }

  /** Grants a slot now or later. False: neither, because too many requests wait. */
  enter(slot: Slot, key: string, isUpload: boolean): boolean {
    const share = this.#shareOf(key);
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

  /** `later`: the connection is free only after `release` was called. */
  leave(slot: Slot, later: boolean): void {
    const { share, isUpload } = slot;
    if (share === undefined) return;
    slot.share = undefined;
    if (slot.isHeld) {
      share.held -= 1;
      if (isUpload) this.#endUpload(slot, share);
      if (this.#stalled.size > 0) this.#stalled.delete(slot);
      if (!later) this.release();
    } else {
      const list = isUpload ? share.waitingUploads : share.waiting;
      list.splice(list.indexOf(slot), 1);
      this.#dequeued(share, isUpload);
      this.target.pending -= 1;
    }
    this.#forgetIdle(share);
  }

  release(): void {
    this.target.pending -= 1;
    this.#held -= 1;
    this.#serveSoon();
  }

  /** The whole body has arrived. */
  uploaded(slot: Slot): void {
    const { share } = slot;
    if (share === undefined || !slot.isUpload) return;
    slot.isUpload = false;
    this.#endUpload(slot, share);
    if (this.#waitingUploads > 0) this.#serveSoon();
  }

  stalled(slot: Slot): void {
    this.#stalled.add(slot);
    if (this.#waiting > 0) this.#evict();
  }

  flowing(slot: Slot): void {
    this.#stalled.delete(slot);
  }

  #shareOf(key: string): Share {
    let share = this.#shares.get(key);
    if (share === undefined) {
      share = { key, held: 0, uploads: 0, waiting: [], waitingUploads: [] };
      this.#shares.set(key, share);
    }
    return share;
  }

  #forgetIdle(share: Share): void {
    if (this.#shares.size > IDLE_SHARES && isIdle(share)) this.#shares.delete(share.key);
  }

  #mayHold(share: Share, isUpload: boolean): boolean {
    if (share.held >= FREE_FACTOR * (this.#connections - this.#held)) return false;
    return !isUpload || share.uploads < FREE_FACTOR * (this.#maxUploads - this.#uploading.size);
  }

  /** The same rule for the places of those that wait; uploads have half of them. */
  #mayWait({ waiting, waitingUploads }: Share, isUpload: boolean): boolean {
    const own = waiting.length + waitingUploads.length;
    if (own >= FREE_FACTOR * (this.#maxPending - this.#waiting)) return false;
    return !isUpload || this.#waitingUploads < Math.ceil(this.#maxPending / 2);
  }

  #grant(slot: Slot): void {
    const { share } = slot;
    if (share === undefined) return;
    this.#held += 1;
    share.held += 1;
    if (slot.isUpload) {
      share.uploads += 1;
      this.#uploading.add(slot);
    }
    slot.granted();
  }

  #endUpload(slot: Slot, share: Share): void {
    share.uploads -= 1;
    this.#uploading.delete(slot);
  }

  #dequeued(share: Share, isUpload: boolean): void {
    this.#waiting -= 1;
    if (isUpload) this.#waitingUploads -= 1;
    if (share.waiting.length + share.waitingUploads.length === 0) this.#queue.delete(share);
  }

  /** Later, so that many requests that fail at once do not nest. */
  #serveSoon(): void {
    if (this.#waiting > 0) queueMicrotask(() => this.#serve());
  }

  #serve(): void {
    for (let share = this.#nextShare(); share !== undefined; share = this.#nextShare()) {
      const isUpload = this.#isUploadNext(share);
      const slot = (isUpload ? share.waitingUploads : share.waiting).shift() as Slot;
      this.#queue.delete(share);
      this.#queue.add(share);
      this.#dequeued(share, isUpload);
      this.#grant(slot);
    }
    if (this.#waiting > 0) this.#evict();
  }

  /** Of those that may have a slot, the one that holds the fewest. */
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

  /** Ends requests of slow clients where others wait for their slots, those of the client with the most slots first. */
  #evict(): void {
    const now = performance.now();
    let isSoon = false;
    if (this.#waiting > this.#waitingUploads)
      while (this.#stalled.size > this.#maxStalled) {
        const victim = mostOf(this.#stalled, 'held', (slot) => slot.isSlowReader(now));
        isSoon ||= victim === undefined;
        if (victim === undefined) break;
        victim.evict();
      }
    if (this.#waitingUploads > 0 && this.#uploading.size >= this.#maxUploads) {
      const victim = mostOf(this.#uploading, 'uploads', (slot) => slot.isSlowUpload(now));
      const fewest = Math.min(...[...this.#queue].filter(hasUploads).map(({ uploads }) => uploads));
      if (victim?.share !== undefined && victim.share.uploads > fewest + 1) victim.evict();
      else isSoon = true;
    }
    if (!isSoon || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (this.#waiting > 0) this.#evict();
    }, SLOW_MS / 2).unref();
  }
}

const isIdle = ({ held, waiting, waitingUploads }: Share): boolean =>
  held === 0 && waiting.length === 0 && waitingUploads.length === 0;

const hasUploads = ({ waitingUploads }: Share): boolean => waitingUploads.length > 0;

/** The first slot that fits, of the share with the most slots or uploads. */
function mostOf(
  slots: Iterable<Slot>,
  what: 'held' | 'uploads',
  fits: (slot: Slot) => boolean,
): Slot | undefined {
  let most: Slot | undefined;
  for (const slot of slots)
    if (fits(slot) && (slot.share?.[what] ?? 0) > (most?.share?.[what] ?? 0)) most = slot;
  return most;
}

/** The slot of one request; it is used again for the next request of its holder. */
export class Slot {
  /** Only for `Slots`, as everything else that is not documented here. */
  share: Share | undefined = undefined;
  isUpload = false;
  isHeld = false;
  sequence = 0;
  readonly #holder: SlotHolder;
  #slots: Slots | undefined = undefined;
  #since = 0;
  #moved = 0;
  #isStalled = false;
  #unread = 0;

  constructor(holder: SlotHolder) {
    this.#holder = holder;
  }

  /** `isUpload`: the body has not arrived completely. False: too many requests wait. */
  enter(slots: Slots, key: string, isUpload: boolean): boolean {
    this.#slots = slots;
    return slots.enter(this, key, isUpload);
  }

  /** Once for each `enter`; further calls have no effect. */
  leave(later = false): void {
    this.#slots?.leave(this, later);
  }

  /** This much of the body has been forwarded. */
  moved(bytes: number): void {
    this.#moved += bytes;
  }

  uploaded(): void {
    if (this.isUpload) this.#slots?.uploaded(this);
  }

  /** The client does not read the response. */
  stalled(): void {
    if (this.share === undefined) return;
    this.#isStalled = true;
    this.#since = performance.now();
    this.#unread = this.#holder.unread;
    this.#slots?.stalled(this);
  }

  /** The client reads on. */
  flowing(): void {
    if (!this.#isStalled) return;
    this.#isStalled = false;
    this.#slots?.flowing(this);
  }

  assign(share: Share, isUpload: boolean, sequence: number): void {
    this.share = share;
    this.isUpload = isUpload;
    this.isHeld = false;
    this.sequence = sequence;
    this.#isStalled = false;
  }

  granted(): void {
    this.isHeld = true;
    if (this.isUpload) {
      this.#since = performance.now();
      this.#moved = 0;
    }
    this.#holder.onSlot();
  }

  isSlowReader(now: number): boolean {
    const elapsed = now - this.#since;
    if (!this.#isStalled || elapsed < SLOW_MS) return false;
    const { unread } = this.#holder;
    if (this.#unread - unread < (SLOW_RATE * elapsed) / 1_000) return true;
    this.#unread = unread;
    this.#since = now;
    return false;
  }

  isSlowUpload(now: number): boolean {
    if (!this.#holder.waitsForClient) return false;
    const elapsed = now - this.#since;
    return elapsed >= SLOW_MS && this.#moved < (SLOW_RATE * elapsed) / 1_000;
  }

  evict(): void {
    this.#holder.onEvicted();
    // A holder that does not leave would be chosen again and again.
    this.leave();
  }
}
