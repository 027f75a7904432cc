import { readAddress, type TargetTls, type UpstreamAddress } from '../address.ts';
import type { UpstreamPool } from '../stream.ts';
import { type ConnectionEvents, Http2UpstreamConnection } from './connection.ts';
import type { Http2UpstreamStream } from './stream.ts';

const CHECK_MS = 5_000;
/** How long a connection without exchanges is kept. */
const IDLE_MS = 60_000;
/** Servers of gRPC close connections whose clients send PING more often than every five minutes while nothing is sent. */
const PING_AFTER_MS = 310_000;
const PING_TIMEOUT_MS = 20_000;

/** The HTTP/2 connections to one target. A new one is opened when the others carry as many exchanges as the target allows. */
export class Http2Pool implements UpstreamPool {
  readonly #address: UpstreamAddress;
  readonly #connections: Http2UpstreamConnection[] = [];
  #timer: NodeJS.Timeout | undefined = undefined;
  #isClosed = false;
  #expectedStreams: number | undefined = undefined;
  readonly #allClosed = Promise.withResolvers<void>();
  readonly #events: ConnectionEvents = {
    onConnected: (maxStreams) => void (this.#expectedStreams = Math.max(1, maxStreams)),
    onExcess: (stream) => this.#place(stream),
    onClosed: (connection) => this.#onClosed(connection),
  };

  constructor(target: string, tls: TargetTls) {
    this.#address = readAddress(target, tls);
  }

  acquire(): Http2UpstreamStream {
    return this.#find().createStream();
  }

  #place(stream: Http2UpstreamStream): void {
    const connection = this.#find();
    connection.adopt(stream);
    if (connection.isConnected) stream.connected();
  }

  #find(): Http2UpstreamConnection {
    return this.#connections.find(({ hasRoom }) => hasRoom) ?? this.#open();
  }

  #open(): Http2UpstreamConnection {
    const connection = new Http2UpstreamConnection(this.#address, this.#events, this.#expectedStreams);
    this.#connections.push(connection);
    this.#timer ??= setInterval(this.#check, CHECK_MS).unref();
    // Its exchanges fail with it.
    if (this.#isClosed) setImmediate(() => connection.destroy());
    return connection;
  }

  close(): Promise<void> {
    this.#isClosed = true;
    for (const connection of this.#connections.slice()) connection.destroy();
    if (this.#connections.length === 0) this.#allClosed.resolve();
    return this.#allClosed.promise;
  }

  #onClosed(connection: Http2UpstreamConnection): void {
    const index = this.#connections.indexOf(connection);
    if (index >= 0) this.#connections.splice(index, 1);
    if (this.#connections.length > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
    if (this.#isClosed) this.#allClosed.resolve();
  }

  readonly #check = (): void => {
    const now = performance.now();
    for (const connection of this.#connections.slice()) {
      if (!connection.isIdle) connection.checkAlive(now, PING_AFTER_MS, PING_TIMEOUT_MS);
      else if (now - connection.lastActiveAt > IDLE_MS) connection.drain();
    }
  };
}
