import type { Socket } from 'node:net';

/** The next part of the response to be sent. */
export type AwaitedPart = 'status-line' | 'chunk' | 'other';

/** All responses begin with this, whatever the status and the version of the request. */
const STATUS_LINE = 'HTTP/1.1 ';
/** RFC 9112 §7.1: chunk-size is 1*HEXDIG, so it may have leading zeros. */
const LEADING_ZEROS = 8;
/**
 * Milliseconds before each probe. They come in pairs: the first provokes a reset, the second notices it, since a socket that
 * is neither read nor written is not polled.
 */
const PROBE_DELAYS_MS = [0, 100, 900, 100, 3_900, 100, 24_900, 100, 60_000] as const;
/** Without a way to probe, a client is considered gone if the response makes no progress for this long. */
const STALLED_MS = 3_000;

/**
 * Finds out whether a client that half-closed the connection (FIN or close_notify) still waits for its response. TCP reports
 * the difference only to a sender: a closed socket replies with a reset. So the first bytes of the response are sent early,
 * one by one (docs/decisions/0025-half-closed-clients.md). A waiting client sees a slow response; a client that is gone
 * shows as a closed socket. Returns a function that stops probing; call it between responses.
 */
export function probeHalfClosed(socket: Socket, getAwaitedPart: () => AwaitedPart): () => void {
  let probes = 0;
  let sentZeros = 0;
  let timer: NodeJS.Timeout | undefined;
  const statusLine = new EarlyBytes(socket, STATUS_LINE);

  const probe = (): void => {
    if (socket.destroyed || !socket.writable) return;
    // Data that is queued in the socket is a probe itself.
    if (socket.writableLength === 0) {
      const part = getAwaitedPart();
      if (part === 'status-line') statusLine.sendNext();
      else if (part === 'chunk' && sentZeros < LEADING_ZEROS) {
        socket.write('0', 'latin1');
        sentZeros += 1;
      }
    }
    probes += 1;
    const delay = PROBE_DELAYS_MS[probes];
    if (delay !== undefined) timer = setTimeout(probe, delay).unref();
  };
  let written = socket.bytesWritten;
  const stalled = setInterval(() => {
    const hasProgress = socket.bytesWritten !== written || socket.writableLength > 0;
    written = socket.bytesWritten;
    if (!hasProgress && getAwaitedPart() === 'other') socket.destroy();
  }, STALLED_MS).unref();
  const stop = (): void => {
    clearTimeout(timer);
    clearInterval(stalled);
    socket.off('close', stop);
  };
  socket.once('close', stop);
  probe();
  return stop;
}

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
