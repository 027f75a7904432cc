import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import type { SecureContext } from 'node:tls';
import type { Client as UndiciClient, buildConnector as UndiciConnector } from 'undici';
import { StepSieve } from './step-sieve.ts';
import type { UpstreamSettings } from './upstream-settings.ts';

const require = createRequire(import.meta.url);

interface Undici {
  readonly ClientClass: typeof UndiciClient;
  readonly buildConnector: typeof UndiciConnector;
}

let loaded: Undici | undefined;

/**
 * undici's HTTP/1.1 client, and nothing else of undici: its front door also loads fetch, WebSocket and caches,
 * which none of us uses and which makes every start 60 ms longer. undici is pinned to the exact version. Loaded where an
 * upstream wants it: those that speak plain HTTP do not.
 */
const undici = (): Undici =>
  (loaded ??= {
    ClientClass: require('undici/lib/dispatcher/client.js') as typeof UndiciClient,
    buildConnector: require('undici/lib/core/connect.js') as typeof UndiciConnector,
  });

export interface PoolTerms {
  readonly target: string;
  readonly settings: UpstreamSettings;
  readonly secureContext: SecureContext | undefined;
  /** Whether connections are used again. */
  readonly keepAlive: boolean;
}

/** A client with one connection, which it opens when it is needed, and again when it was closed. */
export interface Connection {
  readonly client: Pick<UndiciClient, 'dispatch' | 'close' | 'destroy'>;
  /** To be told when a request begins: steps on the way to its answer may come now. */
  readonly sieve: StepSieve;
}

/**
 * Connections to one target. The one that was given back last is taken first: it is warm, and the others may be closed
 * for being idle. Whoever takes one has it alone; how many are taken at once is for the line in front to say.
 */
export interface Pool {
  take(): Connection;
  /** `sound`: its request came to its proper end. */
  giveBack(connection: Connection, sound: boolean): void;
  close(): Promise<unknown>;
  destroy(): Promise<unknown>;
}

export function openPool(terms: PoolTerms): Pool {
  const all: Connection[] = [];
  const idle: Connection[] = [];
  const connector = connectorFor(terms);
  let ended = false;
  const open = (): Connection => {
    const connection = openConnection(terms, connector);
    all.push(connection);
    // Whoever comes now learns it from the client.
    if (ended) void connection.client.destroy();
    return connection;
  };
  return {
    take: () => idle.pop() ?? open(),
    giveBack(connection, sound) {
      // A connection that is being torn down is asked for last.
      if (sound) idle.push(connection);
      else idle.unshift(connection);
    },
    close() {
      ended = true;
      return Promise.allSettled(all.map(({ client }) => client.close()));
    },
    destroy() {
      ended = true;
      return Promise.allSettled(all.map(({ client }) => client.destroy()));
    },
  };
}

type Connector = ReturnType<typeof UndiciConnector>;

function connectorFor({ target, settings, secureContext }: PoolTerms): Connector {
  const { timeouts, serverName } = settings;
  const socketPath = socketPathOf(target);
  return undici().buildConnector({
    allowH2: false,
    timeout: timeouts.connect * 1_000,
    // Named, so that no environment variable can turn it off.
    rejectUnauthorized: true,
    ...(socketPath !== undefined && { socketPath }),
    ...(secureContext !== undefined && { secureContext }),
    ...(serverName !== undefined && { servername: serverName }),
  });
}

const socketPathOf = (target: string): string | undefined =>
  target.startsWith('unix:') ? target.slice('unix:'.length) : undefined;

function openConnection({ target, settings, keepAlive }: PoolTerms, connector: Connector): Connection {
  const { timeouts } = settings;
  const sieve = new StepSieve();
  const { ClientClass } = undici();
  const client = new ClientClass(
    socketPathOf(target) === undefined ? new URL(target).origin : 'http://localhost',
    {
      pipelining: keepAlive ? 1 : 0,
      allowH2: false,
      headersTimeout: timeouts.headers * 1_000,
      bodyTimeout: timeouts.idle * 1_000,
      connect: (options, callback) =>
        connector(options, (...result) => {
          const [, socket] = result;
          if (socket instanceof Socket) {
            noteUse(socket);
            sieve.watch(socket);
          }
          callback(...result);
        }),
    },
  );
  return { client, sieve };
}

/** Errors of connections that had carried an answer before. */
const ofUsedConnections = new WeakSet<Error>();

/** Did this happen to a connection that had served before? Such a one may have been closed just for being idle. */
export const wasUsedBefore = (error: Error): boolean => ofUsedConnections.has(error);

function noteUse(socket: Socket): void {
  socket.prependListener('error', (error) => {
    if (socket.bytesRead > 0) ofUsedConnections.add(error);
  });
}
