import { once } from 'node:events';
import type { Server, Socket } from 'node:net';

export interface TcpServer {
  readonly port: number;
  /** Open connections. */
  readonly sockets: ReadonlySet<Socket>;
  readonly destroyConnections: () => void;
  /** Also destroys all connections. */
  readonly close: () => Promise<void>;
}

/** Binds a server to a port of 127.0.0.1 (0: a free one) or a Unix socket, and tracks its connections. */
export async function listenTcp(server: Server, listenOn: number | string = 0): Promise<TcpServer> {
  const sockets = new Set<Socket>();
  server.prependListener('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).once('close', () => sockets.delete(socket));
  });
  if (typeof listenOn === 'string') server.listen(listenOn);
  else server.listen(listenOn, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const destroyConnections = (): void => sockets.forEach((socket) => socket.destroy());
  return {
    port: typeof address === 'object' && address !== null ? address.port : 0,
    sockets,
    destroyConnections,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      destroyConnections();
      await closed;
    },
  };
}
