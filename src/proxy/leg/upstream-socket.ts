import { connect, type Socket } from 'node:net';
import { type AnswerHead, readAnswerHead } from './answer-head.ts';
import { ChunkReader } from './chunks.ts';

/** Whoever has asked an upstream something and hears the answer. */
export interface Asker {
  onConnected(): void;
  /** The socket takes more of the request. */
  onDrain(): void;
  onHead(head: AnswerHead): void;
  /**
   * A piece of the body; the bytes are the asker's only until what follows has returned: the next piece, `onRead` or
   * `onWhole`. False: no more for now.
   */
  onData(bytes: Buffer, from: number, end: number): boolean;
  /** All that was read has been told. */
  onRead(): void;
  /** The answer is whole. The socket is not the asker's any more; `kept`: somebody else may ask on it in a moment. */
  onWhole(kept: boolean): void;
  /** There is no answer, or no end of it. The socket is gone. */
  onLost(cause: LostAnswer): void;
  /** A mistake of ours. */
  onFault(error: unknown): void;
}

/** How a socket was lost on the way to an answer. */
export class LostAnswer extends Error {
  readonly code: string;
  /** No connection had been made. */
  readonly unreached: boolean;
  /** The connection was closed by the other side without a byte of an answer, after it had carried others. */
  readonly idleClose: boolean;

  constructor(message: string, code: string, terms: { unreached?: boolean; idleClose?: boolean } = {}) {
    super(message);
    this.code = code;
    this.unreached = terms.unreached ?? false;
    this.idleClose = terms.idleClose ?? false;
  }
}

/** Codes of what did not come in time: a connection, and an answer or more of one. */
export const CONNECT_LATE = 'UPSTREAM_CONNECT_TIMEOUT';
export const ANSWER_LATE = 'UPSTREAM_LATE';

/** Where a target is, and how it is called in requests. */
export interface Address {
  readonly connect: { readonly host: string; readonly port: number } | { readonly path: string };
  /** What stands between the target of a request line and the other fields. */
  readonly opening: string;
  /** The same where the connection is not used again. */
  readonly openingOnce: string;
}

const MAX_HEAD = 16_384;
/** Steps on the way to an answer (1xx) that are put up with. */
const MOST_STEPS = 20;
const HEAD_END = Buffer.from('\r\n\r\n', 'latin1');
const CHEAPLY_COPIED = 16_384;
const LF = 0x0a;
/** Everything that upstreams send is read here, and told before the next read. */
const shared = Buffer.allocUnsafeSlow(65_536);

/**
 * One connection to a target. It belongs to one asker from the first byte of a request to the last of the answer, and is
 * fit for the next one only if there was no doubt about where that last byte is.
 */
export class UpstreamSocket {
  /** Answers it has carried. */
  answers = 0;
  /** When it became idle, and for how many seconds it may be. */
  idleSince = 0;
  idleSeconds = 0;
  connected = false;
  readonly #socket: Socket;
  readonly #onIdle: (socket: UpstreamSocket) => boolean;
  readonly #onGone: (socket: UpstreamSocket) => void;
  #asker: Asker | undefined;
  #toHead = false;
  #sentWhole = false;
  #usedUp = false;
  #heard = false;
  #steps = 0;
  /** The beginning of a head that came in pieces. */
  #begun: Buffer | undefined;
  #head: AnswerHead | undefined;
  #left = 0;
  #chunks: ChunkReader | undefined;
  #wantsMore = true;
  #error: Error | undefined;
  /** What was read last, and what it said: most answers of an upstream begin alike. */
  #lastText = '';
  #lastToHead = false;
  #lastHead: AnswerHead | undefined;

