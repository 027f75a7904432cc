import { DISCARD_MS, MAX_DISCARDED_BYTES } from '../../http/discarded-body.ts';
import type { DeadlineEntry, Deadlines } from '../../lib/deadlines.ts';

/** Streams that were reset here: the client may still send frames on them. */
const MAX_RESET_STREAMS = 256;
/** Bytes that were discarded are added to the window again when it falls below this. */
const MIN_WINDOW = 32_768;

interface AnsweredStream {
  /** Bytes of DATA that may arrive. */
  window: number;
  /** Bytes that may be added to the window. */
  credit: number;
  readonly deadline: number;
}

export interface DiscardedStreamsOptions {
  readonly deadlines: Deadlines;
  /** Streams whose response is complete, and whose request is not. */
  readonly maxAnswered: number;
  /** Sends RST_STREAM with NO_ERROR. */
  readonly reset: (id: number) => void;
  readonly updateWindow: (id: number, increment: number) => void;
  readonly onInternalError: (error: unknown) => void;
}

/**
 * Streams that have ended here before the client has ended its request. What it still sends on them is discarded.
 *
 * After a complete response, RFC 9113 §8.1 allows a server to reset the stream at once with NO_ERROR. But curl 7.88 loses the response if the
 * reset arrives while it sends the body, and httpx waits for the window until the connection ends. So they may send the rest, within limits.
 */
export class DiscardedStreams implements DeadlineEntry {
  deadline = Number.POSITIVE_INFINITY;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  readonly #options: DiscardedStreamsOptions;
  /** How many bytes of DATA may still arrive on each. The oldest is first in both. */
  readonly #reset = new Map<number, number>();
  readonly #answered = new Map<number, AnsweredStream>();

  constructor(options: DiscardedStreamsOptions) {
    this.#options = options;
  }

  has(id: number): boolean {
    return this.#reset.has(id) || this.#answered.has(id);
  }

  /** The stream was reset, or never served. `window`: the bytes of DATA that may still arrive on it. */
  addReset(id: number, window: number): void {
    this.#remove(id);
    this.#reset.set(id, window);
    if (this.#reset.size <= MAX_RESET_STREAMS) return;
    for (const oldest of this.#reset.keys()) {
      this.#reset.delete(oldest);
      return;
    }
  }

  /** The response was sent. */
  addAnswered(id: number, window: number): void {
    const { deadlines, maxAnswered } = this.#options;
    const deadline = deadlines.deadlineIn(DISCARD_MS / 1_000);
    if (this.#answered.size === 0) {
      deadlines.add(this);
      this.deadline = deadline;
    }
    const answered = { window, credit: MAX_DISCARDED_BYTES - window, deadline };
    this.#answered.set(id, answered);
    this.#addCredit(id, answered);
    if (this.#answered.size > maxAnswered) this.#stopOldest();
  }

  /** Its response was sent, and its request has not ended. */
  isAnswered(id: number): boolean {
    return this.#answered.has(id);
  }

  /** DATA has arrived. Returns false if that is more than the client was allowed to send. */
  receive(id: number, size: number, isLast: boolean): boolean {
    const answered = this.#answered.get(id);
    const window = (answered?.window ?? this.#reset.get(id) ?? 0) - size;
    if (window < 0) return false;
    if (answered === undefined) this.#reset.set(id, window);
    else if (isLast) this.#remove(id);
    else {
      answered.window = window;
      if (window === 0 && answered.credit === 0) this.#stop(id, 0);
      else this.#addCredit(id, answered);
    }
    return true;
  }

  #addCredit(id: number, answered: AnsweredStream): void {
    const increment = Math.min(answered.credit, 2 * MIN_WINDOW - answered.window);
    if (answered.window >= MIN_WINDOW || increment === 0) return;
    answered.window += increment;
    answered.credit -= increment;
    this.#options.updateWindow(id, increment);
  }

  /** The client has ended or reset the stream. */
  end(id: number): void {
    this.#remove(id);
    this.#reset.delete(id);
  }

  clear(): void {
    this.#answered.clear();
    this.#options.deadlines.remove(this);
  }

  /** The client has not ended the request within the limits: the stream is reset with NO_ERROR (RFC 9113 §8.1). */
  #stop(id: number, window: number): void {
    this.#options.reset(id);
    this.addReset(id, window);
  }

  #stopOldest(): void {
    for (const [id, { window }] of this.#answered) return this.#stop(id, window);
  }

  #remove(id: number): void {
    if (this.#answered.delete(id) && this.#answered.size === 0) this.#options.deadlines.remove(this);
  }

  onTimeout(): void {
    const now = performance.now();
    for (const [id, { window, deadline }] of this.#answered) {
      if (deadline > now) {
        this.deadline = deadline;
        return;
      }
      this.#stop(id, window);
    }
  }

  onInternalError(error: unknown): void {
    this.#options.onInternalError(error);
  }
}
