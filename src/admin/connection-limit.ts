import type { Server } from 'node:http';
import type { Server as SecureServer } from 'node:https';
import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

interface AdminConnection {
  /** The plain socket, and after the handshake the TLS socket above it. */
  socket: Socket;
  readonly address: string;
  /** Responses that are not complete yet. */
  pending: number;
}

const getRemoteEndpoint = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress}|${remotePort}`;

/**
 * Bounds the connections of the admin listener without rejecting probes: beyond the limit, a new connection replaces
 * another one, the oldest idle connection from the address with the most connections.
 */
export function limitConnections(server: Server | SecureServer, limit: number) {
  /** Oldest first. */
  const connections = new Map<string, AdminConnection>();

  server.on('connection', (socket: Socket) => {
    const endpoint = getRemoteEndpoint(socket);
    const connection = { socket, address: socket.remoteAddress ?? '', pending: 0 };
    if (connections.size >= limit) selectConnectionToClose(connections.values())?.socket.destroy();
    connections.set(endpoint, connection);
    socket.once('close', () => {
      // The same address and port may already have a new connection.
      if (connections.get(endpoint) === connection) connections.delete(endpoint);
    });
  });
  server.on('secureConnection', (socket: Socket) => {
    const connection = connections.get(getRemoteEndpoint(socket));
    if (connection !== undefined) connection.socket = socket;
  });
  server.on('request', (request, response) => {
    const connection = connections.get(getRemoteEndpoint(request.socket));
    if (connection === undefined) return;
    connection.pending += 1;
    response.once('close', () => {
      connection.pending -= 1;
    });
  });

  return {
    /** Closes the connections that presented a client certificate, or still may in their handshake. */
    closeAuthenticated(): void {
      for (const { socket } of connections.values())
        if (!(socket instanceof TLSSocket) || socket.getPeerX509Certificate() !== undefined) socket.destroy();
    },
  };
}

function selectConnectionToClose(connections: Iterable<AdminConnection>): AdminConnection | undefined {
  const open = Iterator.from(connections).filter(({ socket }) => !socket.destroyed);
  const byAddress = Map.groupBy(open, ({ address }) => address);
  const [largest = []] = [...byAddress.values()].toSorted((one, other) => other.length - one.length);
  return largest.find(({ pending }) => pending === 0) ?? largest[0];
}
