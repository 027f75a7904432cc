import { constants, createServer, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2';
import type { TLSSocket } from 'node:tls';
import { destroyAfter } from './client-error.ts';
import type { Http2Session } from './connection-tracker.ts';
import { type FloodGuard, FloodGuards } from './http2-flood-guard.ts';
import { Http2Request, parseRequestHead } from './http2-request.ts';
import { Http2Response } from './http2-response.ts';
import type { ListenerLimits } from './listener-options.ts';
import { onBodyReceived } from './node-quirks/http2.ts';

interface Http2ServerOptions {
  readonly limits: Required<Pick<ListenerLimits, 'headers' | 'headerTimeout' | 'streams'>>;
  /** Seconds after which a connection without requests is closed. */
  readonly idleSeconds: number;
  /** Seconds after which a response is reset if the client reads nothing of it. */
  readonly stalledSeconds: number;
  readonly onRequest: (request: Http2Request, response: Http2Response) => void;
  readonly onConnection: (socket: TLSSocket, session: Http2Session) => void;
  /** A connection was closed because its client exceeded a limit. */
  readonly onAbuse: (socket: TLSSocket, reason: string) => void;
}

/** Header fields and pseudo-header fields; one more than allowed, so that the request gets a 431. */
const MAX_FIELDS = 101 + 5;
/** Leaving a page may reset a hundred streams at once; resets at a steady rate are an attack. */
const RESETS = { beyondStreams: 20, perSecond: 20 } as const;
const PINGS = { burst: 100, perSecond: 5 } as const;
const SETTINGS = { burst: 20, perSecond: 1 } as const;
const CONNECTION_WINDOW = 1_048_576;
const STREAM_WINDOW = 262_144;
const LINGER_MS = 1_000;
const GOAWAY_MS = 50;

/**
 * An HTTP/2 server with limits on everything a client can send without being served: incomplete header sections, resets
 * (CVE-2023-44487, and CVE-2025-8671, where the client makes the server send them), pings, settings and other frames.
 * Returns a function that takes over a connection whose handshake selected HTTP/2.
 */
export function createNodeHttp2Server(options: Http2ServerOptions): (socket: TLSSocket) => void {
  const { limits } = options;
  const floodGuards = new FloodGuards();
  const server = createServer({
    settings: {
      maxConcurrentStreams: limits.streams,
      maxHeaderListSize: limits.headers,
      initialWindowSize: STREAM_WINDOW,
      enablePush: false,
      enableConnectProtocol: false,
    },
    maxHeaderListPairs: MAX_FIELDS,
    // MiB: enough for the buffered responses of all streams of a slow client.
    maxSessionMemory: 16,
    maxSettings: 32,
    maxOutstandingPings: 10,
    maxSessionInvalidFrames: 100,
    maxSessionRejectedStreams: 100,
    streamResetBurst: limits.streams + RESETS.beyondStreams,
    streamResetRate: RESETS.perSecond,
    // Upstreams may repeat a field; clients over HTTP/1.1 see both, too.
    strictSingleValueFields: false,
  });
  return (socket) => {
    server.once('session', (session) => new Http2Connection(session, socket, options, floodGuards));
    server.emit('connection', socket);
  };
}

class Http2Connection implements Http2Session {
  readonly #session: ServerHttp2Session;
  readonly #socket: TLSSocket;
  readonly #options: Http2ServerOptions;
  readonly #floodGuard: FloodGuard;
  readonly #resets: () => boolean;
  #idleTimer: NodeJS.Timeout;
  #activeStreams = 0;
  #isClosedForAbuse = false;
  #isCloseAnnounced = false;

  constructor(
    session: ServerHttp2Session,
    socket: TLSSocket,
    options: Http2ServerOptions,
    floodGuards: FloodGuards,
  ) {
    this.#session = session;
    this.#socket = socket;
    this.#options = options;
    this.#resets = createAllowance(options.limits.streams + RESETS.beyondStreams, RESETS.perSecond);
    this.#floodGuard = floodGuards.add({
      session,
      socket,
      streamWindow: STREAM_WINDOW,
      onFlood: () => this.#closeForAbuse('unproductive frames'),
    });
    this.#idleTimer = setTimeout(() => this.close(), options.limits.headerTimeout * 1_000);
    const pings = createAllowance(PINGS.burst, PINGS.perSecond);
    const settings = createAllowance(SETTINGS.burst, SETTINGS.perSecond);
    session.setLocalWindowSize(CONNECTION_WINDOW);
    session
      .on('error', () => {})
      .once('close', () => {
        clearTimeout(this.#idleTimer);
        destroyAfter(LINGER_MS, socket, socket);
      })
      .on('ping', () => {
        if (!pings()) this.#closeForAbuse('pings');
      })
      .on('remoteSettings', () => {
        if (!settings()) this.#closeForAbuse('settings');
      })
      .on('stream', (stream: ServerHttp2Stream, _headers, _flags, rawHeaders: string[]) => {
        stream.on('error', () => {});
        if (this.#isClosedForAbuse) return;
        // Reset before it was processed.
        if (stream.closed || stream.destroyed) this.#countReset();
        else this.#serve(stream, rawHeaders);
      });
    options.onConnection(socket, this);
  }

  #serve(stream: ServerHttp2Stream, rawHeaders: readonly string[]): void {
    const { stalledSeconds, onRequest } = this.#options;
    this.#activeStreams += 1;
    clearTimeout(this.#idleTimer);
    onBodyReceived(stream, (size) => this.#floodGuard.countBody(size));
    const request = new Http2Request(stream, this.#socket, parseRequestHead(rawHeaders));
    this.#floodGuard.countRequest(request.headSize);
    const response = new Http2Response(request, stream);
    stream.setTimeout(stalledSeconds * 1_000, () => {
      // Upstream timeouts apply while a response is being produced.
      if (response.writableEnded || stream.writableLength > 0) response.destroy();
    });
    stream.once('close', () => this.#end(request, response));
    // Requests that have arrived together with this one are served, too.
    if (this.#isCloseAnnounced) setImmediate(() => this.close());
    onRequest(request, response);
  }

  #end(request: Http2Request, response: Http2Response): void {
    this.#activeStreams -= 1;
    if (this.#activeStreams === 0 && !this.#session.destroyed) {
      clearTimeout(this.#idleTimer);
      this.#idleTimer = setTimeout(() => this.close(), this.#options.idleSeconds * 1_000);
    }
    if (response.writableFinished) {
      if (!request.complete) this.#floodGuard.countTruncatedBody();
    } else if (!response.wasReset && !this.#session.destroyed && !this.#socket.destroyed) this.#countReset();
  }

  #countReset(): void {
    if (!this.#resets()) this.#closeForAbuse('resets');
  }

  #closeForAbuse(reason: string): void {
    if (this.#isClosedForAbuse) return;
    this.#isClosedForAbuse = true;
    this.#options.onAbuse(this.#socket, reason);
    if (!this.#session.destroyed) this.#session.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    // Destroying the session closes the socket before the frame is sent.
    setTimeout(() => {
      this.#session.destroy(new Error(`too many ${reason}`), constants.NGHTTP2_ENHANCE_YOUR_CALM);
      destroyAfter(LINGER_MS, this.#socket, this.#socket);
    }, GOAWAY_MS);
  }

  /**
   * Node can only send one GOAWAY, after which new streams are ignored. A client that waits for a response sends no other
   * request meanwhile, so it is sent with the next request; see `#serve`.
   */
  announceClose(): void {
    this.#isCloseAnnounced = true;
  }

  closeBusy(): void {
    this.close();
  }

  close(): void {
    if (this.#session.closed || this.#session.destroyed) return;
    this.#session.close();
    if (this.#activeStreams === 0) destroyAfter(LINGER_MS, this.#socket, this.#socket);
  }
}

/** A token bucket: returns whether one more event is allowed. */
function createAllowance(burst: number, perSecond: number): () => boolean {
  let tokens = burst;
  let refilledAt = performance.now();
  return () => {
    const now = performance.now();
    tokens = Math.min(burst, tokens + ((now - refilledAt) / 1_000) * perSecond) - 1;
    refilledAt = now;
    return tokens >= 0;
  };
}
