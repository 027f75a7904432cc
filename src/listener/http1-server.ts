import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { RequestContext } from '../http/request-context.ts';
import { closeWithStatus, discardAndClose, handleClientError, rejectAndClose } from './client-error.ts';
import type { ConnectionTracker } from './connection-tracker.ts';
import { expectsContinue } from './early-responses.ts';
import { type AwaitedPart, probeHalfClosed } from './half-close.ts';
import { KEEP_ALIVE_SECONDS, type ListenerLimits, STALLED_RESPONSE_SECONDS } from './listener-options.ts';
import {
  allowHalfOpen,
  keepParserRunning,
  replaceClose,
  startConnectionChecks,
} from './node-quirks/http1.ts';
import { createHandshakeResponse, isWebSocketHandshake } from './websocket-handshake.ts';

export interface ReceiveOptions {
  readonly awaitsContinue?: boolean;
  readonly upgrade?: RequestContext['upgrade'];
}

interface Http1Options {
  readonly limits: ListenerLimits;
  readonly tracker: ConnectionTracker;
  readonly onRequest: (request: IncomingMessage, response: ServerResponse, options?: ReceiveOptions) => void;
}

/** Node's HTTP/1.1 server, for connections that other servers accept. */
export function createHttp1Server(options: Http1Options): Server {
  const { limits, tracker } = options;
  const server = createServer({
    maxHeaderSize: limits.headers,
    headersTimeout: limits.headerTimeout * 1_000,
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_SECONDS * 1_000,
    connectionsCheckingInterval: 1_000,
    // A request without Content-Length and Transfer-Encoding is complete after its header section.
    optimizeEmptyRequests: true,
    shouldUpgradeCallback: isWebSocketHandshake,
    // Node's own response to a request without Host says close, but pipelined requests after it would still run. The policy
    // rejects missing and repeated Host fields.
    requireHostHeader: false,
  });
  server.setTimeout(STALLED_RESPONSE_SECONDS * 1_000, (socket: Socket) => {
    // Upstream timeouts apply while a response is being produced.
    if (tracker.getActiveResponse(socket) === undefined || socket.writableLength > 0) socket.destroy();
  });
  allowHalfOpen(server);
  function onEnd(this: Socket): void {
    const lastResponse = tracker.getLastResponse(this);
    if (lastResponse === undefined) return;
    if (!lastResponse.headersSent) lastResponse.shouldKeepAlive = false;
    probeResponses(this, tracker);
  }
  server.on('connection', (socket: Socket) => {
    socket.allowHalfOpen = true;
    keepParserRunning(socket);
    replaceClose(socket, (destroySoon) => {
      const response = tracker.getLastResponse(socket);
      // Of pipelined requests that will get no response, nothing may be processed.
      const isOnly = response === tracker.getActiveResponse(socket);
      if (response === undefined || !isOnly || response.req.complete || socket.destroyed) destroySoon();
      else discardAndClose(socket, response.req, destroySoon);
    });
    socket.on('end', onEnd);
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) =>
    handleClientError(error, socket, () => tracker.getActiveResponse(socket)),
  );
  handleRequests(server, options);
  handleUpgrades(server, options, onEnd);
  startConnectionChecks(server);
  return server;
}

function handleRequests(server: Server, { tracker, onRequest }: Http1Options): void {
  const reject = (status: number, request: IncomingMessage, response: ServerResponse): void => {
    if (tracker.beginRequest(request.socket, response) === undefined) return;
    response.once('close', () => tracker.endRequest(request.socket, response));
    rejectAndClose(response, status);
  };
  server.on('request', (request, response) => {
    // The HTTP/1.1 parser accepts a request line that says HTTP/2.0.
    if (request.httpVersionMajor === 1) onRequest(request, response);
    else reject(505, request, response);
  });
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    // Node matches any value that contains 100-continue; RFC 9110 §10.1.1 defines only this one.
    if (expectsContinue(request)) onRequest(request, response, { awaitsContinue: true });
    else reject(417, request, response);
  });
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
    reject(417, request, response),
  );
}

function handleUpgrades(
  server: Server,
  { tracker, onRequest }: Http1Options,
  onEnd: (this: Socket) => void,
): void {
  /** Returns false for an upgrade behind a pending response: the connection is then closed. */
  const detach = (socket: Duplex): boolean => {
    socket.allowHalfOpen = false;
    socket.off('end', onEnd);
    socket.on('error', () => socket.destroy());
    if (tracker.getActiveResponse(socket) === undefined) return true;
    tracker.markDetached(socket);
    if (!tracker.isClosing(socket)) socket.destroy();
    return false;
  };
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    if (detach(socket))
      onRequest(request, createHandshakeResponse(request, request.socket), { upgrade: { socket, head } });
  });
  server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
    if (detach(socket)) closeWithStatus(socket, 405);
  });
}

/** Restarted for each pending response, so that pipelined requests are probed as often as the first one. */
function probeResponses(socket: Socket, tracker: ConnectionTracker): void {
  const response = tracker.getActiveResponse(socket);
  if (response === undefined || socket.destroyed) return;
  const stop = probeHalfClosed(socket, () => getAwaitedPart(response));
  response.once('close', () => {
    stop();
    probeResponses(socket, tracker);
  });
}

function getAwaitedPart(response: ServerResponse): AwaitedPart {
  if (response.writableEnded) return 'other';
  if (!response.headersSent) return 'status-line';
  return response.chunkedEncoding && response.req.method !== 'HEAD' ? 'chunk' : 'other';
}
