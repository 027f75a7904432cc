import type { Socket } from 'node:net';
import { closeFrame, FrameTracker } from './websocket-frames.ts';

/** The two connections of a forwarded WebSocket. */
export type Tunnel = ReturnType<typeof openTunnel>;

/** How long a side may take to read its last bytes. */
const CLOSE_TIMEOUT_MS = 300;
/** How long one side stays open after the other was closed. */
const HALF_OPEN_TIMEOUT_MS = 2_000;

/**
 * Watches a tunnel that http-proxy-3 pumps: tracks where frames begin, so that one can be inserted, and closes one side when
 * the other is closed. Opened before both sides are joined, so that it sees every byte.
 */
export function openTunnel(client: Socket, upstream: Socket, idleSeconds: number, onClose: () => void) {
  const toClient = new FrameTracker();
  const toUpstream = new FrameTracker();
  const trackSocket = (socket: Socket, tracker: FrameTracker): (() => void) => {
    const onData = (part: Buffer): void => tracker.push(part);
    socket.on('data', onData);
    return () => void socket.off('data', onData);
  };
  const stopTracking = [trackSocket(upstream, toClient), trackSocket(client, toUpstream)];
  let destroyTimer: NodeJS.Timeout | undefined;
  let isEnding = false;

  const destroyIn = (ms: number): void => {
    clearTimeout(destroyTimer);
    destroyTimer = setTimeout(() => {
      client.destroy();
      upstream.destroy();
    }, ms);
  };
  const onSideClosed = (): void => {
    if (client.destroyed && upstream.destroyed) {
      clearTimeout(destroyTimer);
      onClose();
    } else if (!isEnding) destroyIn(HALF_OPEN_TIMEOUT_MS);
  };
  for (const socket of [client, upstream]) {
    socket.once('end', onSideClosed).once('close', onSideClosed);
    socket.on('error', () => socket.destroy());
  }

  const end = (code: number, reason: string): void => {
    if (isEnding) return;
    isEnding = true;
    // Nothing is forwarded from here on; the rest is read only to notice the end.
    upstream.unpipe(client);
    client.unpipe(upstream);
    for (const stop of stopTracking) stop();
    sendCloseFrame(client, toClient, closeFrame(code, reason, false));
    sendCloseFrame(upstream, toUpstream, closeFrame(code, reason, true));
    destroyIn(CLOSE_TIMEOUT_MS);
  };

  return {
    /** Closes both sides soon, with a Close frame where one may be sent. */
    end,
    /** Both sides are joined: the idle timeout begins. */
    start(): void {
      client.setTimeout(idleSeconds * 1_000, () => end(1001, 'idle timeout'));
    },
  };
}

function sendCloseFrame(socket: Socket, tracker: FrameTracker, frame: Buffer): void {
  if (socket.writable && tracker.canInsert()) socket.write(frame);
  socket.end();
  socket.resume();
}
