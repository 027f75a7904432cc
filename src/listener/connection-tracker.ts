import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';
import type { InterceptedSession } from './connection-interceptor.ts';
import { closeUnassignedResponse } from './node-quirks/http1.ts';

/** How long idle connections stay open without a pre-stop time: a request may be in flight, and is served as the last one. */
const GRACE_SECONDS = 1;
const NONE: readonly ServerResponse[] = [];
/**
 * Pipelined requests of one connection. Node parses and queues them without a limit, and its time to discard the queue is
 * quadratic in its length.
 */
const MAX_PIPELINED = 128;

/**
 * The pending responses of a connection are stored on its socket. In a table of all connections thousands would come and go,
 * and each resized table would keep the responses of that moment alive until a full garbage collection.
 */
const RESPONSES = Symbol('pending responses');
const IGNORED = Symbol('ignored requests');
type TrackedSocket = Duplex & { [RESPONSES]?: ServerResponse[]; [IGNORED]?: number };
const getResponses = (socket: TrackedSocket): readonly ServerResponse[] => socket[RESPONSES] ?? NONE;

/** An HTTP/2 connection, as the tracker sees it. */
export interface Http2Session {
  /** Asks the client, while no request is pending, to use another connection, and serves what it still sends (RFC 9113 §6.8). */
  announceClose(): void;
  /** Closes the connection after its active streams. A client that begins others is asked to use another connection. */
  close(): void;
  /** Announces the end now, and closes the connection after its active streams. */
  closeBusy(): void;
}

/**
 * Open connections and their pending responses, for graceful shutdown: `server.close()` alone leaves a connection open whose
 * response already announced `keep-alive`.
 */
export class ConnectionTracker {
  readonly #isTls: boolean;
  /** TCP sockets, one per connection. */
  readonly #sockets = new Set<Socket>();
  /** The sockets that HTTP/1.1 runs on: TCP sockets, or the TLS sockets above them. */
  readonly #httpSockets = new Set<Socket>();
  readonly #http2Sessions = new Map<TLSSocket, Http2Session>();
  readonly #intercepted = new Map<Socket, InterceptedSession>();
  /** `announced`: each response closes its connection, idle connections are still open. `closing`: they are closed. */
  #phase: 'open' | 'announced' | 'closing' = 'open';
  #onEmpty: (() => void) | undefined;

  constructor(isTls: boolean) {
    this.#isTls = isTls;
  }

