import type { Socket } from 'node:net';

/**
 * Sends the first bytes of a text one by one, ahead of the write that begins with it, and removes them from that write.
 * Replaces `write` and `end` of the socket until then: a socket has no hook for outgoing data. Relies on responses that are
 * written through these methods, with the whole status line in the first write.
 */
export class EarlyBytes {
  readonly #socket: Socket;
  readonly #text: string;
  readonly #write: (...parameters: unknown[]) => boolean;
  readonly #end: (...parameters: unknown[]) => Socket;
  #sent = 0;

  constructor(socket: Socket, text: string) {
    this.#socket = socket;
    this.#text = text;
    this.#write = socket.write.bind(socket) as (...parameters: unknown[]) => boolean;
    this.#end = socket.end.bind(socket) as (...parameters: unknown[]) => Socket;
  }

  /** Sends one more byte, if any is left. */
  sendNext(): void {
    if (this.#sent === this.#text.length) return;
    this.#write(this.#text.charAt(this.#sent), 'latin1');
    this.#sent += 1;
    if (this.#sent > 1) return;
    this.#socket.write = (...[first, ...rest]: unknown[]) => this.#write(this.#strip(first), ...rest);
    this.#socket.end = (...[first, ...rest]: unknown[]) =>
      this.#end(first === undefined || typeof first === 'function' ? first : this.#strip(first), ...rest);
  }

  #strip(chunk: unknown): unknown {
    const sent = this.#sent;
    this.#sent = 0;
    // Restores the methods of the prototype, for the next response on this connection.
    Reflect.deleteProperty(this.#socket, 'write');
    Reflect.deleteProperty(this.#socket, 'end');
    if (typeof chunk === 'string' && chunk.startsWith(this.#text)) return chunk.slice(sent);
    if (Buffer.isBuffer(chunk) && chunk.toString('latin1', 0, this.#text.length) === this.#text)
      return chunk.subarray(sent);
    // Not the announced text: the client must not take it for the rest of it.
    this.#socket.destroy();
    return chunk;
  }
}
