import type { Socket } from 'node:net';
import type { Epoch } from '../domain/grant.ts';
import type { Downstream, RequestHandler } from '../http/downstream.ts';
import type { Logger } from '../observability/logger.ts';
import type { ConnectionAccount } from './client-accounts.ts';
import type { PeerList } from './client-address.ts';
import type { SessionTicketOptions } from './session-tickets.ts';

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

/** The settings of a secure context. All are needed at every change: Node keeps none of the previous context. */
export interface TlsContextOptions {
  /** The certificate chain, PEM. */
  readonly certificate: string;
  readonly key: string;
  readonly minVersion: 'TLSv1.2' | 'TLSv1.3';
  /** PEM of the issuers whose names are sent in the certificate request; a hint for clients only. */
  readonly issuers: readonly string[];
  /** If omitted, sessions are not resumed. */
  readonly tickets?: SessionTicketOptions | undefined;
}

export interface PublicListenerOptions {
  readonly host: string;
  readonly port: number;
  /** If omitted, plain HTTP, behind a proxy that terminates TLS. */
  readonly tls?: TlsContextOptions & {
    /** Whether to request a client certificate: always, never, or for these server names (SNI). */
    readonly askCertificate: 'always' | 'never' | readonly string[];
    readonly http2?: boolean;
  };
  readonly limits: ListenerLimits;
  readonly proxyProtocol: PeerList;
  readonly createHandler: CreateHandler;
  readonly onHandshake?: (resumed: boolean) => void;
  /** The handshake failed, or the connection limit is reached. */
  readonly onRejected?: (stage: 'handshake' | 'connection') => void;
  readonly log: Logger;
  readonly now: () => Epoch;
}

export interface ListenerLimits {
  /** Bytes of a header section. */
  readonly headers: number;
  /** Seconds to receive a header section. */
  readonly headerTimeout: number;
  readonly connections: number;
  /** Beyond this number, idle connections are closed soon. */
  readonly keptConnections?: number;
  /** Concurrent streams of an HTTP/2 connection. */
  readonly streams?: number;
}

export const HANDSHAKE_SECONDS = 5;
export const KEEP_ALIVE_SECONDS = 65;
/** A client that reads nothing of a response for this long is disconnected. */
export const STALLED_RESPONSE_SECONDS = 120;
export const MAX_STREAMS = 100;
