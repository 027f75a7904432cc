import type { Socket } from 'node:net';

/** RFC 9112 §4: `HTTP/1.1 100`, whatever is said behind it. */
const CONTINUE = Buffer.from('HTTP/1.1 100');
const STATUS_AT = 9;
const ONE = 0x31;
const SPACE = 0x20;
const CR = 0x0d;
const END = Buffer.from('\r\n\r\n');
/** As many as are put up with, and how long one may be. */
const MOST = 20;
const LONGEST = 16_384;

/**
 * Takes `100 Continue` out of what an upstream sends before its answer. Nobody here asks for one, but an upstream may
 * send it all the same and a client has to bear it (RFC 9110 §15.2); undici takes it for a broken answer. Everything
 * else passes to the letter, other steps on the way among it.
 */
export class ContinueSieve {
  #awaiting = false;
  #taken = 0;
  #held: Buffer | undefined;

  /** A request begins: until its answer begins, `100 Continue` is possible. On an idle connection it is not. */
  expect(): void {
    this.#awaiting = true;
    this.#taken = 0;
  }

  /** Something came that was not passed on: whoever sent it has seen the request. */
  get heard(): boolean {
    return this.#taken > 0 || this.#held !== undefined;
  }

  watch(socket: Socket): void {
    this.#awaiting = false;
    this.#taken = 0;
    this.#held = undefined;
    const read = socket.read;
    socket.read = (size?: number): Buffer | null => {
      for (;;) {
        const part = read.call(socket, size) as Buffer | null;
        if (part === null || !this.#awaiting) return part;
        // Nearly always: whole, and an answer.
        if (this.#held === undefined && part.length > STATUS_AT && part[STATUS_AT] !== ONE) {
          this.#awaiting = false;
          return part;
        }
        const rest = this.#sift(socket, part);
        if (rest !== undefined) return rest;
      }
    };
  }

  /** What is left for the reader; undefined when more must come first. */
  #sift(socket: Socket, part: Buffer): Buffer | undefined {
    let bytes = this.#held === undefined ? part : Buffer.concat([this.#held, part]);
    this.#held = undefined;
    while (bytes.length > 0) {
      const known = Math.min(bytes.length, CONTINUE.length);
      if (bytes.compare(CONTINUE, 0, known, 0, known) !== 0) return this.#pass(bytes);
      const after = bytes[CONTINUE.length];
      if (after !== undefined && after !== SPACE && after !== CR) return this.#pass(bytes);
      const end = bytes.indexOf(END);
      if (end < 0) {
        if (bytes.length <= LONGEST) this.#held = bytes;
        else socket.destroy(new Error('a step before an answer is too long'));
        return undefined;
      }
      this.#taken += 1;
      if (this.#taken > MOST) {
        socket.destroy(new Error('too many steps before an answer'));
        return undefined;
      }
      bytes = bytes.subarray(end + END.length);
    }
    return undefined;
  }

  #pass(bytes: Buffer): Buffer {
    this.#awaiting = false;
    return bytes;
  }
}
