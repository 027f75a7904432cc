import { constants } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, createServer as createNetServer, type Server as NetServer, type Socket } from 'node:net';
import {
  createSecureContext,
  createServer as createTlsServer,
  type SecureContextOptions,
  type TLSSocket,
  type Server as TlsServer,
} from 'node:tls';
import type { Epoch } from '../domain/grant.ts';
import { enableTcpKeepAlive } from '../lib/tcp-keep-alive.ts';
import { SERVER_TLS_POLICY } from '../lib/tls-policy.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { normalizeServerName } from './client-hello.ts';
import { type PrereadResult, prereadConnection } from './connection-preread.ts';
import { ConnectionRegistry, createCertificateReader } from './connection-registry.ts';
import { ConnectionTracker } from './connection-tracker.ts';
import { HandshakeGuard } from './handshake-guard.ts';
import { createHttp1Context, Http1Connection, type Http1Context } from './http1/connection.ts';
import { createHttp2Server } from './http2/request-stream.ts';
import {
  type ClientConnection,
  HANDSHAKE_SECONDS,
  MAX_STREAMS,
  type PublicListenerOptions,
  type TlsContextOptions,
} from './listener-options.ts';
import { stopReadingWhilePaused } from './node-quirks/sockets.ts';
import { deriveSessionIdContext, deriveTicketKeys, TICKET_SECONDS } from './session-tickets.ts';
import { turnQueue } from './turn-queue.ts';

export type { PublicListenerOptions, TlsContextOptions } from './listener-options.ts';

export async function openPublicListener(options: PublicListenerOptions): Promise<PublicListener> {
  const listener = new PublicListener(options);
  await listener.listen();
  return listener;
}

/**
 * The port for clients: HTTP/1.1 and HTTP/2 over TLS, or plain HTTP/1.1. A connection is passed
 * to the protocol that its handshake selected.
 */
export class PublicListener {
  readonly #options: PublicListenerOptions;
  readonly #tracker = new ConnectionTracker();
  readonly #registry: ConnectionRegistry;
  readonly #handshakes = new HandshakeGuard();
  /** The server names for which a client certificate is requested; undefined: all or none. */
  readonly #certificateHosts: ReadonlySet<string> | undefined;
  readonly #http1: Http1Context;
  /** Each with whether it requests a client certificate. */
  readonly #tlsServers = new Map<TlsServer, boolean>();
  /** The server that listens. */
  readonly #server: NetServer;
  #port = 0;
  #ticketScope: string | undefined;

  constructor(options: PublicListenerOptions) {
    const { tls } = options;
    this.#options = options;
    this.#http1 = createHttp1Context(options.limits);
    this.#registry = new ConnectionRegistry(options.limits.connections, options.limits.keptConnections);
    this.#certificateHosts =
      tls === undefined || typeof tls.askCertificate === 'string'
        ? undefined
        : new Set(tls.askCertificate.map(normalizeServerName));
    const requesting = this.#createProtocolServer(tls?.askCertificate !== 'never');
    const notRequesting = this.#certificateHosts && this.#createProtocolServer(false);
    this.#setTickets(tls?.tickets);
    this.#server = this.#createAcceptingServer(requesting, notRequesting);
  }

