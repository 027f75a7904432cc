import { METHODS_WITH_BODY } from '../http/request-head.ts';
import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { clientAccounts, getAccountKey, type Holding } from '../listener/client-accounts.ts';

/** Milliseconds after which a body of unknown length is forwarded as it arrives: it may be an endless stream. */
export const STREAM_BUFFER_MS = 200;

/** Up to this many unread bytes, a response is still read from the upstream, so that a slow client does not hold the connection. */
export const READ_AHEAD_BYTES = 131_072;

/** A TLS socket has an encrypted copy of what it is sending, and buffers are larger than what is in them. */
const COPIES = 2;

/** What the client of one response has not read, charged to its account. */
export class UnreadResponse {
  readonly #evict: () => void;
  #holding: Holding | undefined = undefined;
  #lastUnread = 0;

  /** `evict`: aborts the response. */
  constructor(evict: () => void) {
    this.#evict = evict;
  }

  /** May more be read from the upstream for this client, which has this many bytes to read? */
  mayReadAhead(unread: number, client: string): boolean {
    this.#lastUnread = unread;
    this.#holding ??= clientAccounts.hold(toAccountKey(client), this.#evict);
    this.#holding.set(unread * COPIES);
    return unread < READ_AHEAD_BYTES && this.#holding.mayGrow;
  }

  /** Has the client read anything since the last call? */
  hasRead(unread: number): boolean {
    const hasRead = unread < this.#lastUnread;
    this.#lastUnread = unread;
    return hasRead;
  }

  release(): void {
    this.#holding?.release();
    this.#holding = undefined;
  }
}

/** The beginning of a request body, in memory until there is a connection for it. */
export class BodyBuffer {
  size = 0;
  readonly #limit: number;
  readonly #holding: Holding;
  #bytes = Buffer.alloc(0);

  /**
   * `limit`: a body is forwarded once this much of it has arrived; with methods that expect none, once it is complete.
   * `client`: the identity or network whose body it is. `evict`: refuses the request.
   */
  constructor(method: string, limit: number, client: string, evict: () => void) {
    this.#limit = METHODS_WITH_BODY.has(method) ? limit : Number.POSITIVE_INFINITY;
    this.#holding = clientAccounts.hold(toAccountKey(client), evict);
  }

  /** `enough`: it may be forwarded. `full`: memory is used up, and this body must be complete before it is forwarded. */
  add(part: Buffer): 'more' | 'enough' | 'full' {
    const size = this.size + part.length;
    // Copied: a small part may keep a much larger buffer in memory.
    if (size > this.#bytes.length) this.#grow(size);
    part.copy(this.#bytes, this.size);
    this.size = size;
    if (size >= this.#limit) return 'enough';
    if (this.#holding.mayGrow) return 'more';
    return this.#limit === Number.POSITIVE_INFINITY ? 'full' : 'enough';
  }

  /** In proportion to the size: with fixed steps, a large body would be copied many times. */
  #grow(size: number): void {
    const { length } = this.#bytes;
    const larger = Buffer.allocUnsafeSlow(Math.max(size, Math.min(2 * length, length + (length >> 2) + 65_536), 1_024));
    this.#bytes.copy(larger, 0, 0, this.size);
    this.#bytes = larger;
    this.#holding.set(larger.length);
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
    this.#holding.release();
  }
}

/** Returns undefined if the body is forwarded as it arrives. */
export const createBodyBuffer = (
  method: string,
  limit: number,
  client: string,
  evict: () => void,
): BodyBuffer | undefined =>
  limit === 0 && METHODS_WITH_BODY.has(method) ? undefined : new BodyBuffer(method, limit, client, evict);

/** The share key of requests without a token. No identity begins with a zero byte. */
export const getNetworkKey = (clientAddress: string): string => `\0${getRateLimitKey(clientAddress)}`;

/** May more be held for this client, which is an identity or a network? */
export const mayHoldMore = (client: string): boolean => clientAccounts.mayGrow(toAccountKey(client));

const toAccountKey = (client: string): string => (client.startsWith('\0') ? getAccountKey(client.slice(1)) : client);
