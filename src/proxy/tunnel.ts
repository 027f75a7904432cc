import type { Socket } from 'node:net';
import { closeFrame, type FrameTrack, trackFrames } from './websocket-frames.ts';

/** Two connections that were joined to one WebSocket. */
export interface Tunnel {
  /** Ends it for both sides: with a Close frame where one can stand, and in any case soon. */
  end(code: number, reason: string): void;
  /** The two were joined: from now on silence is counted. */
  joined(): void;
}

export interface TunnelTerms {
  readonly silenceSeconds: number;
  readonly closed: () => void;
}

/** How long a side may take to read what it was sent last. */
const LAST_WORDS_MS = 300;
/** How long one side may live on when the other has gone. */
const HALF_OPEN_MS = 2_000;

/**
 * Looks after a tunnel that others pump: it follows where frames begin, so that one can be inserted, and sees to it that
 * neither side outlives the other. Opened before the two are joined, so that it sees every byte.
 */
export function openTunnel(near: Socket, far: Socket, { silenceSeconds, closed }: TunnelTerms): Tunnel {
  const toClient = trackFrames();
  const toUpstream = trackFrames();
  const follow = (socket: Socket, track: FrameTrack): (() => void) => {
    const passed = (part: Buffer): void => track.passed(part);
    socket.on('data', passed);
    return () => void socket.off('data', passed);
  };
  const unfollow = [follow(far, toClient), follow(near, toUpstream)];
  let cut: NodeJS.Timeout | undefined;
  let ending = false;

  const destroyIn = (ms: number): void => {
    clearTimeout(cut);
    cut = setTimeout(() => {
      near.destroy();
      far.destroy();
    }, ms);
  };
  const oneGone = (): void => {
    if (near.destroyed && far.destroyed) {
      clearTimeout(cut);
      closed();
    } else if (!ending) destroyIn(HALF_OPEN_MS);
  };
  for (const socket of [near, far]) {
    socket.once('end', oneGone).once('close', oneGone);
    socket.on('error', () => socket.destroy());
  }

  const end = (code: number, reason: string): void => {
    if (ending) return;
    ending = true;
    // From here on nothing passes, in neither direction; what still comes is read only to notice the end.
    far.unpipe(near);
    near.unpipe(far);
    for (const stop of unfollow) stop();
    lastWords(near, toClient, closeFrame(code, reason, false));
    lastWords(far, toUpstream, closeFrame(code, reason, true));
    destroyIn(LAST_WORDS_MS);
  };

  return {
    end,
    joined() {
      near.setTimeout(silenceSeconds * 1_000, () => end(1001, 'silent for too long'));
    },
  };
}

function lastWords(socket: Socket, track: FrameTrack, frame: Buffer): void {
  if (socket.writable && track.canInsert()) socket.write(frame);
  socket.end();
  socket.resume();
}