  async listen(): Promise<void> {
    const { host, port, log } = this.#options;
    this.#server.listen({ host, port, backlog: 1_024 });
    await once(this.#server, 'listening');
    this.#port = (this.#server.address() as AddressInfo).port;
    this.#server.on('error', (error) => log.error('listener_failed', { error: error.message }));
  }

  get port(): number {
    return this.#port;
  }

  /** Applies to new connections. Throws, and changes nothing, if the options cannot be used. */
  setSecureContext(options: TlsContextOptions): void {
    for (const [server, certificateRequested] of this.#tlsServers)
      server.setSecureContext(buildSecureContext(options, certificateRequested));
    this.#setTickets(options.tickets);
  }

  /** Tickets made with another secret are no longer accepted. */
  setTicketSecret(secret: Buffer): void {
    if (this.#ticketScope === undefined) return;
    for (const [server, certificateRequested] of this.#tlsServers) {
      const keys = deriveTicketKeys({ secret, scope: this.#ticketScope }, certificateRequested);
      // Not as the `ticketKeys` option: Node would keep a copy and apply it again with the next context.
      server.setTicketKeys(keys);
      keys.fill(0);
    }
  }

  countConnections(): number {
    return this.#tracker.count();
  }

  /** Serves all requests and connections as before, but every response closes its connection. */
  announceClose(): void {
    this.#tracker.announceClose();
  }

  /** Closes connections without requests. New ones are still accepted, for one request each. */
  closeIdle(): void {
    this.#tracker.closeIdle();
  }

  /** Stops accepting connections, waits for active requests, then destroys the rest. Returns whether all ended in time. */
  async drain(seconds: number): Promise<boolean> {
    // Connections in the accept queue would be reset: accept them first.
    await new Promise((resolve) => setImmediate(resolve));
    this.#server.close();
    return this.#tracker.drain(seconds);
  }

  async close(): Promise<void> {
    await this.drain(0);
  }

  #setTickets(tickets: TlsContextOptions['tickets']): void {
    this.#ticketScope = tickets?.scope;
    if (tickets !== undefined) this.setTicketSecret(tickets.secret);
  }

  /**
   * The server that accepts connections. It reads the PROXY header and the server name first, where they are needed, picks the
   * protocol server by server name, and passes the connection to it when it is the turn of its network.
   */
  #createAcceptingServer(requesting: NetServer, notRequesting: NetServer | undefined): NetServer {
    const { proxyProtocol, tls, log, limits, now, onRejected } = this.#options;
    const hosts = this.#certificateHosts;
    const reportDrop = createDropReporter(log, now, limits.connections);
    const onReady = (socket: Socket, preread: PrereadResult): void => {
      this.#registry.setSource(socket, preread);
      const { serverName } = preread;
      const isRequested = serverName === undefined || hosts === undefined || hosts.has(serverName);
      const server = isRequested ? requesting : (notRequesting ?? requesting);
      this.#inTurn(socket, () => {
        if (this.#tlsServers.get(server as TlsServer) === true) {
          const account = this.#registry.getAccount(socket);
          this.#handshakes.start(socket, account, (connection) => server.emit('connection', connection));
          return;
        }
        server.emit('connection', socket);
        // An HTTP server reads the socket as a stream; a TLS server takes the buffered bytes and then the handle.
        if (tls === undefined) socket.resume();
      });
    };
    const server = createNetServer({ noDelay: true, pauseOnConnect: true }, (socket) => {
      this.#track(socket);
      const outcome = this.#registry.accept(socket);
      if (outcome !== 'accepted') {
        onRejected?.('connection');
        reportDrop();
      }
      if (outcome === 'rejected') return void socket.destroy();
      prereadConnection(socket, {
        proxyProtocol,
        peekClientHello: notRequesting !== undefined,
        timeoutSeconds: HANDSHAKE_SECONDS,
        onRejected: (peer, reason) => log.debug('connection_rejected', { peer, why: reason }),
        onReady,
      });
    });
    return server;
  }

  /** Handshakes begin in turns by network, a few in each iteration of the event loop. */
  #inTurn(socket: Socket, start: () => void): void {
    if (this.#options.tls === undefined) return start();
    const begin = (): boolean => {
      if (!socket.destroyed) start();
      return !socket.destroyed;
    };
    turnQueue.defer(this.#registry.getAccount(socket), begin, HANDSHAKE_MS);
  }

  /** The server that an accepted connection is passed to: it runs the TLS handshake, if any, and selects the protocol. */
  #createProtocolServer(certificateRequested: boolean): NetServer {
    const { tls } = this.#options;
    return tls === undefined
      ? createNetServer((socket) => this.#acceptHttp1(socket, certificateRequested))
      : this.#createTlsServer(tls, certificateRequested);
  }

  #createTlsServer(tls: NonNullable<PublicListenerOptions['tls']>, certificateRequested: boolean): TlsServer {
    const { onRejected, onHandshake, log } = this.#options;
    const acceptHttp2 = tls.http2 === true ? this.#createHttp2Server(certificateRequested) : undefined;
    const server = createTlsServer({
      ...buildSecureContext(tls, certificateRequested),
      ALPNProtocols: acceptHttp2 === undefined ? ['http/1.1'] : ['h2', 'http/1.1'],
      requestCert: certificateRequested,
      // Client certificates are validated for each request, not in the handshake.
      rejectUnauthorized: false,
      handshakeTimeout: HANDSHAKE_SECONDS * 1_000,
    });
    this.#tlsServers.set(server, certificateRequested);
    server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
      // OpenSSL recognizes a request by its method. Written at once: nothing else is in the send buffer.
      if (error.code === 'ERR_SSL_HTTP_REQUEST') this.#registry.getTcpSocket(socket)?.end(PLAIN_HTTP_RESPONSE);
      onRejected?.('handshake');
      log.debug('tls_handshake_failed', { code: error.code ?? error.message, peer: socket.remoteAddress });
      // Node does not destroy the socket when the handshake times out.
      socket.destroy();
    });
    server.on('secureConnection', (socket: TLSSocket) => {
      stopReadingWhilePaused(socket);
      socket.on('error', () => socket.destroy());
      this.#handshakes.complete(socket);
      onHandshake?.(socket.isSessionReused());
      if (acceptHttp2 !== undefined && socket.alpnProtocol === 'h2') acceptHttp2(socket);
      else this.#acceptHttp1(socket, certificateRequested);
    });
    return server;
  }

  #createHttp2Server(certificateRequested: boolean): (socket: TLSSocket) => void {
    const { limits, log, createHandler } = this.#options;
    const accept = createHttp2Server({
      limits: { ...limits, streams: limits.streams ?? MAX_STREAMS },
      createHandler,
      onAbuse: ({ peer }, reason) => log.warn('http2_connection_closed', { peer, why: `too many ${reason}` }),
      onInternalError: (error) => log.error('internal_error', errorFields(error)),
    });
    return (socket) => this.#tracker.addSession(socket, accept(this.#describe(socket, certificateRequested)));
  }

  #track(socket: Socket): void {
    this.#tracker.add(socket);
    stopReadingWhilePaused(socket);
    enableTcpKeepAlive(socket);
    socket.on('error', () => socket.destroy());
  }

  #describe(socket: Socket, certificateRequested: boolean): ClientConnection {
    const hosts = this.#certificateHosts;
    const isCertificateHost = (host: string): boolean =>
      hosts?.has(normalizeServerName(host.trim().replace(/:\d*$/, ''))) === true;
    return {
      socket,
      ...this.#registry.describe(socket),
      encrypted: this.#options.tls !== undefined,
      certificate: certificateRequested ? createCertificateReader(socket) : () => undefined,
      isMisdirected: certificateRequested || hosts === undefined ? undefined : isCertificateHost,
    };
  }

  #acceptHttp1(socket: Socket, certificateRequested: boolean): void {
    const connection = this.#describe(socket, certificateRequested);
    this.#tracker.addSession(socket, new Http1Connection(this.#http1, connection, this.#options.createHandler));
  }
}

