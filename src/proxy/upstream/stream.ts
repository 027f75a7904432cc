import type { ResponseHandler } from './connection.ts';

/** The head of a request. */
export interface UpstreamRequest {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  /** The lines of its header section, without `Host`, `Connection` and the framing. */
  readonly fields: string;
  /** The client accepts trailers (`TE: trailers`). */
  readonly acceptsTrailers: boolean;
}

/**
 * What carries one request to a target and its response back: an HTTP/1.1 connection, for one exchange at a time, or a stream of an HTTP/2
 * connection.
 */
export interface UpstreamStream {
  /** A request can be sent. */
  readonly isConnected: boolean;
  /** From here on it belongs to this handler, until the response is complete. `startedAt`: by `performance.now()`. */
  assign(handler: ResponseHandler, isHead: boolean, startedAt: number): void;
  /** Its connection is closed after this request, whatever the response says, unless other exchanges use it. */
  closeAfterResponse(): void;
  /** Sends a request that is complete. `framing`: the field that frames the body, or nothing. */
  send(request: UpstreamRequest, framing: string, content: Buffer | undefined): void;
  /** Sends the head of a request whose body follows with `write`, or with `writeChunk` and `endChunks`. */
  sendHead(request: UpstreamRequest, framing: string): void;
  /** True: it takes more. */
  write(part: Buffer, isLast: boolean): boolean;
  writeChunk(part: Buffer): boolean;
  endChunks(trailers?: readonly string[]): void;
  /** What is written until `uncork` is sent at once. */
  cork(): void;
  uncork(): void;
  /** Reading pauses after this read; the same as an `onData` that returns false. */
  pause(): void;
  resume(): void;
  /** Ends the exchange without reporting anything to the handler. */
  discard(): void;
}

/** The connections to one target. */
export interface UpstreamPool {
  /** `isFresh`: not on a connection that the upstream may be closing. */
  acquire(isFresh: boolean): UpstreamStream;
  /** Closes all connections; their exchanges fail. Resolves when the last one is closed. */
  close(): Promise<void>;
}
