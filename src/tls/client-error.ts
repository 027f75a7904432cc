import { type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';

const STATUS: Readonly<Record<string, number>> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};
const LINGER_MS = 1_000;

/**
 * Answers what the HTTP parser could not read, and closes: after a framing error nobody knows where the next request
 * begins. Those in front of it, which were read whole, get their answers first (RFC 9112 §9.3.2). What broke off while its
 * own answer was under way is only closed.
 */
export function answerClientError(
  error: NodeJS.ErrnoException,
  socket: Duplex,
  callOn: () => ServerResponse | undefined,
): void {
  const running = callOn();
  // RFC 9112 §9.6: what follows a request that said close is not looked at, but that request is still owed its answer.
  if (error.code === 'HPE_CLOSED_CONNECTION' && running !== undefined) return;
  // The parser rejects everything that still arrives until the connection is closed.
  if (lingering.has(socket)) return;
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  if (running?.req.complete === true) {
    // The parser complains again about everything that still comes.
    if (answeringFirst.has(socket)) return;
    answeringFirst.add(socket);
    running.once('close', () => {
      answeringFirst.delete(socket);
      answerClientError(error, socket, callOn);
    });
    return;
  }
  if (running?.headersSent !== true) return endWith(socket, STATUS[error.code ?? ''] ?? 400);
  // A response sent from within the parser, which reports the error afterwards: destroying the socket would discard it.
  if (endedByItsSender.has(running)) return;
  if (!running.writableEnded) return void socket.destroy();
  lingering.add(socket);
  running.once('close', () => {
    socket.end();
    destroyIn(LINGER_MS, socket, socket);
  });
}

const answeringFirst = new WeakSet<Duplex>();
/** Sockets that are closed shortly; nothing more is read from them. */
const lingering = new WeakSet<Duplex>();
const endedByItsSender = new WeakSet<ServerResponse>();

/**
 * For a response that says `Connection: close` and is complete but for its end, while the request is not: its sender ends
 * it and so closes the connection, whatever the parser makes of the rest of the request.
 */
export const endsItself = (response: ServerResponse): void => void endedByItsSender.add(response);

/** A short answer where HTTP has let go of the connection, and its end, also when the other side does not end it. */
export function endWith(socket: Duplex, status: number): void {
  lingering.add(socket);
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
