import type { Socket } from 'node:net';

/** Somebody who reads HTTP/1.1 connections before node's HTTP server does, and keeps those it understands. */
export interface FirstReader {
  take(connection: TakenConnection): Session;
}

export interface TakenConnection {
  readonly socket: Socket;
  readonly peer: string;
  /** See `Call`. */
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  /** The leaf certificate the client proved possession of in this connection's handshake, DER. */
  readonly certificate: () => Buffer | undefined;
  /** Must a request for this host come on another connection (RFC 9110 §15.5.20)? */
  readonly misdirects: ((host: string) => boolean) | undefined;
  /** Gives the connection to node's HTTP server. Everything that was read of it has been put back before. */
  readonly handOver: () => void;
}

/** What the listener must know about a connection that somebody else reads. */
export interface Session {
  isBusy(): boolean;
  /** What runs, or what is on its way, is the last; `now`: nothing that is on its way is waited for. */
  drain(now: boolean): void;
}
