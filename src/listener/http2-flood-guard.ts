import type { ServerHttp2Session } from 'node:http2';
import type { TLSSocket } from 'node:tls';

interface FloodGuardOptions {
  readonly session: ServerHttp2Session;
  readonly socket: TLSSocket;
  /** Bytes a stream may receive before its window is updated. */
  readonly streamWindow: number;
  /** Called once, when the client has sent too many frames that serve no request. */
  readonly onFlood: () => void;
}

/** Bytes of unproductive frames: at once, and per second after that. */
const BURST = 262_144;
const PER_SECOND = 4_096;
/** The largest credit. Flow control lets a client send window updates long after the data. */
const MAX_CREDIT = 4_194_304;
/** For frame headers, priorities, and compressed fields that are longer than the text. */
const CREDIT_PER_REQUEST = 1_024;
/** For a frame header and padding (RFC 9113 §6.1). */
const CREDIT_PER_CHUNK = 300;
/**
 * Credit per second, after `MAX_CREDIT` at once, for bodies that were not read. How much of them was sent is unknown, so
 * rejected requests must not earn a window each without limit.
 */
const TRUNCATED_CREDIT_PER_SECOND = 65_536;
const CHECK_INTERVAL_MS = 1_000;

/**
 * Limits what clients can send without being served: WINDOW_UPDATE, PRIORITY, empty or padded DATA and unknown frames, which
 * neither nghttp2 nor Node limit. Node does not expose frames, but counts the bytes it reads. Requests, their bodies and
 * window updates for responses (at most as many bytes as are sent) account for most of them; the rest must be small
 * (docs/decisions/0012-http2-listener.md).
 */
export class FloodGuards {
  readonly #guards = new Set<FloodGuard>();
  #timer: NodeJS.Timeout | undefined;

  add({ session, socket, streamWindow, onFlood }: FloodGuardOptions): FloodGuard {
    const guard = new FloodGuard(socket, streamWindow, () => {
      this.#guards.delete(guard);
      onFlood();
    });
    this.#guards.add(guard);
    session.once('close', () => this.#guards.delete(guard));
    socket.once('close', () => this.#guards.delete(guard));
    this.#timer ??= setInterval(() => this.#checkAll(), CHECK_INTERVAL_MS).unref();
    return guard;
  }

  #checkAll(): void {
    const now = performance.now();
    for (const guard of this.#guards) guard.check(now);
    if (this.#guards.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

export class FloodGuard {
  readonly #socket: TLSSocket;
  readonly #streamWindow: number;
  readonly #onFlood: () => void;
  /** Bytes until the last check. */
  #bytesRead = 0;
  #bytesWritten = 0;
  #checkedAt = performance.now();
  /** Earned since the last check. */
  #credit = 0;
  /** Can still be earned by truncated bodies. */
  #truncatedCredit = MAX_CREDIT;
  /** Bytes beyond the credit; negative: unused credit. */
  #excess = 0;

  constructor(socket: TLSSocket, streamWindow: number, onFlood: () => void) {
    this.#socket = socket;
    this.#streamWindow = streamWindow;
    this.#onFlood = onFlood;
  }

  countRequest(headSize: number): void {
    this.#credit += headSize + CREDIT_PER_REQUEST;
  }

  countBody(size: number): void {
    this.#credit += size + CREDIT_PER_CHUNK;
  }

  /** The stream was ended before the request body was complete: the client may have sent up to a window of it. */
  countTruncatedBody(): void {
    const bytes = Math.min(this.#streamWindow, this.#truncatedCredit);
    this.#truncatedCredit -= bytes;
    this.#credit += bytes;
  }

  check(now: number): void {
    const { bytesRead, bytesWritten } = this.#socket;
    if (bytesRead === this.#bytesRead) return;
    const received = bytesRead - this.#bytesRead;
    const useful = this.#credit + (bytesWritten - this.#bytesWritten);
    const seconds = (now - this.#checkedAt) / 1_000;
    this.#excess = Math.max(this.#excess + received - useful - seconds * PER_SECOND, -MAX_CREDIT);
    this.#truncatedCredit = Math.min(
      this.#truncatedCredit + seconds * TRUNCATED_CREDIT_PER_SECOND,
      MAX_CREDIT,
    );
    this.#checkedAt = now;
    this.#bytesRead = bytesRead;
    this.#bytesWritten = bytesWritten;
    this.#credit = 0;
    if (this.#excess > BURST) this.#onFlood();
  }
}
