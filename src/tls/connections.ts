import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { plainAddress } from './caller.ts';
import type { Opening } from './front.ts';

/** What was found out about a connection when it was opened. */
export interface Connection {
  readonly peer: string;
  /** Its TLS server asked for a certificate. */
  readonly asked: boolean;
  certificate?: Buffer | undefined;
  certificateRead: boolean;
}

/** Where a connection comes from, as a balancer in front told. */
interface Source {
  readonly address: string;
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
        const told = sources.size === 0 ? undefined : sources.get(endsOf(socket))?.address;
        const peer = told ?? plainAddress(socket.remoteAddress ?? '');
        connection = { peer, asked, certificateRead: false };
        known.set(socket, connection);
      }
      return connection;
    },
    /** A TLS socket does not know the plain one below it, but it has the same two ends. */
    remember(socket, { source }) {
      if (source === undefined) return;
      const ends = endsOf(socket);
      // An object of its own: a port can be in use again before the close of the connection before it is told.
      const told = { address: plainAddress(source) };
      sources.set(ends, told);
      socket.once('close', () => {
        if (sources.get(ends) === told) sources.delete(ends);
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
