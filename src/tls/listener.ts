import { constants } from 'node:crypto';
import { once } from 'node:events';
import type { Server as HttpServer, IncomingMessage, ServerResponse } from 'node:http';
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
import type { Logger } from '../observability/logger.ts';
import { clientAddress, NO_PEERS, requestId } from './caller.ts';
import { destroyIn } from './client-error.ts';
import { hostName } from './client-hello.ts';
import { certificateOf, rememberConnections } from './connections.ts';
import {
  codingFault,
  continueWhenRead,
  isOneOf,
  misdirected,
  namesOneOf,
  refuseCoding,
  tooLong,
  waitsForContinue,
} from './early-answers.ts';
import { createFront } from './front.ts';
import { createHttp1Server, type ReceiveTerms } from './http1-server.ts';
import { Http2Request } from './http2-request.ts';
import { createHttp2Server, type Http2Server } from './http2-server.ts';
import { ListenerCall } from './listener-call.ts';
import {
  HANDSHAKE_SECONDS,
  KEEP_ALIVE_SECONDS,
  MAX_FIELDS,
  type PublicListener,
  type PublicListenerOptions,
  REST_SECONDS,
  STALLED_SECONDS,
  STREAMS,
  type TlsMaterial,
  URL_LENGTH,
} from './listener-options.ts';
import { trackConnections } from './open-connections.ts';
import { sessionContext, TICKET_SECONDS, ticketKeys } from './session-tickets.ts';

export type { CallEnd, PublicListener, PublicListenerOptions, TlsMaterial } from './listener-options.ts';

const secureContext = (material: TlsMaterial, asked: boolean): SecureContextOptions => ({
  cert: material.certificate,
  key: material.key,
  minVersion: material.minVersion,
  honorCipherOrder: true,
  // CVE-2009-3555 and CVE-2011-1473: there is no use for renegotiation here.
  secureOptions:
    constants.SSL_OP_NO_RENEGOTIATION | (material.tickets === undefined ? constants.SSL_OP_NO_TICKET : 0),
  sessionTimeout: TICKET_SECONDS,
  sessionIdContext: sessionContext(material.tickets?.scope ?? '', asked),
  ...(material.issuers.length > 0 && { ca: [...material.issuers] }),
});

function destroyResponse(this: ServerResponse): void {
  this.destroy();
}

const destroySocket = (socket: Socket): void => void socket.destroy();
const ignore = (): void => {};

/**
 * Opens the door for clients: one port, HTTP/1.1 and HTTP/2 over TLS (or plain HTTP/1.1), each request handed on as a
 * `Call`. TLS, HTTP/1.1 and HTTP/2 are servers of their own: each connection is fed to the one its handshake has chosen.
 */
