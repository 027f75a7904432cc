import type { IncomingMessage, ServerResponse } from 'node:http';
import { DISCARD_MS } from '../http/discarded-body.ts';
import { EMPTY_PEER_LIST, resolveClientAddress, resolveRequestId } from './client-address.ts';
import { destroyAfter } from './client-error.ts';
import type { ConnectionRegistry } from './connection-registry.ts';
import type { ConnectionTracker } from './connection-tracker.ts';
import {
  findTransferCodingFault,
  namesAnyHost,
  rejectTransferCoding,
  sendContinueOnRead,
  sendMisdirected,
  sendOverloaded,
  sendTooLarge,
} from './early-responses.ts';
import type { ReceiveOptions } from './http1-server.ts';
import { Http2Request } from './http2-request.ts';
import { MAX_FIELDS, MAX_URL_LENGTH, type PublicListenerOptions } from './listener-options.ts';
import { ListenerRequestContext } from './listener-request-context.ts';
import { destroyConnectionOnAssign } from './node-quirks/http1.ts';
import { turnQueue } from './turn-queue.ts';

/** Node's streams and messages for one request, and a short response. */
const REQUEST_BYTES = 20_480;

interface RequestReceiverDeps {
  readonly options: PublicListenerOptions;
  readonly tracker: ConnectionTracker;
  readonly registry: ConnectionRegistry;
  /** Hosts whose requests need a connection on which a client certificate was requested. */
  readonly certificateHosts: ReadonlySet<string> | undefined;
}

/** Turns requests of Node's HTTP servers into request contexts, and rejects those that no handler should see. */
export class RequestReceiver {
  readonly #deps: RequestReceiverDeps;

  constructor(deps: RequestReceiverDeps) {
    this.#deps = deps;
  }

  receive(
    certificateRequested: boolean,
    request: IncomingMessage,
    response: ServerResponse,
    { awaitsContinue = false, upgrade }: ReceiveOptions = {},
  ): void {
    const { options, tracker, registry } = this.#deps;
    const isHttp2 = request instanceof Http2Request;
    const pendingBefore = isHttp2 ? 0 : tracker.beginRequest(request.socket, response);
    if (pendingBefore === undefined) return;
    const connection = registry.get(request.socket, certificateRequested);
    const mayGrow = isHttp2 || connection.account.mayGrow;
    const { peer } = connection;
    const { rawHeaders } = request;
    const trusted = connection.sourceUnknown ? EMPTY_PEER_LIST : options.trustedProxies;
    const id = resolveRequestId(peer, rawHeaders, trusted);
    const clientAddress = resolveClientAddress(peer, rawHeaders, trusted);
    const context = new ListenerRequestContext(
      { request, response, id, arrivedAt: options.now(), clientAddress, pendingBefore, upgrade },
      connection,
    );
    if (!isHttp2) context.hold(REQUEST_BYTES + getHeadSize(rawHeaders));
    options.onRequestStart?.();
    response.once('close', () => {
      context.release();
      if (!isHttp2) this.#endHttp1(request, response);
      options.onRequestEnd?.(context, {
        status: response.statusCode,
        seconds: options.now() - context.arrivedAt,
        // The response to a WebSocket handshake never finishes.
        aborted: response.statusCode !== 101 && !response.writableFinished,
      });
    });
    response.on('error', destroyResponse);
    request.on('error', ignore);
    if (this.#reject(context, certificateRequested)) return;
    if (!mayGrow) return sendOverloaded(context);
    const handle = (): void => {
      if (awaitsContinue) sendContinueOnRead(context);
      options.onRequest(context);
    };
    // HTTP/2 connections count their streams.
    if (isHttp2 || upgrade !== undefined || (!turnQueue.isOver && connection.deferred === 0)) {
      if (!isHttp2) turnQueue.count();
      return handle();
    }
    // RFC 9112 §9.3.2: pipelined requests behind it wait as well, and after a response that closes the connection none is processed.
    connection.deferred += 1;
    turnQueue.defer(connection.account.account, () => {
      const { socket } = request;
      connection.deferred -= 1;
      if (response.destroyed || socket.writableEnded || tracker.isClosing(socket)) return false;
      handle();
      return true;
    });
  }

  /** Sends an error response if no handler should see the request. */
  #reject(context: ListenerRequestContext, certificateRequested: boolean): boolean {
    const { request } = context;
    const { options, certificateHosts: hosts } = this.#deps;
    const { limits } = options;
    const isHttp2 = request instanceof Http2Request;
    const fault = isHttp2 ? undefined : findTransferCodingFault(request);
    if (request.rawHeaders.length > MAX_FIELDS * 2 || (isHttp2 && request.headSize > limits.headers))
      sendTooLarge(context, 431);
    else if ((request.url ?? '').length > (limits.url ?? MAX_URL_LENGTH)) sendTooLarge(context, 414);
    else if (!certificateRequested && hosts !== undefined && namesAnyHost(request, hosts))
      sendMisdirected(context);
    else if (fault !== undefined) rejectTransferCoding(context, fault);
    else return false;
    return true;
  }

  #endHttp1(request: IncomingMessage, response: ServerResponse): void {
    this.#deps.tracker.endRequest(request.socket, response);
    if (!response.writableFinished) destroyConnectionOnAssign(response);
    // The client may still be sending a body that is no longer read.
    else if (!request.complete) destroyAfter(DISCARD_MS, request.socket, request);
  }
}

function getHeadSize(rawHeaders: readonly string[]): number {
  let size = 0;
  for (const text of rawHeaders) size += text.length;
  return size;
}

function destroyResponse(this: ServerResponse): void {
  this.destroy();
}

const ignore = (): void => {};
