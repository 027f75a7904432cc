import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { plainAddress } from './caller.ts';
import type { Opening } from './front.ts';

/** What was found out about a connection when it was opened. */
export interface Connection {
  readonly peer: string;
  /** Relayed by a load balancer whose PROXY header names no source: `peer` is the load balancer. */
  readonly sourceUnknown: boolean;
  /** Its TLS server asked for a certificate. */
  readonly asked: boolean;
  certificate?: Buffer | undefined;
  certificateRead: boolean;
}

/** Where a connection comes from, by its PROXY header; undefined if that names no source (UNKNOWN, LOCAL). */
interface Source {
  readonly address: string | undefined;
}

export interface Connections {
  of(socket: Socket, asked: boolean): Connection;
  remember(socket: Socket, opening: Opening): void;
}

const endsOf = (socket: Socket): string =>
  `${socket.remoteAddress}|${socket.remotePort}|${socket.localAddress}`;

export function rememberConnections(): Connections {
  const sources = new Map<string, Source>();
  const known = new WeakMap<object, Connection>();
  return {
    of(socket, asked) {
      let connection = known.get(socket);
      if (connection === undefined) {
        const source = sources.size === 0 ? undefined : sources.get(endsOf(socket));
        const peer = source?.address ?? plainAddress(socket.remoteAddress ?? '');
        const sourceUnknown = source !== undefined && source.address === undefined;
        connection = { peer, sourceUnknown, asked, certificateRead: false };
        known.set(socket, connection);
      }
      return connection;
    },
    /** A TLS socket does not know the plain one below it, but it has the same two ends. */
    remember(socket, { proxied, source }) {
      if (!proxied) return;
      const ends = endsOf(socket);
      // An object of its own: a port can be in use again before the close of the connection before it is told.
      const named = { address: source === undefined ? undefined : plainAddress(source) };
      sources.set(ends, named);
      socket.once('close', () => {
        if (sources.get(ends) === named) sources.delete(ends);
      });
    },
  };
}

/** The leaf the client proved possession of, read once per connection. */
export function certificateOf(socket: Socket, connection: Connection): Buffer | undefined {
  if (!connection.certificateRead && socket instanceof TLSSocket && !socket.destroyed) {
    connection.certificate = connection.asked ? socket.getPeerX509Certificate()?.raw : undefined;
    connection.certificateRead = true;
  }
  return connection.certificate;
}
