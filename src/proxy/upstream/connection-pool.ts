import { isIP } from 'node:net';
import type { SecureContext } from 'node:tls';
import { flattenString } from '../../lib/flat-string.ts';
import { type UpstreamAddress, UpstreamConnection } from './connection.ts';

/** The connections to one target. The one that was used last is used next, so that others can be closed as idle. */
export interface ConnectionPool {
  readonly address: UpstreamAddress;
  /** An idle connection, or a new one. `isFresh`: always a new one. */
  acquire(isFresh: boolean): UpstreamConnection;
  /** No connection is kept from now on. Resolves when the last one in use has ended. */
  close(): Promise<void>;
  /** Closes all connections; their exchanges fail. */
  destroy(): void;
}

export interface TargetTls {
  /** The name that the server must prove, where it is not the host of the URL. */
  readonly serverName: string | undefined;
  readonly secureContext: SecureContext | undefined;
}

const IDLE_CHECK_MS = 1_000;

/**
 * `onFree` is called when a connection that has delivered a response can be used for the next request: after the event loop
 * has polled it once more. Stray bytes after a response are noticed by then.
 */
export function openConnectionPool(target: string, tls: TargetTls, onAvailable: () => void): ConnectionPool {
  const address = readAddress(target, tls);
  const idle: UpstreamConnection[] = [];
  const all = new Set<UpstreamConnection>();
  let justEnded: UpstreamConnection[] = [];
  let polledOnce: UpstreamConnection[] = [];
  let isPolling = false;
  let isClosed = false;
  let isDestroyed = false;
  const allClosed = Promise.withResolvers<void>();
  let timer: NodeJS.Timeout | undefined;

  const onConnectionIdle = (connection: UpstreamConnection): boolean => {
    if (isClosed || connection.idleSeconds <= 0) {
      connection.discard();
      return false;
    }
    connection.idleSince = performance.now();
    justEnded.push(connection);
    if (!isPolling) setImmediate(afterPoll);
    isPolling = true;
    return true;
  };
  /** Runs after each poll of the event loop. */
  const afterPoll = (): void => {
    const ready = polledOnce;
    polledOnce = justEnded;
    justEnded = [];
    isPolling = polledOnce.length > 0;
    if (isPolling) setImmediate(afterPoll);
    for (const connection of ready) {
      // Unsent bytes of the last request would precede the next one.
      if (!connection.isFlushed) connection.discard();
      else if (!connection.isClosed) idle.push(connection);
      onAvailable();
    }
    if (idle.length > 0) timer ??= setInterval(closeIdle, IDLE_CHECK_MS).unref();
  };
  const onClosed = (connection: UpstreamConnection): void => {
    all.delete(connection);
    if (isClosed && all.size === 0) allClosed.resolve();
    const index = idle.indexOf(connection);
    if (index >= 0) idle.splice(index, 1);
  };
  const closeIdle = (): void => {
    const now = performance.now();
    for (const connection of idle.filter((candidate) => isIdleTooLong(candidate, now))) {
      onClosed(connection);
      connection.discard();
    }
    if (idle.length > 0) return;
    clearInterval(timer);
    timer = undefined;
  };

  return {
    address,
    acquire(isFresh) {
      for (let one = isFresh ? undefined : idle.pop(); one !== undefined; one = idle.pop())
        if (!one.isClosed) return one;
      const connection = new UpstreamConnection(address, onConnectionIdle, onClosed);
      all.add(connection);
      // Its exchange fails with the connection.
      if (isDestroyed) connection.destroy();
      return connection;
    },
    close() {
      isClosed = true;
      clearInterval(timer);
      for (const connection of [...idle, ...polledOnce, ...justEnded]) connection.discard();
      if (all.size === 0) allClosed.resolve();
      return allClosed.promise;
    },
    destroy() {
      isDestroyed = true;
      for (const connection of all) connection.destroy();
    },
  };
}

const isIdleTooLong = ({ idleSince, idleSeconds }: UpstreamConnection, now: number): boolean =>
  now - idleSince > idleSeconds * 1_000;

function readAddress(target: string, { serverName, secureContext }: TargetTls): UpstreamAddress {
  const isUnix = target.startsWith('unix:');
  const { host, hostname, port, protocol } = new URL(isUnix ? 'http://localhost' : target);
  const name = hostname.replace(/^\[|\]$/g, '');
  const isTls = protocol === 'https:';
  const headStart = ` HTTP/1.1\r\nhost: ${host}\r\nconnection: `;
  return {
    connectOptions: isUnix
      ? { path: target.slice('unix:'.length) }
      : { host: name, port: port === '' ? (isTls ? 443 : 80) : Number(port) },
    // RFC 6066 §3: an address is no server name; it is compared with the certificate all the same.
    tls: isTls
      ? {
          servername: serverName ?? (isIP(name) === 0 ? name : undefined),
          secureContext,
          session: undefined,
          sessionExpires: 0,
        }
      : undefined,
    keepAliveHead: flattenString(`${headStart}keep-alive\r\n`),
    closeHead: flattenString(`${headStart}close\r\n`),
  };
}
