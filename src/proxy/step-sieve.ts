import type { Socket } from 'node:net';

/** RFC 9112 §4: a status line whose status is 100 to 199. `101` changes the protocol, and nobody asked for that either. */
const STEP = /^HTTP\/1\.[01] 1(?!01)\d\d(?=[ \r])/;
const STEP_BEGINS = /^H(?:T(?:T(?:P(?:\/(?:1(?:\.(?:[01](?: (?:1(?:\d\d?)?)?)?)?)?)?)?)?)?)?$/;
const LINE = 'HTTP/1.1 100 '.length;
const STATUS_AT = 'HTTP/1.1 '.length;
const ONE = 0x31;
const END = Buffer.from('\r\n\r\n');
/** As many as are put up with, and how long one may be. */
const MOST = 20;
const LONGEST = 16_384;

/**
 * Takes the steps on the way to an answer (1xx) out of what an upstream sends. Nobody here asks for any, but an upstream
 * may send them and a client has to bear them (RFC 9110 §15.2); undici takes `100 Continue` for a broken answer.
 * Everything else passes to the letter.
 */
export class StepSieve {
  #awaiting = false;
  #taken = 0;
  #held: Buffer | undefined;

  /** A request begins: steps may come until its answer does. On an idle connection they may not. */
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
    const read = socket.read.bind(socket);
    socket.read = (size?: number): Buffer | null => {
      for (;;) {
        const part = read(size) as Buffer | null;
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
      const line = bytes.toString('latin1', 0, LINE);
      if (!STEP.test(line) && !STEP_BEGINS.test(line)) return this.#pass(bytes);
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
