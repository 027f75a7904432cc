import { constants } from 'node:crypto';
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  type Server as HttpServer,
  type IncomingMessage,
  type ServerOptions,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer, Server as HttpsServer } from 'node:https';
import type { AddressInfo, Server as NetServer, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type SecureContextOptions, TLSSocket } from 'node:tls';
import type { Epoch } from '../domain/epoch.ts';
import { sendJson } from '../http/answer.ts';
import type { Call, CallNote } from '../http/call.ts';
import type { Logger } from '../observability/logger.ts';
import { clientAddress, headerValues, type Peers, plainAddress, requestId } from './caller.ts';
import { answerClientError, destroyIn, endWith, refusePlainly } from './client-error.ts';
import { hostName } from './client-hello.ts';
import { createFront, type Opening } from './front.ts';
import { answerFor, isHandshake } from './handshake-call.ts';
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
  };
  readonly limits: {
    /** Bytes of a request head. */
    readonly headers: number;
    /** Seconds for a request head. */
    readonly headerTimeout: number;
    readonly connections: number;
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

const secureContext = (material: TlsMaterial): SecureContextOptions => ({
  cert: material.certificate,
  key: material.key,
  minVersion: material.minVersion,
  honorCipherOrder: true,
  // CVE-2009-3555 and CVE-2011-1473: there is no use for renegotiation here.
  secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
  ...(material.issuers.length > 0 && { ca: [...material.issuers] }),
});

/** What was found out about a connection when it was opened. */
interface Connection {
  readonly peer: string;
  /** Its TLS server asked for a certificate. */
  readonly asked: boolean;
  certificate?: Buffer | undefined;
  certificateRead: boolean;
}

/** Opens the door for clients: one port, HTTP/1.1 over TLS (or plain), each request handed on as a `Call`. */
export async function openPublicListener(options: PublicListenerOptions): Promise<PublicListener> {
  const { tls, limits, log } = options;
  const askedHosts =
    tls !== undefined && typeof tls.askCertificate !== 'string'
      ? new Set(tls.askCertificate.map(hostName))
      : undefined;
  const open = trackConnections(tls !== undefined);
  const sources = new Map<string, string>();
  const known = new WeakMap<object, Connection>();

  const connectionOf = (socket: Socket, asked: boolean): Connection => {
    let connection = known.get(socket);
    if (connection === undefined) {
      const peer = sources.get(endsOf(socket)) ?? plainAddress(socket.remoteAddress ?? '');
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
    // RFC 9112 §9.6: nothing is done for what comes after an answer that says close.
    if (open.isEnding(request.socket)) return;
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
    open.begin(request.socket, response);
    response.once('close', () => {
      open.end(request.socket, response);
      options.onDone?.(call, {
        status: response.statusCode,
        seconds: options.now() - call.arrivedAt,
        // A connection that became a WebSocket has no whole answer.
        aborted: response.statusCode !== 101 && !response.writableFinished,
      });
    });
    response.once('finish', () => {
      if (!request.complete) destroyIn(REST_SECONDS * 1_000, request.socket, request);
    });
    response.on('error', () => response.destroy());
    request.on('error', () => {});
    if (!asked && askedHosts !== undefined && namesOneOf(request, askedHosts)) return misdirected(call);
    if (waits) continueWhenRead(request, response);
    options.onCall(call);
  };

  const unexpected = (request: IncomingMessage, response: ServerResponse): void => {
    if (open.isEnding(request.socket)) return;
    open.begin(request.socket, response);
    response.once('close', () => open.end(request.socket, response));
    refusePlainly(response, 417);
  };

  const serve = (asked: boolean): HttpServer | HttpsServer => {
    const http: ServerOptions = {
      maxHeaderSize: limits.headers,
      headersTimeout: limits.headerTimeout * 1_000,
      requestTimeout: 0,
      keepAliveTimeout: KEEP_ALIVE_SECONDS * 1_000,
      connectionsCheckingInterval: 1_000,
      noDelay: true,
      shouldUpgradeCallback: isHandshake,
    };
    const server =
      tls === undefined
        ? createHttpServer(http)
        : createHttpsServer({
            ...http,
            ...secureContext(tls),
            ALPNProtocols: ['http/1.1'],
            requestCert: asked,
            // A certificate is judged by our own rules at each call, never by the handshake.
            rejectUnauthorized: false,
            handshakeTimeout: HANDSHAKE_SECONDS * 1_000,
          });
    server.maxHeadersCount = 100;
    server.setTimeout(STALLED_SECONDS * 1_000, (socket: Socket) => {
      // Silence while a call is worked on is judged by whoever works on it.
      if (open.callOn(socket) === undefined || socket.writableLength > 0) socket.destroy();
    });
    server.on('request', (request, response) => receive(asked, request, response));
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      // Node takes everything that ends in 100-continue for it; RFC 9110 §10.1.1 knows one value.
      if (request.headers.expect?.toLowerCase() === '100-continue')
        receive(asked, request, response, { waits: true });
      else unexpected(request, response);
    });
    server.on('checkExpectation', unexpected);
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      socket.on('error', () => socket.destroy());
      // Behind a call that is still being answered there is no order between the two.
      if (open.callOn(socket) === undefined)
        receive(asked, request, answerFor(request, request.socket), { upgrade: { socket, head } });
      else if (!open.isEnding(socket)) socket.destroy();
    });
    server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
      socket.on('error', () => socket.destroy());
      endWith(socket, 405);
    });
    server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) =>
      answerClientError(error, socket, open.callOn(socket)),
    );
    server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
      log.debug('handshake_failed', { code: error.code ?? error.message, peer: socket.remoteAddress });
    });
    server.on('connection', (socket: Socket) => {
      open.add(socket);
      socket.on('error', () => socket.destroy());
    });
    if (tls !== undefined)
      server.on('secureConnection', (socket: TLSSocket) => {
        open.secured(socket);
        socket.on('error', () => socket.destroy());
        connectionOf(socket, asked);
      });
    return server;
  };

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
  if (fronted) {
    door.on('connection', (socket: Socket) => open.add(socket));
    // A server that is fed by hand does not listen, and only a listening one watches its time limits.
    for (const server of servers) server.emit('listening');
  }
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

  const stopListening = (): void => {
    door.close();
    for (const server of servers) if (server !== door) server.close();
  };
  return {
    port: (door.address() as AddressInfo).port,
    setSecureContext(material) {
      for (const server of servers)
        if (server instanceof HttpsServer) server.setSecureContext(secureContext(material));
    },
    connections: () => open.count(),
    async drain(seconds) {
      stopListening();
      return open.drain(seconds);
    },
    async close() {
      stopListening();
      await open.drain(0);
    },
  };
}

const endsOf = (socket: Socket): string =>
  `${socket.remoteAddress}|${socket.remotePort}|${socket.localAddress}`;

/** A TLS socket does not know the plain one below it, but it has the same two ends. */
function remember(sources: Map<string, string>, socket: Socket, { source }: Opening): void {
  if (source === undefined) return;
  const ends = endsOf(socket);
  sources.set(ends, plainAddress(source));
  socket.once('close', () => sources.delete(ends));
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
