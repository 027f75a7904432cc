import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { TLSSocket, Server as TlsServer } from 'node:tls';
import { getEndpointsKey } from './connection-registry.ts';

const TEXT = 'This port expects TLS: use https:// in the URL.\n';
const RESPONSE = `HTTP/1.1 400 Bad Request\r\nConnection: close\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\nContent-Length: ${TEXT.length}\r\n\r\n${TEXT}`;

/**
 * Responds to a plain HTTP request on a port that expects TLS, instead of closing the connection without a response. OpenSSL recognizes the
 * request by its method.
 */
export function respondToPlainHttp(server: TlsServer): void {
  /** By endpoints: a TLS socket has no reference to the TCP socket below it, but the same addresses. */
  const handshakes = new Map<string, Socket>();
  server.on('connection', (socket: Duplex) => {
    // The TLS socket of a limited handshake has no addresses yet.
    if (!(socket instanceof Socket)) return;
    const key = getEndpointsKey(socket);
    handshakes.set(key, socket);
    socket.once('close', () => {
      // The port may be in use again before `close` is emitted.
      if (handshakes.get(key) === socket) handshakes.delete(key);
    });
  });
  server.on('secureConnection', (socket: TLSSocket) => void handshakes.delete(getEndpointsKey(socket)));
  server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
    const below = error.code === 'ERR_SSL_HTTP_REQUEST' ? handshakes.get(getEndpointsKey(socket)) : undefined;
    // Written at once: nothing else is in its send buffer. The listener then destroys both sockets.
    below?.end(RESPONSE);
  });
}