  constructor(
    address: Address,
    onIdle: (socket: UpstreamSocket) => boolean,
    onGone: (socket: UpstreamSocket) => void,
  ) {
    this.#onIdle = onIdle;
    this.#onGone = onGone;
    this.#socket = connect({
      ...address.connect,
      noDelay: true,
      onread: { buffer: shared, callback: (count, bytes) => this.#onRead(bytes as Buffer, count) },
    });
    this.#socket
      .on('connect', () => {
        this.connected = true;
        this.#asker?.onConnected();
      })
      .on('drain', () => this.#asker?.onDrain())
      .on('error', (error) => {
        this.#error = error;
      })
      .on('end', () => this.#onEnd())
      .on('close', () => this.#onClose());
  }

  get isGone(): boolean {
    return this.#socket.destroyed;
  }

  /** Begins a request; what follows of it comes by `write`. */
  ask(asker: Asker, toHead: boolean, head: string, body: Buffer | undefined, isWhole: boolean): boolean {
    this.#asker = asker;
    this.#toHead = toHead;
    this.#sentWhole = isWhole;
    this.#heard = false;
    this.#steps = 0;
    if (body === undefined) return this.#socket.write(head, 'latin1');
    // One piece leaves at a lower price than two that are held together, as long as copying it is cheap.
    if (body.length <= CHEAPLY_COPIED) {
      const all = Buffer.allocUnsafe(head.length + body.length);
      all.write(head, 0, 'latin1');
      body.copy(all, head.length);
      return this.#socket.write(all);
    }
    this.#socket.cork();
    this.#socket.write(head, 'latin1');
    const takesMore = this.#socket.write(body);
    this.#socket.uncork();
    return takesMore;
  }

  write(part: Buffer, isWhole: boolean): boolean {
    this.#sentWhole = isWhole;
    return this.#socket.write(part);
  }

  /** Nobody asks on it after this, whatever the answer says. */
  useUp(): void {
    this.#usedUp = true;
  }

  /** What is written until `release` leaves together. */
  hold(): void {
    this.#socket.cork();
  }

  release(): void {
    this.#socket.uncork();
  }

  /** RFC 9112 §7.1. */
  writeChunk(part: Buffer): boolean {
    this.#socket.cork();
    this.#socket.write(`${part.length.toString(16)}\r\n`, 'latin1');
    this.#socket.write(part);
    const takesMore = this.#socket.write('\r\n', 'latin1');
    this.#socket.uncork();
    return takesMore;
  }

  endChunks(): void {
    this.#sentWhole = true;
    this.#socket.write('0\r\n\r\n', 'latin1');
  }

  /** For the asker while it is being told: no more after this read. The same as `onData` that says false. */
  pause(): void {
    this.#wantsMore = false;
  }

  /** Goes on reading, after it was enough. */
  resume(): void {
    this.#wantsMore = true;
    this.#socket.resume();
  }

  /** The asker does not want the answer any more; nobody hears of this socket again. */
  drop(): void {
    this.#asker = undefined;
    this.#socket.destroy();
  }

  /** Ends it under whoever uses it. */
  cut(): void {
    this.#socket.destroy();
  }

  #onRead(bytes: Buffer, count: number): boolean {
    // Nobody asked: whatever it is, it must not be taken for the answer to the next request.
    if (this.#asker === undefined) {
      this.#socket.destroy();
      return false;
    }
    this.#heard = true;
    this.#wantsMore = true;
    const asker = this.#asker;
    try {
      const fault = this.#head === undefined ? this.#readHead(bytes, count) : this.#readBody(bytes, 0, count);
      if (fault !== undefined) this.#lose(new LostAnswer(fault, 'UPSTREAM_ANSWER'));
      else this.#asker?.onRead();
    } catch (error) {
      this.drop();
      asker.onFault(error);
    }
    return this.#wantsMore;
  }

  #readHead(bytes: Buffer, count: number): string | undefined {
    let all = bytes;
    let end = count;
    if (this.#begun !== undefined) {
      all = Buffer.concat([this.#begun, bytes.subarray(0, count)]);
      end = all.length;
    }
    for (let at = 0; at < end; ) {
      const headEnd = all.indexOf(HEAD_END, at);
      if (headEnd < 0 || headEnd + 4 > end) {
        // Lines that end otherwise would be waited for until the time is over.
        if (end - at > MAX_HEAD || hasBareLf(all, at, end)) return 'no clear head';
        this.#begun = Buffer.from(all.subarray(at, end));
        return undefined;
      }
      if (headEnd - at > MAX_HEAD) return 'a head that is too long';
      const head = this.#interpret(all.toString('latin1', at, headEnd));
      if (typeof head === 'string') return head;
      at = headEnd + 4;
      this.#begun = undefined;
      if (head.status >= 200) return this.#begin(head, all, at, end);
      // `Upgrade` is never sent. `Expect` is not either, but an upstream may say 100 all the same (RFC 9110 §15.2).
      if (head.status === 101) return 'an unasked 101';
      this.#steps += 1;
      if (this.#steps > MOST_STEPS) return 'too many steps before an answer';
    }
    return undefined;
  }

  #interpret(text: string): AnswerHead | string {
    if (this.#lastHead !== undefined && this.#lastToHead === this.#toHead && this.#lastText === text)
      return this.#lastHead;
    const head = readAnswerHead(text, this.#toHead);
    if (typeof head !== 'string') {
      this.#lastText = text;
      this.#lastToHead = this.#toHead;
      this.#lastHead = head;
    }
    return head;
  }

  #begin(head: AnswerHead, bytes: Buffer, at: number, end: number): string | undefined {
    this.#head = head;
    this.#left = head.length;
    this.#chunks = head.framing === 'chunked' ? new ChunkReader() : undefined;
    this.#asker?.onHead(head);
    return this.#readBody(bytes, at, end);
  }

  #readBody(bytes: Buffer, from: number, end: number): string | undefined {
    const head = this.#head;
    if (head === undefined || this.#asker === undefined) return undefined;
    switch (head.framing) {
      case 'close':
        if (from < end) this.#tell(bytes, from, end);
        return undefined;
      case 'chunked': {
        const chunks = this.#chunks as ChunkReader;
        const progress = chunks.read(bytes, from, end, this.#tell);
        if (progress === 'broken') return 'a chunk that cannot be read';
        if (progress === 'whole') this.#finish(chunks.at === end);
        return undefined;
      }
      case 'none':
      case 'length': {
        const to = Math.min(end, from + this.#left);
        if (to > from) this.#tell(bytes, from, to);
        this.#left -= to - from;
        if (this.#left === 0) this.#finish(to === end);
        return undefined;
      }
    }
  }

  readonly #tell = (bytes: Buffer, from: number, end: number): void => {
    if (this.#asker?.onData(bytes, from, end) === false) this.#wantsMore = false;
  };

  /** `exactly`: nothing came behind the answer. */
  #finish(exactly: boolean): void {
    const asker = this.#asker;
    const head = this.#head;
    this.#asker = undefined;
    this.#head = undefined;
    this.#chunks = undefined;
    this.#wantsMore = true;
    this.answers += 1;
    let kept = false;
    const { destroyed, writableLength } = this.#socket;
    const inStep = exactly && this.#sentWhole && !this.#usedUp && writableLength === 0;
    if (inStep && !destroyed && head?.reusable === true) {
      // As long as it says, less the time between two looks, and that a request takes to arrive.
      this.idleSeconds =
        head.keepAlive === undefined ? IDLE_SECONDS : Math.min(head.keepAlive - 2, MOST_IDLE_SECONDS);
      kept = this.#onIdle(this);
    } else this.#socket.destroy();
    asker?.onWhole(kept);
  }

  #onEnd(): void {
    if (this.#head?.framing === 'close') {
      this.#finish(true);
      return;
    }
    this.#lose(
      new LostAnswer('the upstream closed the connection', 'UPSTREAM_CLOSED', {
        idleClose: !this.#heard && this.answers > 0,
      }),
    );
  }

  #onClose(): void {
    this.#onGone(this);
    const { message, code } = (this.#error ?? new Error('the connection is gone')) as NodeJS.ErrnoException;
    this.#lose(
      new LostAnswer(message, code ?? 'UPSTREAM_CLOSED', {
        unreached: !this.connected,
        idleClose: !this.#heard && this.answers > 0,
      }),
    );
  }

  #lose(cause: LostAnswer): void {
    const asker = this.#asker;
    this.#asker = undefined;
    this.#socket.destroy();
    asker?.onLost(cause);
  }
}

/** How long a connection may wait for the next request, where the upstream does not say. */
const IDLE_SECONDS = 4;
const MOST_IDLE_SECONDS = 600;

function hasBareLf(bytes: Buffer, from: number, end: number): boolean {
  for (let at = bytes.indexOf(LF, from); at >= 0 && at < end; at = bytes.indexOf(LF, at + 1))
    if (at === from || bytes[at - 1] !== 0x0d) return true;
  return false;
}
