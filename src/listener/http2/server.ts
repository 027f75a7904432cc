import { createDeadlines } from '../../lib/deadlines.ts';
import type { ClientConnection, CreateHandler } from '../client-connection.ts';
import { HeadCache } from '../head-cache.ts';
import { Http2Connection, type Http2ConnectionOptions } from './connection.ts';
import { RequestStream } from './request-stream.ts';
import type { Http2Stream } from './stream.ts';

interface Http2ServerOptions extends Pick<Http2ConnectionOptions, 'limits' | 'onInternalError'> {
  readonly createHandler: CreateHandler;
  /** A connection was closed because its client exceeded a limit. */
  readonly onAbuse: (connection: ClientConnection, reason: string) => void;
}

/** Returns a function that takes over a connection whose handshake selected HTTP/2. */
export function createHttp2Server(options: Http2ServerOptions): (connection: ClientConnection) => Http2Connection {
  const { limits, createHandler, onAbuse, onInternalError } = options;
  const deadlines = createDeadlines();
  const headCache = new HeadCache('2');
  return (connection) =>
    new Http2Connection(connection, {
      limits,
      deadlines,
      onRequest: createStreamPool((onIdle) => new RequestStream(connection, { headCache, createHandler, onIdle })),
      onAbuse: (reason) => onAbuse(connection, reason),
      onInternalError,
    });
}

/** Objects that are kept for later streams of the same connection. */
const MAX_IDLE = 16;

function createStreamPool(
  create: (onIdle: (stream: RequestStream) => void) => RequestStream,
): (stream: Http2Stream) => void {
  const idle: RequestStream[] = [];
  let active = 0;
  const onIdle = (stream: RequestStream): void => {
    active -= 1;
    // An idle connection keeps one.
    if (active === 0) idle.length = 0;
    if (idle.length < MAX_IDLE) idle.push(stream);
  };
  return (stream) => {
    active += 1;
    (idle.pop() ?? create(onIdle)).serve(stream);
  };
}
