import type { Socket } from 'node:net';
import { EarlyBytes } from './node-quirks/early-bytes.ts';

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
