import { connect, createServer, type Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { listenTcp } from './tcp-server.ts';

/**
 * `pass`: forwards everything. `black hole`: keeps connections open and forwards nothing. `refuse`: closes existing and new
 * connections. `drop response`: closes the connection instead of delivering the next response, then `pass`.
 */
export type TcpFault = 'pass' | 'black hole' | 'refuse' | 'drop response';

export interface FaultyRelay {
  readonly port: number;
  set(fault: TcpFault): void;
  /** Changes the target, like an address that follows a failover, and closes all connections. */
  redirect(port: number): void;
  /** Changes the target for new connections only. */
  redirectNewConnections(port: number): void;
  /** Delays each response by a random time between `from` and `to` milliseconds. */
  delayResponses(from: number, to: number): void;
  /** Number of dropped responses. */
  lostResponses(): number;
  close(): Promise<void>;
}

/** A TCP relay on 127.0.0.1 that injects faults. `tap` receives the bytes that clients send. */
export async function startFaultyRelay(
  to: number,
  tap?: (bytes: Buffer, connection: number) => void,
): Promise<FaultyRelay> {
  let fault: TcpFault = 'pass';
  let target = to;
  let connections = 0;
  let lost = 0;
  let delays = { from: 0, to: 0 };
  const written = new WeakMap<Socket, Promise<unknown>>();
  /** Each response waits for the one before it: timers of different lengths may fire out of order. */
  const deliver = (client: Socket, bytes: Buffer): void => {
    if (delays.to === 0) return void client.write(bytes);
    const delay = pause(delays.from + Math.random() * (delays.to - delays.from));
    const both = Promise.all([written.get(client), delay]);
    written.set(
      client,
      both.then(() => client.writable && client.write(bytes)),
    );
  };
  const relay = createServer((client) => {
    if (fault === 'refuse') {
      client.destroy();
      return;
    }
    const upstream = connect(target, '127.0.0.1');
    upstream.on('error', () => {});
    connections += 1;
    const connection = connections;
    if (tap !== undefined) client.on('data', (bytes: Buffer) => tap(bytes, connection));
    client.once('close', () => upstream.destroy());
    upstream.once('close', () => client.destroy());
    client.on('data', (bytes) => void (fault !== 'black hole' && upstream.write(bytes)));
    upstream.on('data', (bytes: Buffer) => {
      if (fault === 'black hole') return;
      if (fault !== 'drop response') return deliver(client, bytes);
      fault = 'pass';
      lost += 1;
      client.destroy();
    });
  });
  const { port, destroyConnections, close } = await listenTcp(relay);
  return {
    port,
    set(next) {
      const before = fault;
      fault = next;
      // Bytes were discarded, so existing connections cannot continue.
      if (next === 'refuse' || before === 'black hole') destroyConnections();
    },
    redirect(next) {
      target = next;
      destroyConnections();
    },
    redirectNewConnections(next) {
      target = next;
    },
    delayResponses(from, to) {
      delays = { from, to };
    },
    lostResponses: () => lost,
    close,
  };
}
