import { connect, createServer, type Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { listenTcp } from './tcp-server.ts';

/**
 * `pass`: as if it were not there. `black hole`: connections stand, nothing comes through. `refuse`: connections are
 * cut, new ones too. `drop response`: the next answer is not delivered, its connection is cut; then as `pass`.
 */
export type TcpFault = 'pass' | 'black hole' | 'refuse' | 'drop response';

export interface FaultyRelay {
  readonly port: number;
  set(fault: TcpFault): void;
  /** Leads elsewhere from now on, as an address that follows a failover; what leads to the old place is cut. */
  redirect(port: number): void;
  /** As `moveTo`, but connections that stand go on to where they led. */
  redirectNewConnections(port: number): void;
  /** Milliseconds, from and to, by which each answer comes later. */
  delayResponses(from: number, to: number): void;
  /** How many answers were lost. */
  lostResponses(): number;
  close(): Promise<void>;
}

/** Stands between a client and a server on this machine, and fails as it is told to. `tap` sees what clients send. */
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
  const { port, destroyConnections: cutConnections, close } = await listenTcp(relay);
  return {
    port,
    set(next) {
      const before = fault;
      fault = next;
      // What a black hole has swallowed is missing: a connection cannot go on as if nothing had been.
      if (next === 'refuse' || before === 'black hole') cutConnections();
    },
    redirect(next) {
      target = next;
      cutConnections();
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
