import { constants } from 'node:crypto';
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  type Server as HttpServer,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import {
  type AddressInfo,
  createServer as createNetServer,
  type Server as NetServer,
  type Socket,
} from 'node:net';
import type { Duplex } from 'node:stream';
import {
  createServer as createTlsServer,
  type SecureContextOptions,
  TLSSocket,
  Server as TlsServer,
} from 'node:tls';
import type { Epoch } from '../domain/epoch.ts';
import { sendJson } from '../http/answer.ts';
import type { Call, CallNote } from '../http/call.ts';
import type { Logger } from '../observability/logger.ts';
import { clientAddress, headerValues, type Peers, plainAddress, requestId } from './caller.ts';
import { answerClientError, destroyIn, endWith, refusePlainly } from './client-error.ts';
import { hostName } from './client-hello.ts';
import { createFront, type Opening } from './front.ts';
import { answerFor, isHandshake } from './handshake-call.ts';
import { Http2Request } from './http2-request.ts';
import { createHttp2Server, type Http2Server } from './http2-server.ts';
import { trackConnections } from './open-connections.ts';

/** What a secure context is made of. All of it is given again at every change: Node keeps nothing of the old one. */
export interface TlsMaterial {
  /** PEM: the chain, and its key. */
  readonly certificate: string;
  readonly key: string;
  readonly minVersion: 'TLSv1.2' | 'TLSv1.3';
  /** PEM of issuers whose names clients are told, so that they can pick a certificate. A hint; it decides nothing. */
  readonly issuers: readonly string[];
}

export interface PublicListenerOptions {
  readonly host: string;
  readonly port: number;
  /** Left out: plain HTTP, behind something that has ended TLS. */
  readonly tls?: TlsMaterial & {
    /** Where a client certificate is asked for: everywhere, nowhere, or under these host names (by SNI). */
    readonly askCertificate: 'always' | 'never' | readonly string[];
    /** Offer HTTP/2 beside HTTP/1.1 in the handshake. */
    readonly http2?: boolean;
  };
  readonly limits: {
    /** Bytes of a request head. */
    readonly headers: number;
    /** Characters of a request's target. */
    readonly url?: number;
    /** Seconds for a request head. */
    readonly headerTimeout: number;
    readonly connections: number;
    /** Requests at once on one HTTP/2 connection. */
    readonly streams?: number;
  };
  readonly proxyProtocol: Peers;
  readonly trustedProxies: Peers;
  readonly onCall: (call: Call) => void;
  /** After the answer was sent, or the caller went away. */
  readonly onDone?: (call: Call, end: CallEnd) => void;
  readonly log: Logger;
  readonly now: () => Epoch;
  /** Workers of one machine that bind the same port themselves. */
  readonly reusePort?: boolean;
}

export interface CallEnd {
  readonly status: number;
  readonly seconds: number;
  /** The caller went away before the answer was whole. */
  readonly aborted: boolean;
}

export interface PublicListener {
  readonly port: number;
  /** New connections use it; open ones go on with what they have. Throws when it cannot be used, and changes nothing. */
  setSecureContext(material: TlsMaterial): void;
  /** How many client connections are open. */
  connections(): number;
  /** Takes no new connections, lets running calls end for this long, then closes what is left. True: all ended by themselves. */
  drain(seconds: number): Promise<boolean>;
  /** At once. */
  close(): Promise<void>;
}

const HANDSHAKE_SECONDS = 5;
const KEEP_ALIVE_SECONDS = 65;
/** For the rest of a request that was answered before it was whole. */
const REST_SECONDS = 5;
/** An answer of which the other end has taken nothing for this long is not wanted any more. */
const STALLED_SECONDS = 120;
const MAX_FIELDS = 100;
const URL_LENGTH = 8_192;
const STREAMS = 100;

const secureContext = (material: TlsMaterial): SecureContextOptions => ({
  cert: material.certificate,
  key: material.key,
  minVersion: material.minVersion,
  honorCipherOrder: true,
  // CVE-2009-3555 and CVE-2011-1473: there is no use for renegotiation here.
  secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
  ...(material.issuers.length > 0 && { ca: [...material.issuers] }),
});

