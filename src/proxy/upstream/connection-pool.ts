import { readAddress, type TargetTls, type UpstreamAddress } from './address.ts';
import { createOpening, type Opening, UpstreamConnection } from './connection.ts';
import type { UpstreamPool } from './stream.ts';

const IDLE_CHECK_MS = 1_000;
/**
 * The upstream counts the idle time from the end of its response, which may have arrived while the event loop was blocked.
 * Assuming this delay, or the duration of the exchange if that is shorter, costs nothing where responses are fast.
 */
const MAX_READ_DELAY_MS = 2_000;

/** The connections to one target. The one that was used last is used next, so that others can be closed as idle. */
export class ConnectionPool implements UpstreamPool {
  readonly #address: UpstreamAddress;
  readonly #opening: Opening;
  readonly #maxIdle: number;
  readonly #onAvailable: () => void;
  readonly #idle: UpstreamConnection[] = [];
  readonly #all = new Set<UpstreamConnection>();
  #justEnded: UpstreamConnection[] = [];
  #polledOnce: UpstreamConnection[] = [];
  #isPolling = false;
  #isClosed = false;
  readonly #allClosed = Promise.withResolvers<void>();
  #timer: NodeJS.Timeout | undefined = undefined;

  /**
   * `onAvailable` is called when a connection that has delivered a response can be used for the next request: after the event
   * loop has polled it once more. Stray bytes after a response are noticed by then. `maxIdle`: event streams have connections in
   * addition to the slots.
   */
  constructor(target: string, tls: TargetTls, maxIdle: number, onAvailable: () => void) {
    this.#address = readAddress(target, tls);
    this.#opening = createOpening(this.#address);
    this.#maxIdle = maxIdle;
    this.#onAvailable = onAvailable;
  }

  /** An idle connection, or a new one. `isFresh`: always a new one. */
  acquire(isFresh: boolean): UpstreamConnection {
    const reused = isFresh ? undefined : this.#takeIdle();
    if (reused !== undefined) return reused;
    const connection = new UpstreamConnection(this.#address, this.#opening, this.#onConnectionIdle, this.#onClosed);
    this.#all.add(connection);
    // Its exchange fails with the connection.
    if (this.#isClosed) connection.destroy();
    return connection;
  }

  /** Decided by the clock: the timer that closes idle connections is late when the event loop is. */
  #takeIdle(): UpstreamConnection | undefined {
    const idle = this.#idle;
    if (idle.length === 0) return undefined;
    const now = performance.now();
    for (let one = idle.pop(); one !== undefined; one = idle.pop()) {
      if (one.isClosed) continue;
      if (!isIdleTooLong(one, now)) return one;
      one.discard();
    }
    return undefined;
  }

  /** Closes all connections; their exchanges fail. Resolves when the last one is closed. */
  close(): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#timer);
    for (const connection of this.#all) connection.destroy();
    if (this.#all.size === 0) this.#allClosed.resolve();
    return this.#allClosed.promise;
  }

  readonly #onConnectionIdle = (connection: UpstreamConnection): boolean => {
    if (this.#isClosed || connection.idleSeconds <= 0) {
      connection.discard();
      return false;
    }
    const now = performance.now();
    connection.idleSince = now - Math.min(now - connection.assignedAt, MAX_READ_DELAY_MS);
    this.#justEnded.push(connection);
    if (!this.#isPolling) setImmediate(this.#afterPoll);
    this.#isPolling = true;
    return true;
  };

  /** Runs after each poll of the event loop. */
  readonly #afterPoll = (): void => {
    const ready = this.#polledOnce;
    this.#polledOnce = this.#justEnded;
    this.#justEnded = [];
    this.#isPolling = this.#polledOnce.length > 0;
    if (this.#isPolling) setImmediate(this.#afterPoll);
    for (const connection of ready) {
      // Unsent bytes of the last request would precede the next one.
      if (!connection.isFlushed || this.#idle.length >= this.#maxIdle) connection.discard();
      else if (!connection.isClosed) this.#idle.push(connection);
      this.#onAvailable();
    }
    if (this.#idle.length > 0) this.#timer ??= setInterval(this.#closeIdle, IDLE_CHECK_MS).unref();
  };

  readonly #onClosed = (connection: UpstreamConnection): void => {
    this.#all.delete(connection);
    if (this.#isClosed && this.#all.size === 0) this.#allClosed.resolve();
    const index = this.#idle.indexOf(connection);
    if (index >= 0) this.#idle.splice(index, 1);
  };

  readonly #closeIdle = (): void => {
    const now = performance.now();
    for (const connection of this.#idle.filter((candidate) => isIdleTooLong(candidate, now))) {
      this.#onClosed(connection);
      connection.discard();
    }
    if (this.#idle.length > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  };
}

const isIdleTooLong = ({ idleSince, idleSeconds }: UpstreamConnection, now: number): boolean =>
  now - idleSince > idleSeconds * 1_000;
