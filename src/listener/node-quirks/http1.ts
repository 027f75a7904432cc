import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/*
 * Behaviour of Node's HTTP/1.1 server (`lib/_http_server.js`, Node 26) for which there is no public API.
 * test/listener/node-quirks.test.ts fails when one of these is no longer needed or no longer works.
 */

/**
 * Lets clients half-close (RFC 9112 §9.6). `socketOnEnd` ends the socket at the client's FIN unless `httpAllowHalfOpen` is
 * set; Node has no option for it.
 */
export const allowHalfOpen = (server: Server): void =>
  void Object.assign(server, { httpAllowHalfOpen: true });

/**
 * Enforces `headersTimeout` on a server that gets its connections by `emit('connection')`. Node starts its connection checks
 * (`setupConnectionsTracking`) only on `listening`.
 */
export const startConnectionChecks = (server: Server): void => void server.emit('listening');

/**
 * Keeps the parser of a connection from being paused. While responses are queued, Node pauses the socket and its parser
 * (`onParserExecuteCommon`). TLS still delivers what it has decrypted, and the paused parser drops those bytes: a body would
 * lose a part in its middle. Pausing the socket alone is enough: less than one read follows.
 */
export function keepParserRunning(socket: Socket): void {
  const { parser } = socket as Socket & { readonly parser?: { pause(): void } };
  if (parser !== undefined) Object.defineProperty(parser, 'pause', { value: doNothing, configurable: true });
}

const doNothing = (): void => {};

/**
 * Node closes the connection after a final response without `100 Continue` (`_expect_continue` in `writeHead`), since the
 * client may or may not send its body. If the request is complete, or has no body, the connection can be kept, and a
 * pipelined request may already be in progress.
 */
export function keepAliveWithoutContinue(request: IncomingMessage, response: ServerResponse): void {
  Object.defineProperty(response, '_expect_continue', {
    get: () => !request.complete && declaresBody(request),
  });
}

const declaresBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0';

/**
 * Calls `close` instead of closing the socket after its last response. Node destroys it as soon as the response is written (`resOnFinish`). If the
 * client is still sending the request, the kernel then resets the connection, and the client may lose the response (RFC 9112 §9.6).
 */
export function replaceClose(socket: Socket, close: (destroySoon: () => void) => void): void {
  const destroySoon = socket.destroySoon.bind(socket);
  socket.destroySoon = () => close(destroySoon);
}

/**
 * Destroys a pipelined response that has no socket yet. After `upgrade` or `connect` Node no longer watches the socket, so
 * such a response never emits `close` when the connection closes.
 */
export function closeUnassignedResponse(response: ServerResponse): void {
  if (response.socket !== null) return;
  response.destroy();
  response.emit('close');
}

/**
 * Destroys the connection when it reaches a pipelined response that was destroyed before it had a socket. Node assigns the
 * socket to it (`resOnFinish`) and would wait for it to finish.
 */
export const destroyConnectionOnAssign = (response: ServerResponse): void =>
  void response.once('socket', destroySocket);

const destroySocket = (socket: Socket): void => void socket.destroy();
