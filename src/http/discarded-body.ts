import type { IncomingMessage } from 'node:http';

/*
 * The rest of a request after its response. It is read and discarded: if the connection were closed while the client sends, a reset could destroy
 * the response (RFC 9112 §9.6).
 */

export const MAX_DISCARDED_BYTES = 8_388_608;
/** How long the rest may take, and how long the client may pause. */
export const DISCARD_MS = 10_000;
export const DISCARD_PAUSE_MS = 2_000;

/**
 * Reads and discards the rest of a body. `done` gets whether all of it arrived; it is not called when the client closes the connection. A larger body
 * is not read on; the client has time to read the response.
 */
export function discardBody(request: IncomingMessage, done: (isComplete: boolean) => void): void {
  if (request.readableEnded) return done(true);
  const end = performance.now() + DISCARD_MS;
  let bytesLeft = MAX_DISCARDED_BYTES;
  const stop = (): void => {
    clearTimeout(timer);
    request.off('data', count).off('end', ended).off('close', stop);
  };
  const finish = (isComplete: boolean): void => {
    stop();
    done(isComplete);
  };
  const ended = (): void => finish(true);
  const count = (part: Buffer): void => {
    bytesLeft -= part.length;
    if (performance.now() < end) timer.refresh();
    if (bytesLeft < 0) request.pause();
  };
  // While it is paused, the last part may have arrived.
  const timer = setTimeout(() => finish(request.complete), DISCARD_PAUSE_MS);
  request
    .on('data', count)
    .on('end', ended)
    .on('close', stop)
    .on('error', () => {});
  request.resume();
}
