import type { Socket } from 'node:net';

/** What of the response the connection waits for: its status line, the next chunk of its body, or something else. */
export type AwaitedPart = 'status-line' | 'chunk' | 'other';

/** Every response begins with this, whatever its status and the version of the request. */
const STATUS_LINE = 'HTTP/1.1 ';
/** RFC 9112 §7.1: chunk-size is 1*HEXDIG, so it may begin with zeros. */
const LEADING_ZEROS = 8;
/**
 * Milliseconds before each probe. They come in pairs: the first provokes a reset, and the second notices it, since nothing
 * polls a socket that is neither read nor written.
 */
const PAUSES = [0, 100, 900, 100, 3_900, 100, 24_900, 100, 60_000] as const;
/** Where there is nothing to probe with, a response that makes no progress for so long counts as left by its client. */
const STALLED_MS = 3_000;

/**
 * The client has ended its side of the connection (FIN or close_notify) while its response is pending. It may have left, or
 * it may wait for the response: TCP shows the difference only to a sender of data, who gets a reset from a socket that was
 * closed. So the first bytes of what is sent anyway are sent early, one by one (docs/decisions/0025-half-closed-clients.md).
 * A client that waits sees a response that arrives slowly; one that has left is noticed as a closed socket. Returns how to
 * end this, between two responses.
 */
export function probeHalfClosed(socket: Socket, awaited: () => AwaitedPart): () => void {
  let probes = 0;
  let sentZeros = 0;
  let timer: NodeJS.Timeout | undefined;
  const statusLine = statusLineStart(socket);

  const probe = (): void => {
    if (socket.destroyed || !socket.writable) return;
    // Data that waits in the socket is a probe itself.
    if (socket.writableLength === 0) {
      const part = awaited();
      if (part === 'status-line') statusLine.sendNext();
      else if (part === 'chunk' && sentZeros < LEADING_ZEROS) {
        socket.write('0', 'latin1');
        sentZeros += 1;
      }
    }
    probes += 1;
    const pause = PAUSES[probes];
    if (pause !== undefined) timer = setTimeout(probe, pause).unref();
  };
  let written = socket.bytesWritten;
  const stalled = setInterval(() => {
    const moves = socket.bytesWritten !== written || socket.writableLength > 0;
    written = socket.bytesWritten;
    if (!moves && awaited() === 'other') socket.destroy();
  }, STALLED_MS).unref();
  const end = (): void => {
    clearTimeout(timer);
    clearInterval(stalled);
    socket.off('close', end);
  };
  socket.once('close', end);
  probe();
  return end;
}

interface StatusLineStart {
  /** Sends one more byte of it, as long as there is one. */
  sendNext(): void;
}

/** The first bytes of a status line, sent ahead of the rest: they are removed from what is written next. */
function statusLineStart(socket: Socket): StatusLineStart {
  const write = socket.write.bind(socket) as (...given: unknown[]) => boolean;
  const end = socket.end.bind(socket) as (...given: unknown[]) => Socket;
  let sent = 0;
  const rest = (first: unknown): unknown => {
    const count = sent;
    sent = 0;
    // Those of the prototype again: a client may have sent many requests before the end of its input.
    Reflect.deleteProperty(socket, 'write');
    Reflect.deleteProperty(socket, 'end');
    if (typeof first === 'string' && first.startsWith(STATUS_LINE)) return first.slice(count);
    if (Buffer.isBuffer(first) && first.toString('latin1', 0, STATUS_LINE.length) === STATUS_LINE)
      return first.subarray(count);
    // Not a response: the client must not take it for the rest of one.
    socket.destroy();
    return first;
  };
  return {
    sendNext() {
      if (sent === STATUS_LINE.length) return;
      write(STATUS_LINE.charAt(sent), 'latin1');
      sent += 1;
      if (sent > 1) return;
      socket.write = (...[first, ...more]: unknown[]) => write(rest(first), ...more);
      socket.end = (...[first, ...more]: unknown[]) =>
        end(first === undefined || typeof first === 'function' ? first : rest(first), ...more);
    },
  };
}
