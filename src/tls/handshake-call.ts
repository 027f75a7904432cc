import { type IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { destroyIn } from './client-error.ts';

/**
 * Is it the beginning of a WebSocket (RFC 6455 §4.1), and nothing else? Everything that only resembles one, or offers
 * another protocol beside it, stays an ordinary request and is judged as such.
 */
export function isHandshake({ method, httpVersion, headers }: IncomingMessage): boolean {
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
 * An answer for a handshake, so that one that is turned down is answered like any request. Node has given the
 * connection away by then: the answer is the last one on it, and whoever sends it closes it.
 */
export function answerFor(request: IncomingMessage, socket: Socket): ServerResponse {
  const response = new ServerResponse(request);
  response.shouldKeepAlive = false;
  response.assignSocket(socket);
  response.once('finish', () => {
    // Bytes that were never read would turn the close into a reset, which takes the answer with it.
    socket.resume();
    socket.end();
    destroyIn(LINGER_MS, socket, socket);
  });
  return response;
}