/** Where a connection comes from, as a balancer in front told. */
interface Source {
  readonly address: string;
}

/** What was found out about a connection when it was opened. */
interface Connection {
  readonly peer: string;
  /** Its TLS server asked for a certificate. */
  readonly asked: boolean;
  certificate?: Buffer | undefined;
  certificateRead: boolean;
}

/**
 * Opens the door for clients: one port, HTTP/1.1 and HTTP/2 over TLS (or plain HTTP/1.1), each request handed on as a
 * `Call`. TLS, HTTP/1.1 and HTTP/2 are servers of their own: each connection is fed to the one its handshake has chosen.
 */
export async function openPublicListener(options: PublicListenerOptions): Promise<PublicListener> {
  const { tls, limits, log } = options;
  const askedHosts =
    tls !== undefined && typeof tls.askCertificate !== 'string'
      ? new Set(tls.askCertificate.map(hostName))
      : undefined;
  const open = trackConnections(tls !== undefined);
  const sources = new Map<string, Source>();
  const known = new WeakMap<object, Connection>();

  const connectionOf = (socket: Socket, asked: boolean): Connection => {
    let connection = known.get(socket);
    if (connection === undefined) {
      const peer = sources.get(endsOf(socket))?.address ?? plainAddress(socket.remoteAddress ?? '');
      connection = { peer, asked, certificateRead: false };
      known.set(socket, connection);
    }
    return connection;
  };

  const callFor = (
    request: IncomingMessage,
    asked: boolean,
  ): Omit<Call, 'response' | 'upgrade' | 'note' | 'notes'> => {
    const connection = connectionOf(request.socket, asked);
    const { peer } = connection;
    return {
      request,
      id: requestId(peer, request.rawHeaders, options.trustedProxies),
      arrivedAt: options.now(),
      peer,
      clientAddress: clientAddress(peer, request.rawHeaders, options.trustedProxies),
      certificate: () => certificateOf(request.socket, connection),
    };
  };

  const receive = (
    asked: boolean,
    request: IncomingMessage,
    response: ServerResponse,
    { waits = false, upgrade }: { readonly waits?: boolean; readonly upgrade?: Call['upgrade'] } = {},
  ): void => {
    const multiplexed = request instanceof Http2Request;
    // RFC 9112 §9.6: nothing is done for what comes after an answer that says close.
    if (!multiplexed && open.isEnding(request.socket)) return;
    let noted: CallNote = {};
    const call: Call = {
      ...callFor(request, asked),
      response,
      ...(upgrade !== undefined && { upgrade }),
      note: (fields) => {
        noted = { ...noted, ...fields };
      },
      get notes() {
        return noted;
      },
    };
    if (!multiplexed) open.begin(request.socket, response);
    response.once('close', () => {
      if (!multiplexed) open.end(request.socket, response);
      options.onDone?.(call, {
        status: response.statusCode,
        seconds: options.now() - call.arrivedAt,
        // A connection that became a WebSocket has no whole answer.
        aborted: response.statusCode !== 101 && !response.writableFinished,
      });
    });
    if (!multiplexed)
      response.once('finish', () => {
        if (!request.complete) destroyIn(REST_SECONDS * 1_000, request.socket, request);
      });
    response.on('error', () => response.destroy());
    request.on('error', () => {});
    const head = multiplexed ? request.headSize : 0;
    if (request.rawHeaders.length > MAX_FIELDS * 2 || head > limits.headers) return tooLong(call, 431);
    if ((request.url ?? '').length > (limits.url ?? URL_LENGTH)) return tooLong(call, 414);
    if (!asked && askedHosts !== undefined && namesOneOf(request, askedHosts)) return misdirected(call);
    if (waits) continueWhenRead(request, response);
    options.onCall(call);
  };

  const refuseWith =
    (status: number) =>
    (request: IncomingMessage, response: ServerResponse): void => {
      if (open.isEnding(request.socket)) return;
      open.begin(request.socket, response);
      response.once('close', () => open.end(request.socket, response));
      refusePlainly(response, status);
    };
  /** Node has let go of the connection for a request that came behind a call still being answered. */
  const outOfOrder = (socket: Duplex): void => {
    open.letGo(socket);
    if (!open.isEnding(socket)) socket.destroy();
  };
  const unexpected = refuseWith(417);
  const otherVersion = refuseWith(505);

  const serveHttp1 = (asked: boolean): HttpServer => {
    const server = createHttpServer({
      maxHeaderSize: limits.headers,
      headersTimeout: limits.headerTimeout * 1_000,
      requestTimeout: 0,
      keepAliveTimeout: KEEP_ALIVE_SECONDS * 1_000,
      connectionsCheckingInterval: 1_000,
      shouldUpgradeCallback: isHandshake,
      // Node would answer a request without Host by itself, say close, and still run what is pipelined behind it. We
      // refuse it where two Hosts are refused.
      requireHostHeader: false,
    });
    server.setTimeout(STALLED_SECONDS * 1_000, (socket: Socket) => {
      // Silence while a call is worked on is judged by whoever works on it.
      if (open.callOn(socket) === undefined || socket.writableLength > 0) socket.destroy();
    });
    server.on('request', (request, response) => {
      // A request line may say HTTP/2.0 in the hands of this parser too; nobody may take it for what it says.
      if (request.httpVersionMajor === 1) receive(asked, request, response);
      else otherVersion(request, response);
    });
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      // Node takes everything that ends in 100-continue for it; RFC 9110 §10.1.1 knows one value.
      if (waitsForContinue(request)) receive(asked, request, response, { waits: true });
      else unexpected(request, response);
    });
    server.on('checkExpectation', unexpected);
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      socket.on('error', () => socket.destroy());
      if (open.callOn(socket) === undefined)
        receive(asked, request, answerFor(request, request.socket), { upgrade: { socket, head } });
      else outOfOrder(socket);
    });
    server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
      socket.on('error', () => socket.destroy());
      if (open.callOn(socket) === undefined) endWith(socket, 405);
      else outOfOrder(socket);
    });
    server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) =>
      answerClientError(error, socket, open.callOn(socket)),
    );
    // A server that is fed by hand does not listen, and only a listening one watches its time limits.
    server.emit('listening');
    return server;
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
    const http1 = serveHttp1(asked);
    parsers.push(http1);
    const greet = (socket: Socket): void => {
      open.add(socket);
      socket.on('error', () => socket.destroy());
    };
    if (tls === undefined)
      return createNetServer({ noDelay: true }, (socket) => {
        greet(socket);
        http1.emit('connection', socket);
      });
    const http2 = tls.http2 === true ? serveHttp2(asked) : undefined;
    const server = createTlsServer({
      ...secureContext(tls),
      noDelay: true,
      ALPNProtocols: http2 === undefined ? ['http/1.1'] : ['h2', 'http/1.1'],
      requestCert: asked,
      // A certificate is judged by our own rules at each call, never by the handshake.
      rejectUnauthorized: false,
      handshakeTimeout: HANDSHAKE_SECONDS * 1_000,
    });
    server.on('connection', greet);
    server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
      log.debug('handshake_failed', { code: error.code ?? error.message, peer: socket.remoteAddress });
      // A handshake that takes too long is told here and not ended by anybody else.
      socket.destroy();
    });
    server.on('secureConnection', (socket: TLSSocket) => {
      socket.on('error', () => socket.destroy());
      connectionOf(socket, asked);
      if (http2 !== undefined && socket.alpnProtocol === 'h2') return http2.take(socket);
      open.secured(socket);
      http1.emit('connection', socket);
    });
    return server;
  };

  const parsers: HttpServer[] = [];
  const always = serve(tls?.askCertificate !== 'never');
  const silent = askedHosts === undefined ? undefined : serve(false);
  const servers = silent === undefined ? [always] : [always, silent];
  const fronted = silent !== undefined || options.proxyProtocol.some;
  const door: NetServer = fronted
    ? createFront({
        proxyProtocol: options.proxyProtocol,
        tls: tls !== undefined,
        peekTls: silent !== undefined,
        seconds: HANDSHAKE_SECONDS,
        onRejected: (peer, why) => log.debug('connection_rejected', { peer, why }),
        onOpened: (socket, opening) => {
          remember(sources, socket, opening);
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

  door.listen({
    host: options.host,
    port: options.port,
    backlog: 1_024,
    reusePort: options.reusePort ?? false,
  });
  await once(door, 'listening');
  door.on('error', (error) => log.error('listener_failed', { error: error.message }));

  const finish = async (seconds: number): Promise<boolean> => {
    door.close();
    const gentle = await open.drain(seconds);
    // Only now: it would close idle connections under requests that are on their way.
    for (const server of parsers) server.close();
    return gentle;
  };
  return {
    port: (door.address() as AddressInfo).port,
    setSecureContext(material) {
      for (const server of servers)
        if (server instanceof TlsServer) server.setSecureContext(secureContext(material));
    },
    connections: () => open.count(),
    drain: (seconds) => finish(seconds),
    close: async () => void (await finish(0)),
  };
}

const endsOf = (socket: Socket): string =>
  `${socket.remoteAddress}|${socket.remotePort}|${socket.localAddress}`;

/** A TLS socket does not know the plain one below it, but it has the same two ends. */
function remember(sources: Map<string, Source>, socket: Socket, { source }: Opening): void {
  if (source === undefined) return;
  const ends = endsOf(socket);
  // An object of its own: a port can be in use again before the close of the connection before it is told.
  const told = { address: plainAddress(source) };
  sources.set(ends, told);
  socket.once('close', () => {
    if (sources.get(ends) === told) sources.delete(ends);
  });
}

/** The leaf the client proved possession of, read once per connection. */
function certificateOf(socket: Socket, connection: Connection): Buffer | undefined {
  if (!connection.certificateRead && socket instanceof TLSSocket && !socket.destroyed) {
    connection.certificate = connection.asked ? socket.getPeerX509Certificate()?.raw : undefined;
    connection.certificateRead = true;
  }
  return connection.certificate;
}

/**
 * `100 Continue` is said once, and at the latest when somebody begins to read the body: by then it was decided
 * that the caller may send one. Whoever wants it earlier calls `writeContinue`.
 */
function continueWhenRead(request: IncomingMessage, response: ServerResponse): void {
  const write = response.writeContinue.bind(response);
  let said = false;
  response.writeContinue = () => {
    if (said || response.headersSent) return;
    said = true;
    write();
  };
  request.once('resume', () => response.writeContinue());
}

const waitsForContinue = ({ headers }: IncomingMessage): boolean =>
  headers.expect?.toLowerCase() === '100-continue';

/** Does the request speak to one of these hosts, in any of the places where a host can stand? */
function namesOneOf(request: IncomingMessage, hosts: ReadonlySet<string>): boolean {
  const named = headerValues(request.rawHeaders, 'host');
  const [, authority] = /^[a-z][a-z0-9+.-]*:\/\/(?:[^/?#@]*@)?([^/?#]*)/i.exec(request.url ?? '') ?? [];
  if (authority !== undefined) named.push(authority);
  return named.some((host) => hosts.has(hostName(host.trim().replace(/:\d*$/, ''))));
}

/** RFC 9110 §15.5.20: this connection was opened under another name, with another policy. */
function misdirected({ response, id }: Call): void {
  response.shouldKeepAlive = false;
  sendJson(response, {
    status: 421,
    body: {
      error: 'misdirected_request',
      error_description: 'open a connection of its own for this host',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
}

/** RFC 9110 §15.5.15, RFC 6585 §5: more than anybody needs. */
function tooLong(call: Call, status: 414 | 431): void {
  const { response, id } = call;
  response.shouldKeepAlive = false;
  call.note({ decision: 'refused', reason: status === 414 ? 'target_too_long' : 'head_too_large' });
  sendJson(response, {
    status,
    body: {
      error: 'invalid_request',
      error_description:
        status === 414 ? 'the target is too long' : 'the header fields are too many or too large',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
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
