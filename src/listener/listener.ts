import { constants } from 'node:crypto';
import { once } from 'node:events';
import type { Server as HttpServer } from 'node:http';
import {
  type AddressInfo,
  createServer as createNetServer,
  type Server as NetServer,
  type Socket,
} from 'node:net';
import {
  createServer as createTlsServer,
  type SecureContextOptions,
  type TLSSocket,
  type Server as TlsServer,
} from 'node:tls';
import type { Epoch } from '../domain/epoch.ts';
import { enableTcpKeepAlive } from '../lib/tcp-keep-alive.ts';
import { SERVER_TLS_POLICY } from '../lib/tls-policy.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { normalizeServerName } from './client-hello.ts';
import type { ClientConnection } from './connection-interceptor.ts';
import { createPrereadServer } from './connection-preread.ts';
import { ConnectionRegistry, getPeerCertificate } from './connection-registry.ts';
import { ConnectionTracker, type Http2Session } from './connection-tracker.ts';
import { expectsContinue, includesHost } from './early-responses.ts';
import { createHttp1Server } from './http1-server.ts';
import { createHttp2Server } from './http2/server.ts';
import type { Http2Request } from './http2-request.ts';
import type { Http2Response } from './http2-response.ts';
import {
  HANDSHAKE_SECONDS,
  KEEP_ALIVE_SECONDS,
  MAX_STREAMS,
  type PublicListenerOptions,
  STALLED_RESPONSE_SECONDS,
  type TlsContextOptions,
} from './listener-options.ts';
import { createNodeHttp2Server } from './node-http2-server.ts';
import { respondToPlainHttp } from './plain-http-response.ts';
import { RequestReceiver } from './request-receiver.ts';
import { deriveSessionIdContext, deriveTicketKeys, TICKET_SECONDS } from './session-tickets.ts';

export type { PublicListenerOptions, RequestOutcome, TlsContextOptions } from './listener-options.ts';

export async function openPublicListener(options: PublicListenerOptions): Promise<PublicListener> {
  const listener = new PublicListener(options);
  await listener.listen();
  return listener;
}

/**
 * The port for clients: HTTP/1.1 and HTTP/2 over TLS, or plain HTTP/1.1. TLS, HTTP/1.1 and HTTP/2 have separate servers; a
 * connection is passed to the one that its handshake selected.
 */
export class PublicListener {
  readonly #options: PublicListenerOptions;
  readonly #tracker: ConnectionTracker;
  readonly #registry = new ConnectionRegistry();
  readonly #receiver: RequestReceiver;
  /** The server names for which a client certificate is requested; undefined: all or none. */
  readonly #certificateHosts: ReadonlySet<string> | undefined;
  readonly #http1Servers: HttpServer[] = [];
  /** Each with whether it requests a client certificate. */
  readonly #tlsServers = new Map<TlsServer, boolean>();
  /** The server that listens. */
  readonly #server: NetServer;
  #port = 0;
  #ticketScope: string | undefined;

