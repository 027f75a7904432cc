import type { Socket } from 'node:net';
import type { Epoch } from '../../domain/epoch.ts';
import type { CompletedRequest } from '../../http/request-context.ts';
import { type BufferPool, createBufferPool } from '../../lib/buffer-pool.ts';
import { createDeadlines, type Deadlines } from '../../lib/deadlines.ts';
import type {
  ClientConnection,
  ConnectionInterceptor,
  Http2StreamInterceptor,
} from '../../listener/connection-interceptor.ts';
import { type ListenerLimits, MAX_URL_LENGTH, type RequestOutcome } from '../../listener/listener-options.ts';
import type { Logger } from '../../observability/logger.ts';
import type { SpanContext } from '../../observability/tracing.ts';
import { FastConnection } from './fast-connection.ts';
import type { FastPathConfig } from './fast-path-config.ts';
import { FastPeer } from './fast-peer.ts';
import { FastStream } from './fast-stream.ts';
import { HeaderCache } from './header-cache.ts';
import { FALLBACK_REASONS, type FallbackReason } from './request-parser.ts';

interface FastPathOptions {
  readonly limits: Pick<ListenerLimits, 'headers' | 'url' | 'headerTimeout'>;
  /** The present configuration; undefined where the fast path is disabled. */
  readonly getConfig: () => FastPathConfig | undefined;
  /** A request has begun; `onRequestEnd` follows. */
  readonly onRequestStart?: (request: CompletedRequest) => void;
  readonly onRequestEnd: (request: CompletedRequest, outcome: RequestOutcome) => void;
  /** Starts a span where the request is recorded. `isTrusted`: a trusted proxy sent this traceparent. */
  readonly startSpan?:
    | ((traceparent: string | undefined, isTrusted: boolean) => SpanContext | undefined)
    | undefined;
  readonly log: Logger;
  readonly now: () => Epoch;
}

/** What all connections on the fast path share. */
export interface FastPathContext extends FastPathOptions {
  readonly readerLimits: Required<Pick<ListenerLimits, 'headers' | 'url'>>;
  readonly deadlines: Deadlines;
  readonly headerCache: HeaderCache;
  readonly bufferPool: BufferPool;
  onFallback(socket: Socket, reason: FallbackReason): void;
}

export interface FastPath extends ConnectionInterceptor {
  /** Requests that were served, and connections that fell back to the full path, by reason. */
  readonly counts: { served: number; readonly fallbacks: Record<FallbackReason, number> };
  /** Why a connection fell back; undefined: it was never on the fast path. */
  getFallbackReason(socket: object): FallbackReason | undefined;
}

export function createFastPath(options: FastPathOptions): FastPath {
  const reasons = new WeakMap<object, FallbackReason>();
  const counts: FastPath['counts'] = {
    served: 0,
    fallbacks: Object.fromEntries(FALLBACK_REASONS.map((reason) => [reason, 0])) as Record<
      FallbackReason,
      number
    >,
  };
  const fastPath: FastPathContext = {
    ...options,
    onRequestEnd(request, outcome) {
      counts.served += 1;
      options.onRequestEnd(request, outcome);
    },
    readerLimits: { headers: options.limits.headers, url: options.limits.url ?? MAX_URL_LENGTH },
    deadlines: createDeadlines(),
    headerCache: new HeaderCache(),
    bufferPool: createBufferPool(),
    onFallback(socket, reason) {
      counts.fallbacks[reason] += 1;
      reasons.set(socket, reason);
    },
  };
  return {
    intercept: (connection) => new FastConnection(fastPath, connection),
    interceptHttp2: (connection) => interceptStreams(fastPath, connection),
    counts,
    getFallbackReason: (socket) => reasons.get(socket),
  };
}

/** Handlers of streams that have ended, kept for later streams of the same connection. */
const MAX_IDLE_HANDLERS = 16;

function interceptStreams(fastPath: FastPathContext, connection: ClientConnection): Http2StreamInterceptor {
  const peer = new FastPeer(connection);
  const idle: FastStream[] = [];
  let active = 0;
  const onIdle = (handler: FastStream): void => {
    active -= 1;
    // An idle connection keeps one.
    if (active === 0) idle.length = 0;
    if (idle.length < MAX_IDLE_HANDLERS) idle.push(handler);
  };
  return {
    serve(stream, fallBack) {
      const handler = idle.pop() ?? new FastStream(fastPath, peer, onIdle);
      active += 1;
      if (handler.serve(stream, fallBack)) return true;
      onIdle(handler);
      return false;
    },
  };
}
