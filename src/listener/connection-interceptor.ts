import type { Socket } from 'node:net';

/** Reads HTTP/1.1 connections in place of Node's HTTP server, until it falls back to that. */
export interface ConnectionInterceptor {
  intercept(connection: InterceptedConnection): InterceptedSession;
}

export interface InterceptedConnection {
  readonly socket: Socket;
  readonly peer: string;
  /** See `RequestContext`. */
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  /** The client's leaf certificate (DER), whose key it proved to hold in the handshake of this connection. */
  readonly certificate: () => Buffer | undefined;
  /** Whether requests for this host need another connection (RFC 9110 §15.5.20). */
  readonly isMisdirected: ((host: string) => boolean) | undefined;
  /** Passes the connection to Node's HTTP server. Unshift everything read from it first. */
  readonly fallBack: () => void;
}

/** An intercepted connection, as the listener sees it. */
export interface InterceptedSession {
  isBusy(): boolean;
  /** Closes the connection after the current request; unless `immediately`, also after one that is being received. */
  drain(immediately: boolean): void;
}