  constructor(options: PublicListenerOptions) {
    const { tls } = options;
    this.#options = options;
    this.#tracker = new ConnectionTracker(tls !== undefined);
    this.#certificateHosts =
      tls === undefined || typeof tls.askCertificate === 'string'
        ? undefined
        : new Set(tls.askCertificate.map(normalizeServerName));
    this.#receiver = new RequestReceiver({
      options,
      tracker: this.#tracker,
      registry: this.#registry,
      certificateHosts: this.#certificateHosts,
    });
    const requesting = this.#createProtocolServer(tls?.askCertificate !== 'never');
    const notRequesting = this.#certificateHosts && this.#createProtocolServer(false);
    this.#setTickets(tls?.tickets);
    this.#server =
      notRequesting !== undefined || options.proxyProtocol.hasEntries
        ? this.#createPrereadServer(requesting, notRequesting)
        : requesting;
    this.#server.maxConnections = options.limits.connections;
    reportDrops(this.#server, options.log, options.now);
    this.#server.on('drop', () => options.onRejected?.('connection'));
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
    const graceful = await this.#tracker.drain(seconds);
    // Not earlier: it closes idle connections on which a request may be in flight.
    for (const server of this.#http1Servers) server.close();
    return graceful;
  }

  async close(): Promise<void> {
    await this.drain(0);
  }

  #setTickets(tickets: TlsContextOptions['tickets']): void {
    this.#ticketScope = tickets?.scope;
    if (tickets !== undefined) this.setTicketSecret(tickets.secret);
  }

  /** Reads the PROXY header and the server name first, and picks the protocol server by server name. */
  #createPrereadServer(requesting: NetServer, notRequesting: NetServer | undefined): NetServer {
    const { proxyProtocol, tls, log } = this.#options;
    const hosts = this.#certificateHosts;
    const server = createPrereadServer({
      proxyProtocol,
      tls: tls !== undefined,
      peekClientHello: notRequesting !== undefined,
      timeoutSeconds: HANDSHAKE_SECONDS,
      onRejected: (peer, reason) => log.debug('connection_rejected', { peer, why: reason }),
      onReady: (socket, preread) => {
        this.#registry.setSource(socket, preread);
        const { serverName } = preread;
        const isRequested = serverName === undefined || hosts === undefined || hosts.has(serverName);
        (isRequested ? requesting : (notRequesting ?? requesting)).emit('connection', socket);
      },
    });
    return server.on('connection', (socket: Socket) => this.#tracker.add(socket));
  }

  /** The server that an accepted connection is passed to: it runs the TLS handshake, if any, and selects the protocol. */
  #createProtocolServer(certificateRequested: boolean): NetServer {
    const { tls, limits } = this.#options;
    const http1 = createHttp1Server({
      limits,
      tracker: this.#tracker,
      onRequest: (request, response, options) =>
        this.#receiver.receive(certificateRequested, request, response, options),
    });
    this.#http1Servers.push(http1);
    return tls === undefined
      ? createNetServer({ noDelay: true }, (socket) => {
          this.#track(socket);
          this.#acceptHttp1(socket, http1, certificateRequested);
        })
      : this.#createTlsServer(tls, http1, certificateRequested);
  }

  #createTlsServer(
    tls: NonNullable<PublicListenerOptions['tls']>,
    http1: HttpServer,
    certificateRequested: boolean,
  ): TlsServer {
    const { onRejected, onHandshake, log } = this.#options;
    const acceptHttp2 = this.#createHttp2Server(tls.http2 ?? false, certificateRequested);
    const server = createTlsServer({
      ...buildSecureContext(tls, certificateRequested),
      noDelay: true,
      ALPNProtocols: acceptHttp2 === undefined ? ['http/1.1'] : ['h2', 'http/1.1'],
      requestCert: certificateRequested,
      // Client certificates are validated for each request, not in the handshake.
      rejectUnauthorized: false,
      handshakeTimeout: HANDSHAKE_SECONDS * 1_000,
    });
    this.#tlsServers.set(server, certificateRequested);
    server.on('connection', (socket: Socket) => this.#track(socket));
    respondToPlainHttp(server);
    server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
      onRejected?.('handshake');
      log.debug('tls_handshake_failed', { code: error.code ?? error.message, peer: socket.remoteAddress });
      // Node does not destroy the socket when the handshake times out.
      socket.destroy();
    });
    server.on('secureConnection', (socket: TLSSocket) => {
      socket.on('error', () => socket.destroy());
      this.#registry.get(socket, certificateRequested);
      onHandshake?.(socket.isSessionReused());
      if (acceptHttp2 !== undefined && socket.alpnProtocol === 'h2') return acceptHttp2(socket);
      this.#tracker.addTls(socket);
      this.#acceptHttp1(socket, http1, certificateRequested);
    });
    return server;
  }

  #createHttp2Server(
    kind: boolean | 'node',
    certificateRequested: boolean,
  ): ((socket: TLSSocket) => void) | undefined {
    if (kind === false) return undefined;
    const { limits, interceptor, log } = this.#options;
    const options = {
      limits: { ...limits, streams: limits.streams ?? MAX_STREAMS },
      idleSeconds: KEEP_ALIVE_SECONDS,
      stalledSeconds: STALLED_RESPONSE_SECONDS,
      onRequest: (request: Http2Request, response: Http2Response) =>
        this.#receiver.receive(certificateRequested, request, response, {
          awaitsContinue: expectsContinue(request),
        }),
      onConnection: (socket: TLSSocket, session: Http2Session) => this.#tracker.addHttp2(socket, session),
      onAbuse: (socket: TLSSocket, reason: string) => {
        const { peer } = this.#registry.get(socket, certificateRequested);
        log.warn('http2_connection_closed', { peer, why: `too many ${reason}` });
      },
    };
    if (kind === 'node') return createNodeHttp2Server(options);
    return createHttp2Server({
      ...options,
      intercept: (socket) => interceptor?.interceptHttp2(this.#describe(socket, certificateRequested)),
      onInternalError: (error) => log.error('internal_error', errorFields(error)),
    });
  }

  #track(socket: Socket): void {
    this.#tracker.add(socket);
    enableTcpKeepAlive(socket);
    socket.on('error', () => socket.destroy());
  }

  #describe(socket: Socket, certificateRequested: boolean): ClientConnection {
    const connection = this.#registry.get(socket, certificateRequested);
    const hosts = this.#certificateHosts;
    return {
      socket,
      peer: connection.peer,
      sourceUnknown: connection.sourceUnknown,
      encrypted: this.#options.tls !== undefined,
      certificate: () => getPeerCertificate(socket, connection),
      isMisdirected:
        certificateRequested || hosts === undefined ? undefined : (host) => includesHost(host, hosts),
    };
  }

  /** Passes the connection to the interceptor, if any, and otherwise to Node's HTTP server. */
  #acceptHttp1(socket: Socket, http1: HttpServer, certificateRequested: boolean): void {
    const { interceptor } = this.#options;
    // RFC 9112 §9.6: the reader of the connection handles a half-close.
    socket.allowHalfOpen = true;
    if (interceptor === undefined) {
      http1.emit('connection', socket);
      return;
    }
    const session = interceptor.intercept({
      ...this.#describe(socket, certificateRequested),
      fallBack: () => {
        this.#tracker.markReleased(socket);
        http1.emit('connection', socket);
      },
    });
    this.#tracker.markIntercepted(socket, session);
  }
}

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

const DROP_LOG_SECONDS = 10;

/** Logs connections that Node closes beyond `maxConnections`, at most once per interval. */
function reportDrops(server: NetServer, log: Logger, now: () => Epoch): void {
  let dropped = 0;
  let reportedAt = 0;
  server.on('drop', () => {
    dropped += 1;
    if (now() - reportedAt < DROP_LOG_SECONDS) return;
    log.warn('connections_dropped', { count: dropped, limit: server.maxConnections });
    reportedAt = now();
    dropped = 0;
  });
}
