import type { ServerHttp2Session } from 'node:http2';
import type { TLSSocket } from 'node:tls';

/** What a client has sent that served a purpose. */
export interface Http2Input {
  /** A request began with a header section of this size (RFC 9113 §6.5.2). */
  request(headSize: number): void;
  /** A part of a request body has arrived. */
  body(size: number): void;
  /** A request was answered and ended by us before its body was complete: the client may have sent a whole window of it. */
  cutShort(): void;
}

export interface Http2InputOptions {
  readonly session: ServerHttp2Session;
  readonly socket: TLSSocket;
  /** Bytes a stream may receive before its window is updated. */
  readonly streamWindow: number;
  /** Called once: the client sends frames that serve no purpose. */
  readonly onExcess: () => void;
}

/** Bytes at once, and bytes a second after that, of frames that serve no purpose that we know of. */
const BURST = 262_144;
const PER_SECOND = 4_096;
/** The most that can be saved up. Flow control lets a client answer long after the data was sent. */
const MOST_EARNED = 4_194_304;
/** Frame headers, priorities and a compressed form that is longer than the text. */
const PER_REQUEST = 1_024;
/** Frame header and padding (RFC 9113 §6.1). */
const PER_PART = 300;
/**
 * Bytes a second, after `MOST_EARNED` at once, for bodies that we did not wait for. How much of them was sent is not known,
 * so a client that is refused again and again must not earn a window each time.
 */
const CUT_SHORT_PER_SECOND = 65_536;
const LOOK_MS = 1_000;

interface Watched {
  look(now: number): void;
}

/**
 * Bounds what a client can send without being served: WINDOW_UPDATE, PRIORITY, empty or padded DATA and unknown frames,
 * which neither nghttp2 nor Node count. Node shows no single frame, but it counts the bytes it has read, and what they
 * were good for is known here: requests, their bodies, and window updates for responses, of which a client sends no more
 * bytes than we send. The rest must be small (docs/decisions/0012-http2-front.md).
 */
export function watchHttp2Input(): (options: Http2InputOptions) => Http2Input {
  const sessions = new Set<Watched>();
  let timer: NodeJS.Timeout | undefined;

  const lookAtAll = (): void => {
    const now = performance.now();
    for (const one of sessions) one.look(now);
    if (sessions.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };

  return ({ session, socket, streamWindow, onExcess }) => {
    /** Bytes that were read or written until the last look. */
    let read = 0;
    let written = 0;
    /** Earned since the last look. */
    let earned = 0;
    /** What can still be earned by bodies that are cut short. */
    let forCutShort = MOST_EARNED;
    /** What was sent in excess; negative: what may still be sent. */
    let excess = 0;
    let lookedAt = performance.now();

    const watched: Watched = {
      look(now) {
        const { bytesRead, bytesWritten } = socket;
        if (bytesRead === read) return;
        const useful = earned + (bytesWritten - written);
        const seconds = (now - lookedAt) / 1_000;
        excess = Math.max(excess + (bytesRead - read) - useful - seconds * PER_SECOND, -MOST_EARNED);
        forCutShort = Math.min(forCutShort + seconds * CUT_SHORT_PER_SECOND, MOST_EARNED);
        lookedAt = now;
        read = bytesRead;
        written = bytesWritten;
        earned = 0;
        if (excess <= BURST) return;
        sessions.delete(watched);
        onExcess();
      },
    };
    sessions.add(watched);
    session.once('close', () => sessions.delete(watched));
    socket.once('close', () => sessions.delete(watched));
    timer ??= setInterval(lookAtAll, LOOK_MS).unref();
    return {
      request(headSize) {
        earned += headSize + PER_REQUEST;
      },
      body(size) {
        earned += size + PER_PART;
      },
      cutShort() {
        const bytes = Math.min(streamWindow, forCutShort);
        forCutShort -= bytes;
        earned += bytes;
      },
    };
  };
}