  add(socket: Socket): void {
    if (this.#sockets.has(socket)) return;
    this.#sockets.add(socket);
    if (!this.#isTls) this.#httpSockets.add(socket);
    socket.once('close', () => {
      this.#httpSockets.delete(socket);
      if (this.#sockets.delete(socket) && this.#sockets.size === 0) this.#onEmpty?.();
    });
  }

  addTls(socket: TLSSocket): void {
    this.#httpSockets.add(socket);
    socket.once('close', () => this.#httpSockets.delete(socket));
  }

  addHttp2(socket: TLSSocket, session: Http2Session): void {
    this.#http2Sessions.set(socket, session);
    socket.once('close', () => this.#http2Sessions.delete(socket));
    if (this.#phase === 'open') return;
    session.announceClose();
    if (this.#phase === 'closing') setTimeout(() => session.close(), GRACE_SECONDS * 1_000).unref();
  }

  markIntercepted(socket: Socket, session: InterceptedSession): void {
    this.#intercepted.set(socket, session);
    socket.once('close', () => this.#intercepted.delete(socket));
    if (this.#phase !== 'open') session.announceClose();
  }

  markReleased(socket: Socket): void {
    this.#intercepted.delete(socket);
  }

  /**
   * How many responses are pending before this one. Undefined: the request is ignored, because the connection is about to
   * close or has too many requests.
   */
  beginRequest(socket: Socket & TrackedSocket, response: ServerResponse): number | undefined {
    const responses = (socket[RESPONSES] ??= []);
    // RFC 9112 §9.6: requests after a response with `Connection: close`, or after our FIN, get no response, and are not processed.
    const isIgnored = isClosing(responses) || socket.writableEnded;
    if (isIgnored) socket[IGNORED] = (socket[IGNORED] ?? 0) + 1;
    if (responses.length + (socket[IGNORED] ?? 0) >= MAX_PIPELINED) socket.destroy();
    if (isIgnored || socket.destroyed) return undefined;
    if (this.#phase !== 'open') response.shouldKeepAlive = false;
    return responses.push(response) - 1;
  }

  endRequest(socket: Socket & TrackedSocket, response: ServerResponse): void {
    const responses = socket[RESPONSES];
    const at = responses?.indexOf(response) ?? -1;
    if (responses === undefined || at < 0) return;
    responses.splice(at, 1);
    if (responses.length > 0 || this.#phase === 'open') return;
    if (this.#phase === 'closing' || !response.shouldKeepAlive) socket.end();
  }

  /** Node's HTTP server has released a connection with pending responses (`upgrade`, `connect`). */
  markDetached(socket: Duplex): void {
    socket.once('close', () => {
      // A copy: each response that closes is removed from the list.
      for (const response of getResponses(socket).slice()) closeUnassignedResponse(response);
    });
  }

  isIdle(socket: Duplex): boolean {
    return getResponses(socket).length === 0;
  }

  /** Whether a response on this connection has announced `Connection: close`. */
  isClosing(socket: Duplex): boolean {
    return isClosing(getResponses(socket));
  }

  /** The response to the oldest pending request. */
  getActiveResponse(socket: Duplex): ServerResponse | undefined {
    return getResponses(socket)[0];
  }

  /** The response to the newest pending request. */
  getLastResponse(socket: Duplex): ServerResponse | undefined {
    return getResponses(socket).at(-1);
  }

  count(): number {
    return this.#sockets.size;
  }

  /** From now on each response closes its connection (RFC 9112 §9.6), and HTTP/2 clients get GOAWAY. */
  announceClose(): void {
    if (this.#phase !== 'open') return;
    this.#phase = 'announced';
    for (const socket of this.#httpSockets)
      for (const response of getResponses(socket))
        if (!response.headersSent) response.shouldKeepAlive = false;
    for (const session of this.#http2Sessions.values()) session.announceClose();
    for (const session of this.#intercepted.values()) session.announceClose();
  }

  /** Closes the connections without requests, and the others after their requests. */
  closeIdle(): void {
    this.announceClose();
    this.#phase = 'closing';
    for (const session of this.#http2Sessions.values()) session.close();
    for (const session of this.#intercepted.values()) session.close();
    for (const socket of this.#httpSockets)
      if (!this.#intercepted.has(socket) && getResponses(socket).length === 0) socket.end();
  }

  /** Returns whether all connections ended in time; the others are destroyed. */
  async drain(seconds: number): Promise<boolean> {
    const wasAnnounced = this.#phase !== 'open';
    this.announceClose();
    if (seconds > 0) {
      const ended = new Promise<void>((resolve) => {
        this.#onEmpty = resolve;
        if (this.#sockets.size === 0) resolve();
      });
      const half = sleep(seconds * 500, undefined, { ref: false });
      const limit = sleep(seconds * 1_000, undefined, { ref: false });
      if (!wasAnnounced) await Promise.race([ended, sleep(Math.min(GRACE_SECONDS, seconds / 2) * 1_000)]);
      this.closeIdle();
      await Promise.race([ended, half]);
      for (const session of this.#http2Sessions.values()) session.closeBusy();
      await Promise.race([ended, limit]);
    }
    const graceful = this.#sockets.size === 0;
    for (const socket of [...this.#httpSockets, ...this.#http2Sessions.keys(), ...this.#sockets])
      socket.destroy();
    return graceful;
  }
}

function isClosing(responses: readonly ServerResponse[]): boolean {
  for (const response of responses) if (response.headersSent && !response.shouldKeepAlive) return true;
  return false;
}
