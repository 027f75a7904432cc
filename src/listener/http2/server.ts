import type { TLSSocket } from 'node:tls';
import type { Downstream, RequestHandler } from '../../http/downstream.ts';
import { createDeadlines } from '../../lib/deadlines.ts';
import type { ConnectionAccount } from '../client-accounts.ts';
import { HeadCache } from '../head-cache.ts';
import { Http2Connection, type Http2ConnectionOptions } from './connection.ts';
import { RequestStream } from './request-stream.ts';
import type { Http2Stream } from './stream.ts';

interface Http2ServerOptions extends Pick<Http2ConnectionOptions, 'limits' | 'idleSeconds' | 'stalledSeconds'> {
  /** A connection was closed because its client exceeded a limit. */
  readonly onAbuse: (socket: TLSSocket, reason: string) => void;
  readonly onInternalError: (error: unknown) => void;
}

type CreateHandler = (downstream: Downstream) => RequestHandler;

/** Returns a function that takes over a connection whose handshake selected HTTP/2. */
export function createHttp2Server(
  options: Http2ServerOptions,
): (socket: TLSSocket, account: ConnectionAccount, createHandler: CreateHandler) => Http2Connection {
  const { limits, idleSeconds, stalledSeconds, onInternalError } = options;
  const deadlines = createDeadlines();
  const headCache = new HeadCache('2');
  return (socket, account, createHandler) =>
    new Http2Connection(socket, {
      limits,
      idleSeconds,
      stalledSeconds,
      deadlines,
      account,
      onRequest: createStreamPool(headCache, createHandler),
      onAbuse: (_connection, reason) => options.onAbuse(socket, reason),
      onInternalError,
    });
}

/** Objects that are kept for later streams of the same connection. */
const MAX_IDLE = 16;

function createStreamPool(headCache: HeadCache, createHandler: CreateHandler): (stream: Http2Stream) => void {
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
    (idle.pop() ?? new RequestStream({ headCache, createHandler, onIdle })).serve(stream);
  };
}
