import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';
import type { Session } from './first-reader.ts';

/**
 * The connections that are open and the calls that run on them, so that a stop can be gentle: `server.close()`
 * alone leaves a connection open whose answer was already promised `keep-alive`.
 */
export interface OpenConnections {
  add(socket: Socket): void;
  secured(socket: TLSSocket): void;
  /** It carries many calls at once and knows itself when they have ended; `close` says that no more are taken. */
  multiplexed(socket: TLSSocket, close: () => void): void;
  /** Somebody else reads this connection and answers on it, until it is returned. */
  lent(socket: Socket, session: Session): void;
  returned(socket: Socket): void;
  begin(socket: Socket, response: ServerResponse): void;
  end(socket: Socket, response: ServerResponse): void;
  /**
   * Node has let go of a connection on which calls run: answers that wait for their turn would never learn when it is
   * gone, and neither would those who work on them.
   */
  letGo(socket: Duplex): void;
  /** An answer on this connection has said that it is the last. */
  isEnding(socket: Duplex): boolean;
  /** The call that is being answered on this connection. */
  callOn(socket: Duplex): ServerResponse | undefined;
  /** The call that was received last, and not answered yet. */
  lastCallOn(socket: Duplex): ServerResponse | undefined;
  count(): number;
  /** True when everything ended within the time; what did not is cut off. */
  drain(seconds: number): Promise<boolean>;
}

/**
 * How long an idle connection stays when no more are taken: a request may be on its way on it, and would be lost. Those
 * that come in this time are answered, with the word that it is the last.
 */
const GRACE_SECONDS = 1;
const NONE: readonly ServerResponse[] = [];

/**
 * The calls of a connection stand with the connection. In a table of all of them they would come and go by the thousand,
 * and each time such a table is made anew, the old one keeps every call of that moment until a full garbage collection.
 */
const CALLS = Symbol('calls');
type Channel = Duplex & { [CALLS]?: ServerResponse[] };
const callsOf = (socket: Channel): readonly ServerResponse[] => socket[CALLS] ?? NONE;

export function trackConnections(tls: boolean): OpenConnections {
  /** Plain sockets: each connection once. */
  const sockets = new Set<Socket>();
  /** What HTTP speaks over: the plain socket, or the TLS one above it. */
  const channels = new Set<Socket>();
  const sessions = new Map<TLSSocket, () => void>();
  const lent = new Map<Socket, Session>();
  let draining = false;
  let graceOver = false;
  let whenEmpty: (() => void) | undefined;

  const forget = (socket: Socket): void => {
    channels.delete(socket);
    if (sockets.delete(socket) && sockets.size === 0) whenEmpty?.();
  };
  const isIdle = (socket: Socket): boolean =>
    callsOf(socket).length === 0 && lent.get(socket)?.isBusy() !== true;

  return {
    add(socket) {
      if (sockets.has(socket)) return;
      sockets.add(socket);
      if (!tls) channels.add(socket);
      socket.once('close', () => forget(socket));
    },
    secured(socket) {
      channels.add(socket);
      socket.once('close', () => channels.delete(socket));
    },
    multiplexed(socket, close) {
      sessions.set(socket, close);
      socket.once('close', () => sessions.delete(socket));
      if (draining) close();
    },
    lent(socket, session) {
      lent.set(socket, session);
      socket.once('close', () => lent.delete(socket));
      if (draining) session.drain(graceOver);
    },
    returned: (socket) => void lent.delete(socket),
    begin(socket: Socket & Channel, response) {
      if (draining) response.shouldKeepAlive = false;
      (socket[CALLS] ??= []).push(response);
    },
    end(socket: Socket & Channel, response) {
      const running = socket[CALLS];
      const at = running?.indexOf(response) ?? -1;
      if (running === undefined || at < 0) return;
      running.splice(at, 1);
      if (running.length > 0) return;
      if (draining && (graceOver || !response.shouldKeepAlive)) socket.end();
    },
    letGo(socket) {
      socket.once('close', () => {
        // A copy: each one that closes leaves the list.
        for (const response of callsOf(socket).slice())
          if (response.socket === null) {
            response.destroy();
            response.emit('close');
          }
      });
    },
    isEnding(socket) {
      for (const response of callsOf(socket))
        if (response.headersSent && !response.shouldKeepAlive) return true;
      return false;
    },
    callOn: (socket) => callsOf(socket)[0],
    lastCallOn: (socket) => callsOf(socket).at(-1),
    count: () => sockets.size,
    async drain(seconds) {
      draining = true;
      for (const channel of channels)
        for (const response of callsOf(channel)) if (!response.headersSent) response.shouldKeepAlive = false;
      for (const close of sessions.values()) close();
      for (const session of lent.values()) session.drain(false);
      if (seconds > 0) {
        const ended = new Promise<void>((resolve) => {
          whenEmpty = resolve;
          if (sockets.size === 0) resolve();
        });
        const over = AbortSignal.timeout(seconds * 1_000);
        const limit = new Promise<void>((resolve) => over.addEventListener('abort', () => resolve()));
        await Promise.race([ended, sleep(Math.min(GRACE_SECONDS, seconds / 2) * 1_000)]);
        graceOver = true;
        for (const session of lent.values()) session.drain(true);
        endIdle(channels, isIdle);
        await Promise.race([ended, limit]);
      }
      const gentle = sockets.size === 0;
      for (const socket of [...channels, ...sessions.keys(), ...sockets]) socket.destroy();
      return gentle;
    },
  };
}

function endIdle(channels: ReadonlySet<Socket>, isIdle: (socket: Socket) => boolean): void {
  for (const socket of channels) if (isIdle(socket)) socket.end();
}
