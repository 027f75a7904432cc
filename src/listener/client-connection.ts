import type { Socket } from 'node:net';
import type { Downstream, RequestHandler } from '../http/downstream.ts';
import type { ConnectionAccount } from './client-accounts.ts';

/** What all requests of one client connection share. */
export interface ClientConnection {
  readonly socket: Socket;
  readonly peer: string;
  /** `peer` is a load balancer whose PROXY header names no source: forwarded headers are not trusted. */
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  readonly account: ConnectionAccount;
  /** The client's leaf certificate (DER), whose key it proved to hold in the handshake of this connection. */
  readonly certificate: () => Buffer | undefined;
  /** Whether requests for this host need another connection (RFC 9110 §15.5.20); undefined: none does. */
  readonly isMisdirected: ((host: string) => boolean) | undefined;
}

/** Serves the requests of a connection; one handler for HTTP/1.1, one for each concurrent stream of HTTP/2. */
export type CreateHandler = (connection: ClientConnection, downstream: Downstream) => RequestHandler;
