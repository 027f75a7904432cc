import type { Server } from 'node:http';
import type { Server as SecureServer } from 'node:https';
import type { Socket } from 'node:net';

interface AdminConnection {
  /** The plain socket, and after the handshake the TLS socket above it. */
  socket: Socket;
  readonly address: string;
  /** Responses that are not complete yet. */
  pending: number;
}

const endsOf = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress}|${remotePort}`;

/**
 * Bounds the connections of the admin listener without refusing a probe: beyond the limit the newest connection is served
 * and another one is closed, the oldest of those that wait for a request, from the address that has the most.
 */
export function limitConnections(server: Server | SecureServer, limit: number): void {
  /** In the order in which they were accepted. */
  const open = new Map<string, AdminConnection>();

  server.on('connection', (socket: Socket) => {
    const ends = endsOf(socket);
    const connection = { socket, address: socket.remoteAddress ?? '', pending: 0 };
    if (open.size >= limit) victim(open.values())?.socket.destroy();
    open.set(ends, connection);
    socket.once('close', () => {
      // The port may be in use again.
      if (open.get(ends) === connection) open.delete(ends);
    });
  });
  server.on('secureConnection', (socket: Socket) => {
    const connection = open.get(endsOf(socket));
    if (connection !== undefined) connection.socket = socket;
  });
  server.on('request', (request, response) => {
    const connection = open.get(endsOf(request.socket));
    if (connection === undefined) return;
    connection.pending += 1;
    response.once('close', () => {
      connection.pending -= 1;
    });
  });
}

function victim(open: Iterable<AdminConnection>): AdminConnection | undefined {
  const byAddress = new Map<string, AdminConnection[]>();
  for (const connection of open) {
    if (connection.socket.destroyed) continue;
    const { address } = connection;
    const same = byAddress.get(address);
    if (same === undefined) byAddress.set(address, [connection]);
    else same.push(connection);
  }
  const [most = []] = [...byAddress.values()].toSorted((one, other) => other.length - one.length);
  return most.find(({ pending }) => pending === 0) ?? most[0];
}
