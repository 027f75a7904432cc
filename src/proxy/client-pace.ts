import { limitName } from '../http/rate-limit.ts';
import { EXPECTS_BODY } from './request-head.ts';

/** How slowly a client may send a body. Times in seconds. */
export interface PaceTerms {
  /** The longest silence. */
  readonly idle: number;
  /** For a whole request body. */
  readonly body: number;
  /** Bytes per second. */
  readonly minRate: number;
}

/**
 * The time by which more of a request body must arrive. A client begins with `idle` seconds; each byte adds what it may
 * take at `minRate`, up to `idle` seconds from now. A client may pause, and one that is always slower than `minRate` runs
 * out of time, however it spreads its bytes. Times by `performance.now()`.
 */
export class BodyPace {
  deadline = 0;
  #terms: PaceTerms | undefined;
  #end = 0;

  start(terms: PaceTerms): void {
    const now = performance.now();
    this.#terms = terms;
    this.#end = now + terms.body * 1_000;
    this.deadline = Math.min(now + terms.idle * 1_000, this.#end);
  }

  moved(bytes: number): void {
    if (this.#terms === undefined) return;
    const { idle, minRate } = this.#terms;
    const earned = minRate > 0 ? (bytes / minRate) * 1_000 : Number.POSITIVE_INFINITY;
    this.deadline = Math.min(performance.now() + idle * 1_000, this.deadline + earned, this.#end);
  }

  /** The upstream did not take more until now; that time is not the client's. */
  resumed(): void {
    if (this.#terms === undefined) return;
    this.deadline = Math.min(performance.now() + this.#terms.idle * 1_000, this.#end);
  }
}

/** Milliseconds after which a body of unknown length is forwarded as it arrives: it may be a stream that never ends. */
export const STREAM_WAIT = 200;

/**
 * A response of which this much or less is unread is read from the upstream all the same, so that a slow client does not
 * hold the connection.
 */
export const READ_AHEAD = 131_072;

/** Memory of this process that slow clients may use. */
const MAX_READ_AHEAD = 512;
const MAX_BODY_MEMORY = 64 * 1_048_576;
/** One client may hold this many times as much as is left free, as with connections: three quarters alone. */
const FREE_FACTOR = 3;

/** Something limited that clients share. A client is an identity or a network. */
class SharedLimit {
  readonly #limit: number;
  #used = 0;
  /** No entry: nothing. */
  readonly #usedBy = new Map<string, number>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  hasFor(client: string): boolean {
    return (this.#usedBy.get(client) ?? 0) < FREE_FACTOR * (this.#limit - this.#used);
  }

  /** Negative: gives back. */
  use(client: string, amount: number): void {
    this.#used += amount;
    const used = (this.#usedBy.get(client) ?? 0) + amount;
    if (used === 0) this.#usedBy.delete(client);
    else this.#usedBy.set(client, used);
  }
}

const readingAhead = new SharedLimit(MAX_READ_AHEAD);
const bodyMemory = new SharedLimit(MAX_BODY_MEMORY);

/** Permission to buffer one response beyond what its connection takes. */
export class ReadAhead {
  #heldBy: string | undefined;
  #unread = 0;

  /** May more be written to this client, which has `buffered` bytes to read? */
  allows(buffered: number, client: string): boolean {
    this.#unread = buffered;
    if (buffered >= READ_AHEAD) return false;
    if (this.#heldBy !== undefined) return true;
    if (!readingAhead.hasFor(client)) return false;
    readingAhead.use(client, 1);
    this.#heldBy = client;
    return true;
  }

  /** Has the client read since this was asked last? Bytes leave in parts, of up to 64 KiB. */
  hasRead(buffered: number): boolean {
    const hasRead = buffered < this.#unread;
    this.#unread = buffered;
    return hasRead;
  }

  end(): void {
    if (this.#heldBy === undefined) return;
    readingAhead.use(this.#heldBy, -1);
    this.#heldBy = undefined;
  }
}

/** The beginning of a request body, in memory until there is a connection for it. */
export class BodyBuffer {
  size = 0;
  readonly #limit: number;
  readonly #client: string;
  #bytes = Buffer.alloc(0);
  #counted = 0;

  /**
   * `limit`: a body is forwarded once this much of it has arrived; with methods that expect none, once it is complete.
   * `client`: the identity or network whose body it is.
   */
  constructor(method: string, limit: number, client: string) {
    this.#limit = EXPECTS_BODY.has(method) ? limit : Number.POSITIVE_INFINITY;
    this.#client = client;
  }

  /** `enough`: may be forwarded. `full`: too much is held, and this body must be complete before it is forwarded. */
  add(part: Buffer): 'more' | 'enough' | 'full' {
    const size = this.size + part.length;
    // Copied: a small part may keep a much larger buffer alive.
    if (size > this.#bytes.length) this.#grow(size);
    part.copy(this.#bytes, this.size);
    this.size = size;
    if (size >= this.#limit) return 'enough';
    if (bodyMemory.hasFor(this.#client)) return 'more';
    return this.#limit === Number.POSITIVE_INFINITY ? 'full' : 'enough';
  }

  /** By a part of what there is: a fixed step would copy a large body again and again. */
  #grow(size: number): void {
    const { length } = this.#bytes;
    const larger = Buffer.allocUnsafeSlow(
      Math.max(size, Math.min(2 * length, length + (length >> 2) + 65_536), 1_024),
    );
    this.#bytes.copy(larger, 0, 0, this.size);
    this.#bytes = larger;
    bodyMemory.use(this.#client, larger.length - this.#counted);
    this.#counted = larger.length;
  }

  /** What was collected. It is counted until `free`: until then it waits for a connection, or in one. */
  take(): Buffer {
    const bytes = this.#bytes.subarray(0, this.size);
    this.#bytes = Buffer.alloc(0);
    this.size = 0;
    return bytes;
  }

  free(): void {
    this.#bytes = Buffer.alloc(0);
    this.size = 0;
    bodyMemory.use(this.#client, -this.#counted);
    this.#counted = 0;
  }
}

/** Undefined: what arrives is forwarded at once. */
export const bufferFor = (method: string, limit: number, client: string): BodyBuffer | undefined =>
  limit === 0 && EXPECTS_BODY.has(method) ? undefined : new BodyBuffer(method, limit, client);

/** By which requests without a token share connections. No identity begins like this. */
export const networkKey = (clientAddress: string): string => `\0${limitName(clientAddress)}`;
