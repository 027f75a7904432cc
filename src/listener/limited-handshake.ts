import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import type { ClientAccount } from './client-accounts.ts';

/**
 * Bytes of a handshake that are passed to OpenSSL, which verifies every chain of certificates that it gets: the most expensive
 * ones take 2 ms per kibibyte. A ClientHello and a chain of four usual certificates have 8 KiB.
 */
const MAX_HANDSHAKE_BYTES = 16_384;
/** RFC 8446 §5.1, and RFC 5246 §6.2.3 for the size. */
const RECORD_TYPES: ReadonlySet<number> = new Set([20, 21, 22, 23]);
const RECORD_HEADER = 5;
const MAX_RECORD_BYTES = RECORD_HEADER + 16_384 + 2_048;
const RETRY_MS = 50;
const ADDRESSES = ['remoteAddress', 'remotePort', 'remoteFamily', 'localAddress', 'localPort'] as const;

/**
 * A TCP connection whose TLS handshake is limited in size, and in time together with the others of its network. Node has no option for
 * either. The bytes pass through JavaScript, also after the handshake, so it is not used for every connection.
 */
export class LimitedHandshake extends Duplex {
  /** The one whose bytes the TLS server is reading: a TLS socket has no reference to it, and events are emitted meanwhile. */
  static current: LimitedHandshake | undefined;

  readonly #socket: Socket;
  readonly #account: ClientAccount;
  #isComplete = false;
  #handshakeBytes = 0;
  /** Received, and not yet passed to the TLS server. */
  #pending: Buffer = Buffer.alloc(0);
  #isEnded = false;
  #isWanted = true;
  #isScheduled = false;
  #retry: NodeJS.Timeout | undefined;

  constructor(socket: Socket, account: ClientAccount) {
    super({ allowHalfOpen: true });
    this.#socket = socket;
    this.#account = account;
    socket.allowHalfOpen = true;
    socket
      .on('data', (part: Buffer) => {
        this.#pending = this.#pending.length === 0 ? part : Buffer.concat([this.#pending, part]);
        if (this.#pending.length > MAX_RECORD_BYTES) socket.pause();
        this.#schedule();
      })
      .on('end', () => {
        this.#isEnded = true;
        this.#schedule();
      })
      .on('close', () => this.destroy());
  }

  /** Gives the TLS socket the addresses of the connection. */
  complete(tlsSocket: TLSSocket): void {
    this.#isComplete = true;
    for (const name of ADDRESSES)
      Object.defineProperty(tlsSocket, name, { value: this.#socket[name], configurable: true });
  }

  /**
   * One record in each iteration of the event loop. Node would emit the contents of several at once, before what it has scheduled
   * with `process.nextTick` for the first: their order would change where a connection is handed to another reader.
   */
  #schedule(): void {
    if (this.#isScheduled || this.destroyed || !this.#isWanted || this.#retry !== undefined) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      if (!this.destroyed) this.#pass();
    });
  }

  #pass(): void {
    const length = this.#getRecordLength();
    if (length === undefined) {
      if (!this.#isEnded) this.#socket.resume();
      else this.push(null);
      return;
    }
    if (!this.#isComplete && !this.#mayContinueHandshake(length)) return;
    const record = this.#pending.subarray(0, length);
    this.#pending = this.#pending.subarray(length);
    const startedAt = performance.now();
    LimitedHandshake.current = this;
    try {
      this.#isWanted = this.push(record);
    } finally {
      LimitedHandshake.current = undefined;
    }
    if (!this.#isComplete) this.#account.addTime(performance.now() - startedAt);
    this.#schedule();
  }

  /** Returns undefined until the record is complete. What is left at the end is passed as it is. */
  #getRecordLength(): number | undefined {
    const { length } = this.#pending;
    // OpenSSL rejects other bytes.
    if (length > 0 && !RECORD_TYPES.has(this.#pending.readUInt8())) return length;
    if (length >= RECORD_HEADER) {
      const record = RECORD_HEADER + this.#pending.readUInt16BE(3);
      if (record > MAX_RECORD_BYTES) return length;
      if (record <= length) return record;
    }
    return this.#isEnded && length > 0 ? length : undefined;
  }

  #mayContinueHandshake(length: number): boolean {
    if (this.#account.hasExceededTime()) {
      // The timeout of the handshake continues.
      this.#retry = setTimeout(() => {
        this.#retry = undefined;
        this.#schedule();
      }, RETRY_MS);
      return false;
    }
    this.#handshakeBytes += length;
    if (this.#handshakeBytes <= MAX_HANDSHAKE_BYTES) return true;
    this.destroy();
    return false;
  }

  override _read(): void {
    this.#isWanted = true;
    this.#schedule();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#socket.write(chunk, done);
  }

  override _final(done: () => void): void {
    this.#socket.end(done);
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#retry);
    this.#socket.destroy();
    done(error);
  }
}
