import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { DISCARD_MS, DISCARD_PAUSE_MS, MAX_DISCARDED_BYTES } from '../http/discarded-body.ts';

const STATUS: Readonly<Record<string, number>> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};
const LINGER_MS = 1_000;
const DISCARD_CHECK_MS = 100;

/**
 * Responds to a parser error and closes the connection: after a framing error the start of the next request is unknown.
 * Complete requests before it get their responses first (RFC 9112 §9.3.2). If the error is in a request whose response has
 * begun, the connection is only closed.
 */
export function handleClientError(
  error: NodeJS.ErrnoException,
  socket: Duplex,
  getActiveResponse: () => ServerResponse | undefined,
): void {
  const activeResponse = getActiveResponse();
  // RFC 9112 §9.6: data after a request with `Connection: close` is ignored; that request still gets its response.
  if (error.code === 'HPE_CLOSED_CONNECTION' && activeResponse !== undefined) return;
  // The parser reports an error for everything received until the connection is closed.
  if (lingering.has(socket)) return;
  // Input was lost, and the parser may continue after it.
  const isInputLost = error.code === 'HPE_PAUSED';
  if (error.code === 'ECONNRESET' || isInputLost || !socket.writable) {
    socket.destroy();
    return;
  }
  if (activeResponse?.req.complete === true) {
    if (awaitingResponse.has(socket)) return;
    awaitingResponse.add(socket);
    activeResponse.once('close', () => {
      awaitingResponse.delete(socket);
      handleClientError(error, socket, getActiveResponse);
    });
    return;
  }
  if (activeResponse?.headersSent !== true) return closeWithStatus(socket, STATUS[error.code ?? ''] ?? 400);
  // The response was sent from within the parser, which reports the error afterwards: destroying the socket would discard it.
  const limit = endedBySender.get(activeResponse);
  if (limit !== undefined) {
    if (activeResponse.req.socket.bytesRead > limit) socket.pause();
    return;
  }
  if (!activeResponse.writableEnded) return void socket.destroy();
  lingering.add(socket);
  activeResponse.once('close', () => {
    socket.end();
    destroyAfter(LINGER_MS, socket, socket);
  });
}

const awaitingResponse = new WeakSet<Duplex>();
/** Sockets that are about to close; further input is ignored. */
const lingering = new WeakSet<Duplex>();
/** With the number of bytes up to which the connection is read. */
const endedBySender = new WeakMap<ServerResponse, number>();

/**
 * For an unfinished response with `Connection: close` to an incomplete request: its sender ends it, whatever the parser reports. Until then, the rest
 * of the request is discarded.
 */
export const markEndedBySender = (response: ServerResponse): void =>
  void endedBySender.set(response, response.req.socket.bytesRead + MAX_DISCARDED_BYTES);

/** Sends a response without a body on a socket that no HTTP server owns any more, then closes it. */
export function closeWithStatus(socket: Duplex, status: number): void {
  lingering.add(socket);
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nConnection: close\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n`,
  );
  destroyAfter(LINGER_MS, socket, socket);
}

/** Closes the connection after a response to a request that the client is still sending: the rest of it is discarded. */
export function discardAndClose(socket: Socket, request: IncomingMessage, close: () => void): void {
  const startedAt = performance.now();
  const limit = socket.bytesRead + MAX_DISCARDED_BYTES;
  let { bytesRead } = socket;
  let readAt = startedAt;
  lingering.add(socket);
  request.resume();
  socket.end();
  // Node discards a body that no handler reads, so its parts cannot be counted.
  const timer = setInterval(() => {
    const now = performance.now();
    if (socket.bytesRead > bytesRead) readAt = now;
    ({ bytesRead } = socket);
    if (request.complete || now - startedAt >= DISCARD_MS || now - readAt >= DISCARD_PAUSE_MS) {
      clearInterval(timer);
      close();
    } else if (bytesRead > limit) socket.pause();
  }, DISCARD_CHECK_MS);
  socket.once('close', () => clearInterval(timer));
}

/** Destroys the socket unless `emitter` closes first. */
export function destroyAfter(
  ms: number,
  socket: Duplex,
  emitter: { once(event: 'close', listener: () => void): unknown },
): void {
  const timer = setTimeout(() => socket.destroy(), ms);
  emitter.once('close', () => clearTimeout(timer));
}

export function rejectAndClose(response: ServerResponse, status: number): void {
  response.on('error', () => response.destroy());
  response.shouldKeepAlive = false;
  response.writeHead(status, { connection: 'close', 'cache-control': 'no-store', 'content-length': 0 }).end();
}
