import { type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';

const STATUS: Readonly<Record<string, number>> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};
const LINGER_MS = 1_000;

/**
 * Answers what the HTTP parser could not read, and closes: after a framing error nobody knows where the next
 * request begins. When an answer is already under way, or the broken bytes belong to a later request than the
 * one being answered, there is only closing.
 */
export function answerClientError(
  error: NodeJS.ErrnoException,
  socket: Duplex,
  running: ServerResponse | undefined,
): void {
  // RFC 9112 §9.6: what follows a request that said close is not looked at, but that request is still owed its answer.
  if (error.code === 'HPE_CLOSED_CONNECTION' && running !== undefined) return;
  const silent = error.code === 'ECONNRESET' || !socket.writable;
  if (silent || (running !== undefined && (running.headersSent || running.req.complete))) {
    socket.destroy();
    return;
  }
  endWith(socket, STATUS[error.code ?? ''] ?? 400);
}

/** A short answer where HTTP has let go of the connection, and its end, also when the other side does not end it. */
export function endWith(socket: Duplex, status: number): void {
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nConnection: close\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n`,
  );
  destroyIn(LINGER_MS, socket, socket);
}

/** Ends a connection after a time, unless what is awaited has closed before. */
export function destroyIn(
  ms: number,
  socket: Duplex,
  awaited: { once(event: 'close', listener: () => void): unknown },
): void {
  const timer = setTimeout(() => socket.destroy(), ms);
  awaited.once('close', () => clearTimeout(timer));
}

/** A short answer without a body, and the end of the connection. */
export function refusePlainly(response: ServerResponse, status: number): void {
  response.on('error', () => response.destroy());
  response.shouldKeepAlive = false;
  response.writeHead(status, { connection: 'close', 'cache-control': 'no-store', 'content-length': 0 }).end();
}
