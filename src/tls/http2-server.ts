import { constants, createServer, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2';
import type { TLSSocket } from 'node:tls';
import { destroyIn } from './client-error.ts';
import { watchHttp2Input } from './http2-input.ts';
import { Http2Request } from './http2-request.ts';
import { Http2Response } from './http2-response.ts';

export interface Http2ServerOptions {
  readonly limits: {
    /** Bytes of a request head. */
    readonly headers: number;
    /** Seconds until the first request must be there. */
    readonly headerTimeout: number;
    /** Requests at once on one connection. */
    readonly streams: number;
  };
  /** Seconds without a request after which a connection is closed. */
  readonly idle: number;
  /** Seconds after which an answer that nobody takes is given up. */
  readonly stalled: number;
  readonly onRequest: (request: Http2Request, response: Http2Response) => void;
  /** A connection began to speak HTTP/2; `close` tells its client to go elsewhere, and lets what runs end. */
  readonly onSession: (socket: TLSSocket, close: () => void) => void;
  /** Somebody was thrown out. */
  readonly onAbuse: (peer: string, why: string) => void;
}

export interface Http2Server {
  /** Speaks HTTP/2 on a connection whose handshake has chosen it. */
  take(socket: TLSSocket): void;
}

/** Header fields of a request, and the pseudo header fields beside them. One more than are allowed: those are answered. */
const MAX_FIELDS = 101 + 5;
/** A person who leaves a page ends a hundred requests at once. Whoever does so again and again does nothing else. */
const RESETS = { beyondStreams: 20, perSecond: 20 } as const;
const PINGS = { burst: 100, perSecond: 5 } as const;
const SETTINGS = { burst: 20, perSecond: 1 } as const;
const CONNECTION_WINDOW = 1_048_576;
const STREAM_WINDOW = 262_144;
const LINGER_MS = 1_000;
const GOAWAY_MS = 50;

/**
 * HTTP/2 with bounds on everything a client can do without being served: half-made heads, resets (CVE-2023-44487, and
 * CVE-2025-8671, where the client makes us send them), pings, settings, silence, and bytes of any other frames.
 */
export function createHttp2Server(options: Http2ServerOptions): Http2Server {
  const { limits } = options;
  const watchInput = watchHttp2Input();
  const server = createServer({
    settings: {
      maxConcurrentStreams: limits.streams,
      maxHeaderListSize: limits.headers,
      initialWindowSize: STREAM_WINDOW,
      enablePush: false,
      enableConnectProtocol: false,
    },
    maxHeaderListPairs: MAX_FIELDS,
    // MiB: what answers to all streams hold when their client reads slowly, and some more.
    maxSessionMemory: 16,
    maxSettings: 32,
    maxOutstandingPings: 10,
    maxSessionInvalidFrames: 100,
    maxSessionRejectedStreams: 100,
    streamResetBurst: limits.streams + RESETS.beyondStreams,
    streamResetRate: RESETS.perSecond,
    // An upstream may repeat a field; over HTTP/1.1 the client would see both.
    strictSingleValueFields: false,
  });
  return {
    take(socket) {
      server.once('session', (session) => lookAfter(session, socket, options, watchInput));
      server.emit('connection', socket);
    },
  };
}

function lookAfter(
  session: ServerHttp2Session,
  socket: TLSSocket,
  options: Http2ServerOptions,
  watchInput: ReturnType<typeof watchHttp2Input>,
): void {
  const peer = socket.remoteAddress ?? '';
  const resets = allowance({
    burst: options.limits.streams + RESETS.beyondStreams,
    perSecond: RESETS.perSecond,
  });
  const pings = allowance(PINGS);
  const settings = allowance(SETTINGS);
  let running = 0;
  let thrownOut = false;

  const throwOut = (why: string): void => {
    if (thrownOut) return;
    thrownOut = true;
    options.onAbuse(peer, why);
    if (!session.destroyed) session.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    // Destroying the session closes the socket at once, before the frame is sent.
    setTimeout(() => {
      session.destroy(new Error(`too many ${why}`), constants.NGHTTP2_ENHANCE_YOUR_CALM);
      destroyIn(LINGER_MS, socket, socket);
    }, GOAWAY_MS);
  };
  const close = (): void => {
    if (session.closed || session.destroyed) return;
    session.close();
    if (running === 0) destroyIn(LINGER_MS, socket, socket);
  };
  const input = watchInput({
    session,
    socket,
    streamWindow: STREAM_WINDOW,
    onExcess: () => throwOut('frames without a purpose'),
  });
  let silence = setTimeout(close, options.limits.headerTimeout * 1_000);
  const begin = (): void => {
    running += 1;
    clearTimeout(silence);
  };
  const end = (): void => {
    running -= 1;
    if (running > 0 || session.destroyed) return;
    clearTimeout(silence);
    silence = setTimeout(close, options.idle * 1_000);
  };

  session.on('error', () => {});
  session.once('close', () => {
    clearTimeout(silence);
    destroyIn(LINGER_MS, socket, socket);
  });
  session.on('ping', () => {
    if (!pings()) throwOut('pings');
  });
  session.on('remoteSettings', () => {
    if (!settings()) throwOut('settings');
  });
  session.setLocalWindowSize(CONNECTION_WINDOW);
  session.on('stream', (stream: ServerHttp2Stream, headers, _flags, rawHeaders: string[]) => {
    if (thrownOut) return;
    stream.on('error', () => {});
    // Reset before anybody looked at it: nothing is begun.
    if (stream.closed || stream.destroyed) {
      if (!resets()) throwOut('resets');
      return;
    }
    begin();
    const request = new Http2Request(stream, socket, headers, rawHeaders, (size) => input.body(size));
    input.request(request.headSize);
    const response = new Http2Response(request, stream);
    stream.setTimeout(options.stalled * 1_000, () => {
      // Silence while an answer is worked on is judged by whoever works on it.
      if (response.writableEnded || stream.writableLength > 0) response.destroy();
    });
    stream.once('close', () => {
      end();
      if (!request.complete && response.writableFinished) input.cutShort();
      const reset = !response.cut && !response.writableFinished && !session.destroyed && !socket.destroyed;
      if (reset && !resets()) throwOut('resets');
    });
    options.onRequest(request, response);
  });
  options.onSession(socket, close);
}

/** So many at once, and so many a second after that. */
function allowance({
  burst,
  perSecond,
}: {
  readonly burst: number;
  readonly perSecond: number;
}): () => boolean {
  let left: number = burst;
  let at = performance.now();
  return () => {
    const now = performance.now();
    left = Math.min(burst, left + ((now - at) / 1_000) * perSecond);
    at = now;
    left -= 1;
    return left >= 0;
  };
}
