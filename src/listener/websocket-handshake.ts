import { type IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { destroyAfter } from './client-error.ts';

/** RFC 6455 §4.1. Anything else, such as an offer of several protocols, is handled as an ordinary request. */
export function isWebSocketHandshake({ method, httpVersion, headers }: IncomingMessage): boolean {
  const { upgrade, 'content-length': length = '0', 'transfer-encoding': coding } = headers;
  return (
    upgrade?.toLowerCase() === 'websocket' &&
    method === 'GET' &&
    httpVersion === '1.1' &&
    length === '0' &&
    coding === undefined
  );
}

const LINGER_MS = 1_000;

/**
 * A response for a handshake that is rejected. Node has released the connection by then, so this is the last response on it,
 * and its end closes it.
 */
export function createHandshakeResponse(request: IncomingMessage, socket: Socket): ServerResponse {
  const response = new ServerResponse(request);
  response.shouldKeepAlive = false;
  response.assignSocket(socket);
  // Node's server no longer does this. A response that waits for it would never continue.
  socket.on('drain', () => response.emit('drain'));
  response.once('finish', () => {
    // Closing with unread data would reset the connection and discard the response.
    socket.resume();
    socket.end();
    destroyAfter(LINGER_MS, socket, socket);
  });
  return response;
}