export async function openPublicListener(options: PublicListenerOptions): Promise<PublicListener> {
  const { tls, limits, log, firstReader } = options;
  const askedHosts =
    tls !== undefined && typeof tls.askCertificate !== 'string'
      ? new Set(tls.askCertificate.map(hostName))
      : undefined;
  const open = trackConnections(tls !== undefined);
  const connections = rememberConnections();

  const receive = (
    asked: boolean,
    request: IncomingMessage,
    response: ServerResponse,
    { waits = false, upgrade }: ReceiveTerms = {},
  ): void => {
    const multiplexed = request instanceof Http2Request;
    // RFC 9112 §9.6: nothing is done for what comes after an answer that says close.
    if (!multiplexed && open.isEnding(request.socket)) return;
    const connection = connections.of(request.socket, asked);
    const { peer } = connection;
    const { rawHeaders } = request;
    const trusted = connection.sourceUnknown ? NO_PEERS : options.trustedProxies;
    const call = new ListenerCall({
      request,
      response,
      id: requestId(peer, rawHeaders, trusted),
      arrivedAt: options.now(),
      clientAddress: clientAddress(peer, rawHeaders, trusted),
      connection,
      upgrade,
    });
    if (!multiplexed) open.begin(request.socket, response);
    options.onBegin?.();
    response.once('close', () => {
      if (!multiplexed) open.end(request.socket, response);
      // Broken off while others were answered before it: node would let the client wait for the rest for ever.
      if (!multiplexed && !response.writableFinished) response.once('socket', destroySocket);
      // The client may still be sending what nobody reads any more.
      if (!multiplexed && response.writableFinished && !request.complete)
        destroyIn(REST_SECONDS * 1_000, request.socket, request);
      options.onDone?.(call, {
        status: response.statusCode,
        seconds: options.now() - call.arrivedAt,
        // A connection that became a WebSocket has no whole answer.
        aborted: response.statusCode !== 101 && !response.writableFinished,
      });
    });
    response.on('error', destroyResponse);
    request.on('error', ignore);
    const head = multiplexed ? request.headSize : 0;
    if (request.rawHeaders.length > MAX_FIELDS * 2 || head > limits.headers) return tooLong(call, 431);
    if ((request.url ?? '').length > (limits.url ?? URL_LENGTH)) return tooLong(call, 414);
    if (!asked && askedHosts !== undefined && namesOneOf(request, askedHosts)) return misdirected(call);
    const coding = multiplexed ? undefined : codingFault(request);
    if (coding !== undefined) return refuseCoding(call, coding);
    if (waits) continueWhenRead(request, response);
    options.onCall(call);
  };

  const serveHttp2 = (asked: boolean): Http2Server =>
    createHttp2Server({
      limits: { ...limits, streams: limits.streams ?? STREAMS },
      idle: KEEP_ALIVE_SECONDS,
      stalled: STALLED_SECONDS,
      onRequest: (request, response) =>
        receive(asked, request, response, { waits: waitsForContinue(request) }),
      onSession: (socket, close) => open.multiplexed(socket, close),
      onAbuse: (peer, why) => log.warn('http2_connection_ended', { peer, why: `too many ${why}` }),
    });

  /** What a connection is handed to once it is accepted; with TLS, after its handshake. */
  const serve = (asked: boolean): NetServer => {
    const http1 = createHttp1Server({
      limits,
      open,
      receive: (request, response, terms) => receive(asked, request, response, terms),
    });
    parsers.push(http1);
    /** HTTP/1.1, by whoever reads it first. */
    const read = (socket: Socket): void => {
      // RFC 9112 §9.6: each side is ended by itself. Who reads the connection handles its `end`.
      socket.allowHalfOpen = true;
      if (firstReader === undefined) {
        http1.emit('connection', socket);
        return;
      }
      const connection = connections.of(socket, asked);
      const session = firstReader.take({
        socket,
        peer: connection.peer,
        sourceUnknown: connection.sourceUnknown,
        encrypted: tls !== undefined,
        certificate: () => certificateOf(socket, connection),
        misdirects: asked || askedHosts === undefined ? undefined : (host) => isOneOf(host, askedHosts),
        handOver() {
          open.returned(socket);
          http1.emit('connection', socket);
        },
      });
      open.lent(socket, session);
    };
    const greet = (socket: Socket): void => {
      open.add(socket);
      socket.on('error', () => socket.destroy());
    };
    if (tls === undefined)
      return createNetServer({ noDelay: true }, (socket) => {
        greet(socket);
        read(socket);
      });
    const http2 = tls.http2 === true ? serveHttp2(asked) : undefined;
    const server = createTlsServer({
      ...secureContext(tls, asked),
      noDelay: true,
      ALPNProtocols: http2 === undefined ? ['http/1.1'] : ['h2', 'http/1.1'],
      requestCert: asked,
      // A certificate is judged by our own rules at each call, never by the handshake.
      rejectUnauthorized: false,
      handshakeTimeout: HANDSHAKE_SECONDS * 1_000,
    });
    secured.set(server, asked);
    server.on('connection', greet);
    server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
      options.onTurnedAway?.('handshake');
      log.debug('handshake_failed', { code: error.code ?? error.message, peer: socket.remoteAddress });
      // A handshake that takes too long is told here and not ended by anybody else.
      socket.destroy();
    });
    server.on('secureConnection', (socket: TLSSocket) => {
      socket.on('error', () => socket.destroy());
      connections.of(socket, asked);
      options.onSecured?.(socket.isSessionReused());
      if (http2 !== undefined && socket.alpnProtocol === 'h2') return http2.take(socket);
      open.secured(socket);
      read(socket);
    });
    return server;
  };

  const parsers: HttpServer[] = [];
  /** The servers that end TLS, and whether they ask for a certificate. */
  const secured = new Map<TlsServer, boolean>();
  let ticketScope = tls?.tickets?.scope;
  const setTicketSecret = (secret: Buffer): void => {
    if (ticketScope === undefined) return;
    for (const [server, asked] of secured) {
      const keys = ticketKeys({ secret, scope: ticketScope }, asked);
      // Not as an option of the context: node would keep a copy of it, and use it again later.
      server.setTicketKeys(keys);
      keys.fill(0);
    }
  };
  const always = serve(tls?.askCertificate !== 'never');
  const silent = askedHosts === undefined ? undefined : serve(false);
  if (tls?.tickets !== undefined) setTicketSecret(tls.tickets.secret);
  const fronted = silent !== undefined || options.proxyProtocol.some;
  const door: NetServer = fronted
    ? createFront({
        proxyProtocol: options.proxyProtocol,
        tls: tls !== undefined,
        peekTls: silent !== undefined,
        seconds: HANDSHAKE_SECONDS,
        onRejected: (peer, why) => log.debug('connection_rejected', { peer, why }),
        onOpened: (socket, opening) => {
          connections.remember(socket, opening);
          const asks =
            opening.serverName === undefined ||
            askedHosts === undefined ||
            askedHosts.has(opening.serverName);
          (asks ? always : (silent ?? always)).emit('connection', socket);
        },
      })
    : always;
  if (fronted) door.on('connection', (socket: Socket) => open.add(socket));
  door.maxConnections = limits.connections;
  reportDrops(door, log, options.now);
  door.on('drop', () => options.onTurnedAway?.('connection'));

  door.listen({
    host: options.host,
    port: options.port,
    backlog: 1_024,
  });
  await once(door, 'listening');
  door.on('error', (error) => log.error('listener_failed', { error: error.message }));

  const finish = async (seconds: number): Promise<boolean> => {
    // Whoever has connected and was not accepted yet would be reset with the door: one look at it before it closes.
    await new Promise((resolve) => setImmediate(resolve));
    door.close();
    const gentle = await open.drain(seconds);
    // Only now: it would close idle connections under requests that are on their way.
    for (const server of parsers) server.close();
    return gentle;
  };
  return {
    port: (door.address() as AddressInfo).port,
    setSecureContext(material) {
      for (const [server, asked] of secured) server.setSecureContext(secureContext(material, asked));
      ticketScope = material.tickets?.scope;
      if (material.tickets !== undefined) setTicketSecret(material.tickets.secret);
    },
    setTicketSecret,
    connections: () => open.count(),
    drain: (seconds) => finish(seconds),
    close: async () => void (await finish(0)),
  };
}

/** Connections beyond the limit are closed by Node; say so, but not once for each. */
function reportDrops(door: NetServer, log: Logger, now: () => Epoch): void {
  let dropped = 0;
  let told = 0;
  door.on('drop', () => {
    dropped += 1;
    if (now() - told < 10) return;
    log.warn('connections_dropped', { count: dropped, limit: door.maxConnections });
    told = now();
    dropped = 0;
  });
}
