import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import type { SecureContext } from 'node:tls';
import type { buildConnector as UndiciConnector, Pool as UndiciPool } from 'undici';
import type { UpstreamSettings } from './upstream-settings.ts';

const require = createRequire(import.meta.url);

/**
 * undici's connection pool, and nothing else of undici: its front door also loads fetch, WebSocket and caches,
 * which none of us uses and which makes every start 60 ms longer. undici is pinned to the exact version.
 */
const PoolClass = require('undici/lib/dispatcher/pool.js') as typeof UndiciPool;
const buildConnector = require('undici/lib/core/connect.js') as typeof UndiciConnector;
export type Pool = InstanceType<typeof UndiciPool>;

export interface PoolTerms {
  readonly target: string;
  readonly settings: UpstreamSettings;
  readonly secureContext: SecureContext | undefined;
  /** Whether connections are used again. */
  readonly keepAlive: boolean;
}

/** Errors of connections that had carried an answer before. */
const ofUsedConnections = new WeakSet<Error>();

/** Did this happen to a connection that had served before? Such a one may have been closed just for being idle. */
export const wasUsedBefore = (error: Error): boolean => ofUsedConnections.has(error);

export function openPool({ target, settings, secureContext, keepAlive }: PoolTerms): Pool {
  const { timeouts, serverName } = settings;
  const socketPath = target.startsWith('unix:') ? target.slice('unix:'.length) : undefined;
  const connect = buildConnector({
    allowH2: false,
    timeout: timeouts.connect * 1_000,
    // Named, so that no environment variable can turn it off.
    rejectUnauthorized: true,
    ...(socketPath !== undefined && { socketPath }),
    ...(secureContext !== undefined && { secureContext }),
    ...(serverName !== undefined && { servername: serverName }),
  });
  return new PoolClass(socketPath === undefined ? new URL(target).origin : 'http://localhost', {
    connections: settings.connections,
    pipelining: keepAlive ? 1 : 0,
    allowH2: false,
    headersTimeout: timeouts.headers * 1_000,
    bodyTimeout: timeouts.idle * 1_000,
    connect: (options, callback) =>
      connect(options, (...result) => {
        const [, socket] = result;
        if (socket instanceof Socket) noteUse(socket);
        callback(...result);
      }),
  });
}

function noteUse(socket: Socket): void {
  socket.prependListener('error', (error) => {
    if (socket.bytesRead > 0) ofUsedConnections.add(error);
  });
}