const PLAIN_HTTP_TEXT = 'This port expects TLS: use https:// in the URL.\n';
const PLAIN_HTTP_RESPONSE = `HTTP/1.1 400 Bad Request\r\nConnection: close\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\nContent-Length: ${PLAIN_HTTP_TEXT.length}\r\n\r\n${PLAIN_HTTP_TEXT}`;

/** Processor time of a full handshake. */
const HANDSHAKE_MS = 1.5;
const buildSecureContext = (
  { certificate, key, minVersion, issuers, tickets }: TlsContextOptions,
  certificateRequested: boolean,
): SecureContextOptions => ({
  cert: certificate,
  key,
  ...SERVER_TLS_POLICY,
  minVersion,
  secureOptions: SERVER_TLS_POLICY.secureOptions | (tickets === undefined ? constants.SSL_OP_NO_TICKET : 0),
  sessionTimeout: TICKET_SECONDS,
  sessionIdContext: deriveSessionIdContext(tickets?.scope ?? '', certificateRequested),
  ...(issuers.length > 0 && { ca: [...issuers] }),
});

/** Throws if a listener cannot use these options. */
export const checkTlsContext = (options: TlsContextOptions): void =>
  void createSecureContext(buildSecureContext(options, false));

const DROP_LOG_SECONDS = 10;

/** Logs connections that were closed because of the limit, at most once per interval. */
function createDropReporter(log: Logger, now: () => Epoch, limit: number): () => void {
  let dropped = 0;
  let reportedAt = 0;
  return () => {
    dropped += 1;
    if (now() - reportedAt < DROP_LOG_SECONDS) return;
    log.warn('connections_dropped', { count: dropped, limit });
    reportedAt = now();
    dropped = 0;
  };
}
