import { connect, createServer, type Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { tcpServer } from './tcp-server.ts';

/**
 * `pass`: as if it were not there. `black hole`: connections stand, nothing comes through. `refuse`: connections are
 * cut, new ones too. `lose reply`: the next answer is not delivered, its connection is cut; then as `pass`.
 */
export type TcpFault = 'pass' | 'black hole' | 'refuse' | 'lose reply';

export interface FaultyWay {
  readonly port: number;
  set(fault: TcpFault): void;
  /** Leads elsewhere from now on, as an address that follows a failover; what leads to the old place is cut. */
  moveTo(port: number): void;
  /** As `moveTo`, but connections that stand go on to where they led. */
  leadNextTo(port: number): void;
  /** Milliseconds, from and to, by which each answer comes later. */
  slowDown(from: number, to: number): void;
  /** How many answers were lost. */
  lost(): number;
  close(): Promise<void>;
}

/** Stands between a client and a server on this machine, and fails as it is told to. `tap` sees what clients send. */
export async function faultyWay(
  to: number,
  tap?: (bytes: Buffer, connection: number) => void,
): Promise<FaultyWay> {
  let fault: TcpFault = 'pass';
  let target = to;
  let connections = 0;
  let lost = 0;
  let delays = { from: 0, to: 0 };
  const written = new WeakMap<Socket, Promise<unknown>>();
  /** Each response waits for the one before it: timers of different lengths may fire out of order. */
  const answer = (client: Socket, bytes: Buffer): void => {
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
    const there = connect(target, '127.0.0.1');
    there.on('error', () => {});
    connections += 1;
    const connection = connections;
    if (tap !== undefined) client.on('data', (bytes: Buffer) => tap(bytes, connection));
    client.once('close', () => there.destroy());
    there.once('close', () => client.destroy());
    client.on('data', (bytes) => void (fault !== 'black hole' && there.write(bytes)));
    there.on('data', (bytes: Buffer) => {
      if (fault === 'black hole') return;
      if (fault !== 'lose reply') return answer(client, bytes);
      fault = 'pass';
      lost += 1;
      client.destroy();
    });
  });
  const { port, cut: cutAll, close } = await tcpServer(relay);
  return {
    port,
    set(next) {
      const before = fault;
      fault = next;
      // What a black hole has swallowed is missing: a connection cannot go on as if nothing had been.
      if (next === 'refuse' || before === 'black hole') cutAll();
    },
    moveTo(next) {
      target = next;
      cutAll();
    },
    leadNextTo(next) {
      target = next;
    },
    slowDown(from, to) {
      delays = { from, to };
    },
    lost: () => lost,
    close,
  };
}
