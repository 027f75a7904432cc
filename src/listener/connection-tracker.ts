import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** How long idle connections stay open without a pre-stop time: a request may be in flight, and is served as the last one. */
const GRACE_SECONDS = 1;

/** An HTTP connection, as the tracker sees it. */
export interface ConnectionSession {
  /** Asks the client to use another connection, and serves what it still sends. */
  announceClose(): void;
  /** Closes the connection now if it is idle, and otherwise after its requests. */
  close(): void;
  /** The end of a connection that is still busy is announced now, if it was not. */
  closeBusy(): void;
}

/** Open connections, for a graceful shutdown. */
export class ConnectionTracker {
  /** TCP sockets, one per connection. */
  readonly #sockets = new Set<Socket>();
  /** By the socket that HTTP runs on: the TCP socket, or the TLS socket above it. */
  readonly #sessions = new Map<Socket, ConnectionSession>();
  /** `announced`: each response closes its connection, idle connections are still open. `closing`: they are closed. */
  #phase: 'open' | 'announced' | 'closing' = 'open';
  #onEmpty: (() => void) | undefined;

  add(socket: Socket): void {
    this.#sockets.add(socket);
    socket.once('close', () => {
      if (this.#sockets.delete(socket) && this.#sockets.size === 0) this.#onEmpty?.();
    });
  }

  addSession(socket: Socket, session: ConnectionSession): void {
    this.#sessions.set(socket, session);
    socket.once('close', () => this.#sessions.delete(socket));
    if (this.#phase === 'open') return;
    session.announceClose();
    if (this.#phase === 'closing') setTimeout(() => session.close(), GRACE_SECONDS * 1_000).unref();
  }

  count(): number {
    return this.#sockets.size;
  }

  /** From now on each response closes its connection (RFC 9112 §9.6), and HTTP/2 clients get GOAWAY. */
  announceClose(): void {
    if (this.#phase !== 'open') return;
    this.#phase = 'announced';
    for (const session of this.#sessions.values()) session.announceClose();
  }

  /** Closes the connections without requests, and the others after their requests. */
  closeIdle(): void {
    this.announceClose();
    this.#phase = 'closing';
    for (const session of this.#sessions.values()) session.close();
  }

  /** Returns whether all connections ended in time; the others are destroyed. */
  async drain(seconds: number): Promise<boolean> {
    const wasAnnounced = this.#phase !== 'open';
    this.announceClose();
    if (seconds > 0) {
      const ended = new Promise<void>((resolve) => {
        this.#onEmpty = resolve;
        if (this.#sockets.size === 0) resolve();
      });
      const half = sleep(seconds * 500, undefined, { ref: false });
      const limit = sleep(seconds * 1_000, undefined, { ref: false });
      if (!wasAnnounced) await Promise.race([ended, sleep(Math.min(GRACE_SECONDS, seconds / 2) * 1_000)]);
      this.closeIdle();
      await Promise.race([ended, half]);
      for (const session of this.#sessions.values()) session.closeBusy();
      await Promise.race([ended, limit]);
    }
    const graceful = this.#sockets.size === 0;
    for (const socket of [...this.#sessions.keys(), ...this.#sockets]) socket.destroy();
    return graceful;
  }
}
