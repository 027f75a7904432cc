import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Call } from '../http/call.ts';
import { answerClientError, endWith, refusePlainly } from './client-error.ts';
import { waitsForContinue } from './early-answers.ts';
import { type AwaitedPart, probeHalfClosed } from './half-close.ts';
import { answerFor, isHandshake } from './handshake-call.ts';
import { KEEP_ALIVE_SECONDS, type ListenerLimits, STALLED_SECONDS } from './listener-options.ts';
import type { OpenConnections } from './open-connections.ts';

export interface ReceiveTerms {
  /** The client waits for `100 Continue`. */
  readonly waits?: boolean;
  readonly upgrade?: Call['upgrade'];
}

export interface Http1Options {
  readonly limits: ListenerLimits;
  readonly open: OpenConnections;
  readonly receive: (request: IncomingMessage, response: ServerResponse, terms?: ReceiveTerms) => void;
}

/** Node's HTTP/1.1 server, fed by hand with connections that others have accepted. */
export function createHttp1Server({ limits, open, receive }: Http1Options): Server {
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

  const server = createServer({
    maxHeaderSize: limits.headers,
    headersTimeout: limits.headerTimeout * 1_000,
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_SECONDS * 1_000,
    connectionsCheckingInterval: 1_000,
    // Without a length and without chunks there is no body: such a request has ended, and says nothing more.
    optimizeEmptyRequests: true,
    shouldUpgradeCallback: isHandshake,
    // Node would answer a request without Host by itself, say close, and still run what is pipelined behind it. We
    // refuse it where two Hosts are refused.
    requireHostHeader: false,
  });
  server.setTimeout(STALLED_SECONDS * 1_000, (socket: Socket) => {
    // Silence while a call is worked on is judged by whoever works on it.
    if (open.callOn(socket) === undefined || socket.writableLength > 0) socket.destroy();
  });
  // RFC 9112 §9.6: a client may end its side of the connection and go on reading.
  Object.assign(server, { httpAllowHalfOpen: true });
  function onEnd(this: Socket): void {
    const last = open.lastCallOn(this);
    if (last === undefined) return;
    if (!last.headersSent) last.shouldKeepAlive = false;
    probeHalfClosed(this, () => awaitedOf(open.callOn(this)));
  }
  server.on('connection', (socket: Socket) => {
    socket.allowHalfOpen = true;
    socket.on('end', onEnd);
  });
  /** A WebSocket, or a connection that is closed after this: both sides end together. */
  const endsTogether = (socket: Duplex): void => {
    socket.allowHalfOpen = false;
    socket.off('end', onEnd);
  };
  server.on('request', (request, response) => {
    // A request line may say HTTP/2.0 in the hands of this parser too; nobody may take it for what it says.
    if (request.httpVersionMajor === 1) receive(request, response);
    else otherVersion(request, response);
  });
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    // Node takes everything that ends in 100-continue for it; RFC 9110 §10.1.1 knows one value.
    if (waitsForContinue(request)) receive(request, response, { waits: true });
    else unexpected(request, response);
  });
  server.on('checkExpectation', unexpected);
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    endsTogether(socket);
    socket.on('error', () => socket.destroy());
    if (open.callOn(socket) === undefined)
      receive(request, answerFor(request, request.socket), { upgrade: { socket, head } });
    else outOfOrder(socket);
  });
  server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
    endsTogether(socket);
    socket.on('error', () => socket.destroy());
    if (open.callOn(socket) === undefined) endWith(socket, 405);
    else outOfOrder(socket);
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) =>
    answerClientError(error, socket, () => open.callOn(socket)),
  );
  // A server that is fed by hand does not listen, and only a listening one watches its time limits.
  server.emit('listening');
  return server;
}

function awaitedOf(response: ServerResponse | undefined): AwaitedPart {
  if (response === undefined || response.writableEnded) return 'other';
  if (!response.headersSent) return 'status-line';
  return response.chunkedEncoding && response.req.method !== 'HEAD' ? 'chunk' : 'other';
}
