import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { METHODS_WITH_BODY } from './policy/request-head.ts';

/** Milliseconds after which a body of unknown length is forwarded as it arrives: it may be an endless stream. */
export const STREAM_BUFFER_MS = 200;

/** Up to this many unread bytes, a response is still read from the upstream, so that a slow client does not hold the connection. */
export const READ_AHEAD_BYTES = 131_072;

/** Memory of this process that slow clients may use. */
const MAX_READ_AHEAD_RESPONSES = 512;
const MAX_BODY_MEMORY = 64 * 1_048_576;
/** One client may hold this many times as much as is left free, as with connections: three quarters if it is alone. */
const FREE_FACTOR = 3;

/** A limit that clients share. A client is an identity or a network. */
class SharedLimit {
  readonly #limit: number;
  #used = 0;
  /** Without an entry where it is zero. */
  readonly #usedBy = new Map<string, number>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  isAvailableTo(client: string): boolean {
    return (this.#usedBy.get(client) ?? 0) < FREE_FACTOR * (this.#limit - this.#used);
  }

  /** A negative amount is returned. */
  adjust(client: string, amount: number): void {
    this.#used += amount;
    const used = (this.#usedBy.get(client) ?? 0) + amount;
    if (used === 0) this.#usedBy.delete(client);
    else this.#usedBy.set(client, used);
  }
}

const readAheadLimit = new SharedLimit(MAX_READ_AHEAD_RESPONSES);
const bodyMemoryLimit = new SharedLimit(MAX_BODY_MEMORY);

/** Permission to buffer one response beyond what its connection takes. */
export class ReadAheadPermit {
  #holder: string | undefined;
  #lastUnread = 0;

  /** May more be written to this client, which has `buffered` bytes to read? */
  tryAcquire(buffered: number, client: string): boolean {
    this.#lastUnread = buffered;
    if (buffered >= READ_AHEAD_BYTES) return false;
    if (this.#holder !== undefined) return true;
    if (!readAheadLimit.isAvailableTo(client)) return false;
    readAheadLimit.adjust(client, 1);
    this.#holder = client;
    return true;
  }

  /** Has the client read anything since the last call? */
  hasRead(buffered: number): boolean {
    const hasRead = buffered < this.#lastUnread;
    this.#lastUnread = buffered;
    return hasRead;
  }

  release(): void {
    if (this.#holder === undefined) return;
    readAheadLimit.adjust(this.#holder, -1);
    this.#holder = undefined;
  }
}

/** The beginning of a request body, in memory until there is a connection for it. */
export class BodyBuffer {
  size = 0;
  readonly #limit: number;
  readonly #client: string;
  #bytes = Buffer.alloc(0);
  #accountedBytes = 0;

  /**
   * `limit`: a body is forwarded once this much of it has arrived; with methods that expect none, once it is complete.
   * `client`: the identity or network whose body it is.
   */
  constructor(method: string, limit: number, client: string) {
    this.#limit = METHODS_WITH_BODY.has(method) ? limit : Number.POSITIVE_INFINITY;
    this.#client = client;
  }

  /** `enough`: it may be forwarded. `full`: memory is used up, and this body must be complete before it is forwarded. */
  add(part: Buffer): 'more' | 'enough' | 'full' {
    const size = this.size + part.length;
    // Copied: a small part may keep a much larger buffer in memory.
    if (size > this.#bytes.length) this.#grow(size);
    part.copy(this.#bytes, this.size);
    this.size = size;
    if (size >= this.#limit) return 'enough';
    if (bodyMemoryLimit.isAvailableTo(this.#client)) return 'more';
    return this.#limit === Number.POSITIVE_INFINITY ? 'full' : 'enough';
  }

  /** In proportion to the size: with fixed steps, a large body would be copied many times. */
  #grow(size: number): void {
    const { length } = this.#bytes;
    const larger = Buffer.allocUnsafeSlow(
      Math.max(size, Math.min(2 * length, length + (length >> 2) + 65_536), 1_024),
    );
    this.#bytes.copy(larger, 0, 0, this.size);
    this.#bytes = larger;
    bodyMemoryLimit.adjust(this.#client, larger.length - this.#accountedBytes);
    this.#accountedBytes = larger.length;
  }

  /** The collected bytes. They count as used until `free`, because they wait for a connection or in its write queue. */
  take(): Buffer {
    const bytes = this.#bytes.subarray(0, this.size);
    this.#bytes = Buffer.alloc(0);
    this.size = 0;
    return bytes;
  }

  free(): void {
    this.#bytes = Buffer.alloc(0);
    this.size = 0;
    bodyMemoryLimit.adjust(this.#client, -this.#accountedBytes);
    this.#accountedBytes = 0;
  }
}

/** Undefined: the body is forwarded as it arrives. */
export const createBodyBuffer = (method: string, limit: number, client: string): BodyBuffer | undefined =>
  limit === 0 && METHODS_WITH_BODY.has(method) ? undefined : new BodyBuffer(method, limit, client);

/** The share key of requests without a token. No identity begins with a zero byte. */
export const getNetworkKey = (clientAddress: string): string => `\0${getRateLimitKey(clientAddress)}`;
