import type { Socket } from 'node:net';
import type { ConnectionAccount } from './client-accounts.ts';
import type { Http2Stream } from './http2/stream.ts';

/** Serves requests in place of the handler that gets `IncomingMessage` and `ServerResponse`. */
export interface ConnectionInterceptor {
  /** Reads an HTTP/1.1 connection in place of Node's HTTP server, until it falls back to that. */
  intercept(connection: InterceptedConnection): InterceptedSession;
  interceptHttp2(connection: ClientConnection): Http2StreamInterceptor;
}

/** Serves streams of one HTTP/2 connection. */
export interface Http2StreamInterceptor {
  /**
   * Sets the handler of the stream, and returns whether it did. It can still pass the stream on to `fallBack`, with all that
   * was received, as long as it has written nothing.
   */
  serve(stream: Http2Stream, fallBack: (stream: Http2Stream) => void): boolean;
}

export interface ClientConnection {
  readonly socket: Socket;
  readonly peer: string;
  /** See `RequestContext`. */
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  readonly account: ConnectionAccount;
  /** The client's leaf certificate (DER), whose key it proved to hold in the handshake of this connection. */
  readonly certificate: () => Buffer | undefined;
  /** Whether requests for this host need another connection (RFC 9110 §15.5.20). */
  readonly isMisdirected: ((host: string) => boolean) | undefined;
}

export interface InterceptedConnection extends ClientConnection {
  /** Passes the connection to Node's HTTP server. Unshift everything read from it first. */
  readonly fallBack: () => void;
}

/** An intercepted connection, as the listener sees it. */
export interface InterceptedSession {
  /** The next response is the last one. */
  announceClose(): void;
  /** Closes the connection now if it is idle, and otherwise after the current request. */
  close(): void;
}
