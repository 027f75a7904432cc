import type { Socket } from 'node:net';
import type { Reply } from './reply.ts';
import type { HttpVersion, RequestHead } from './request-head.ts';

/*
 * The two sides of a request: the connection or stream that brought it, and what serves it. HTTP/1.1 and HTTP/2 implement the
 * first; the second does not know which one it has.
 */

/** Where a request body is read from. */
export interface BodySource {
  /** All of it has been received, or the request has no more. */
  readonly isComplete: boolean;
  pause(): void;
  resume(): void;
}

/** Gets the parts of a request body that arrive after the head was processed. */
export interface BodySink {
  /** The bytes are not used again. */
  push(part: Buffer): void;
  end(): void;
  /** The client has ended its side of the connection, or its body is malformed. */
  abort(): void;
}

/** The header fields of a forwarded response, in the form of either protocol. */
export interface ResponseFields {
  readonly list: readonly string[];
  /** As sent in HTTP/1.1; empty until it is needed. */
  text: string;
  /** With the status, as a header block of HTTP/2; undefined until it is needed. */
  block: Buffer | undefined;
}

/** The head of a forwarded response. */
export interface ForwardedHead {
  readonly status: number;
  readonly framing: 'none' | 'length' | 'chunked' | 'close';
  /** With framing `length`. */
  readonly length: number;
  /** It may be truncated, and nothing shows it. */
  readonly isEndUncertain: boolean;
  readonly hasDate: boolean;
}

/** The client's side of a request. It serves one request after another. */
export interface Downstream extends BodySource {
  /** The client has closed the connection or the stream. */
  readonly isClosed: boolean;
  /** Names and values of the trailers of the request, after all of its body; undefined: there are none. */
  readonly trailers: readonly string[] | undefined;
  /** The response head is written, or about to be. */
  readonly hasStarted: boolean;
  /** Bytes of the response that the client has not read. */
  readonly unread: number;
  /** RFC 9110 §15: HTTP/2 allows no status above 599. */
  readonly maxStatus: number;
  /** Charges the client with memory until the end of the request, or until it is authorized. */
  hold(bytes: number): void;
  /** The client has proved who it is. Its connection is closed last when there is no room. */
  markAuthorized(): void;
  /** What has arrived of the body. Later parts go to `sink`, after `resume`. */
  takeBody(sink: BodySink): Buffer | undefined;
  /** Sends a complete response. */
  respond(reply: Reply): void;
  /** `extra`: names and values of fields that differ for each response. */
  writeHead(head: ForwardedHead, fields: ResponseFields, id: string, extra: readonly string[]): void;
  /** A part of the body. The buffer is reused: it is copied before this returns. False: the client does not keep up. */
  write(bytes: Buffer, start: number, end: number): boolean;
  /** Everything that was read from the upstream at once has been written. False: the client does not keep up. */
  flush(): boolean;
  /** The response is complete. `trailers`: names and values; a client of HTTP/1.1 gets them only where it accepts them. */
  end(trailers?: readonly string[]): void;
  /**
   * The response is aborted, so that the client cannot mistake it for complete. `isClientFault`: because of the client, which
   * HTTP/2 can report.
   */
  abort(isClientFault: boolean): void;
  /** The unread connection of a WebSocket handshake, and the bytes after its head. A refusal can still be sent. */
  upgrade(): UpgradedConnection;
}

export interface UpgradedConnection {
  readonly socket: Socket;
  readonly head: Buffer;
  /** The response with status 101 was sent: the connection belongs to its new protocol. */
  release(): void;
}

/** Serves the requests of one connection or stream, one after another. */
export interface RequestHandler {
  /** The head of a request has arrived. */
  handle(method: string, target: string, version: HttpVersion, head: RequestHead): void;
  /** The client has read everything that was written. */
  onDrain(): void;
  /** The response was sent completely, or the request ended before that. The promise: something still works for the request. */
  onEnd(isAborted: boolean): Promise<unknown> | undefined;
  /** Something failed that is not the client's fault. */
  onInternalError(error: unknown): void;
}
