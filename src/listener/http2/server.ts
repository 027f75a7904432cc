import type { TLSSocket } from 'node:tls';
import { createDeadlines } from '../../lib/deadlines.ts';
import type { ConnectionAccount } from '../client-accounts.ts';
import type { Http2StreamInterceptor } from '../connection-interceptor.ts';
import type { Http2Session } from '../connection-tracker.ts';
import { Http2Request } from '../http2-request.ts';
import { Http2Response } from '../http2-response.ts';
import { Http2Connection, type Http2ConnectionOptions } from './connection.ts';
import { MessageStream } from './message-stream.ts';
import type { RequestFields } from './request-fields.ts';
import type { Http2Stream } from './stream.ts';

interface Http2ServerOptions
  extends Pick<Http2ConnectionOptions, 'limits' | 'idleSeconds' | 'stalledSeconds'> {
  readonly getAccount: (socket: TLSSocket) => ConnectionAccount;
  /** Serves streams in place of `onRequest`, unless it declines them. */
  readonly intercept: (socket: TLSSocket) => Http2StreamInterceptor | undefined;
  readonly onRequest: (request: Http2Request, response: Http2Response) => void;
  readonly onConnection: (socket: TLSSocket, session: Http2Session) => void;
  /** A connection was closed because its client exceeded a limit. */
  readonly onAbuse: (socket: TLSSocket, reason: string) => void;
  readonly onInternalError: (error: unknown) => void;
}

/** Returns a function that takes over a connection whose handshake selected HTTP/2. */
export function createHttp2Server(options: Http2ServerOptions): (socket: TLSSocket) => void {
  const { limits, idleSeconds, stalledSeconds, onRequest, onInternalError } = options;
  const deadlines = createDeadlines();
  return (socket) => {
    const serveMessage = (stream: Http2Stream): void => {
      const messageStream = new MessageStream(stream, onInternalError);
      stream.handler = messageStream;
      messageStream.on('error', () => {});
      const request = new Http2Request(messageStream, socket, toRequestHead(stream.fields));
      onRequest(request, new Http2Response(request, messageStream));
    };
    const interceptor = options.intercept(socket);
    const connection = new Http2Connection(socket, {
      limits,
      idleSeconds,
      stalledSeconds,
      deadlines,
      account: options.getAccount(socket),
      onRequest(stream) {
        if (interceptor?.serve(stream, serveMessage) !== true) serveMessage(stream);
      },
      onAbuse: (_connection, reason) => options.onAbuse(socket, reason),
      onInternalError,
    });
    options.onConnection(socket, connection);
  };
}

const toRequestHead = (fields: RequestFields): ConstructorParameters<typeof Http2Request>[2] => ({
  method: fields.method,
  path: fields.path,
  fields: fields.toRawHeaders(),
  size: fields.size,
});
