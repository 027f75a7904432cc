import { type IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { constants } from 'node:http2';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { resetStream } from './node-quirks/http2.ts';

/** What `Http2Request` and `Http2Response` use of an HTTP/2 stream: Node's, or our own. */
export interface Http2MessageStream extends Duplex {
  /** The request has no body. */
  readonly endAfterHeaders: boolean;
  /** The stream has ended before both sides were complete. */
  readonly aborted: boolean;
  readonly state: { readonly localClose?: number | undefined };
  respond(list: string[], options: { readonly endStream: boolean }): void;
  additionalHeaders(fields: { readonly ':status': number }): void;
  close(code: number): void;
}

export interface Http2RequestHead {
  readonly method: string;
  readonly path: string;
  /** Names and values like those of an HTTP/1.1 request. */
  readonly fields: string[];
  /** As defined by RFC 9113 §6.5.2: names, values, and 32 bytes for each field. */
  readonly size: number;
}

/**
 * An HTTP/2 request with the interface of an HTTP/1.1 request: pseudo-header fields become method, target and Host, and
 * cookies one field (RFC 9113 §8.2.3, §8.3.1). Destroying it ends its stream, not the connection.
 */
export class Http2Request extends IncomingMessage {
  readonly #stream: Http2MessageStream;
  readonly headSize: number;
  #isReading = false;

  constructor(stream: Http2MessageStream, socket: Socket, head: Http2RequestHead) {
    super(socket);
    this.#stream = stream;
    // "2.0" is what Node's HTTP/1.1 parser reports for a request line that says so.
    this.httpVersion = '2';
    this.httpVersionMajor = 2;
    this.httpVersionMinor = 0;
    this.method = head.method;
    this.url = head.path;
    this.rawHeaders = head.fields;
    this.headSize = head.size;
    this.headers = mergeFields(head.fields);
    this.complete = stream.endAfterHeaders;
    stream.once('close', () => void this.destroy());
  }

  override _read(): void {
    if (this.#isReading) {
      this.#stream.resume();
      return;
    }
    this.#isReading = true;
    if (this.complete) {
      this.push(null);
      return;
    }
    this.#stream
      .on('data', (part: Buffer) => {
        if (!this.push(part)) this.#stream.pause();
      })
      .on('end', () => {
        // Also emitted by a stream that was reset.
        if (this.#stream.aborted) return;
        this.complete = true;
        this.push(null);
      });
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const stream = this.#stream;
    // RFC 9113 §8.1: after a complete response, the rest of the request is discarded with NO_ERROR.
    if (!this.complete && stream.writableEnded && !stream.closed) stream.close(constants.NGHTTP2_NO_ERROR);
    else if (!this.complete) resetStream(stream);
    process.nextTick(callback, error);
  }
}

/** RFC 9110 §5.3: as in Node, values of the same name become one. */
function mergeFields(fields: readonly string[]): IncomingHttpHeaders {
  const merged: Record<string, string> = { __proto__: null as never };
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const name = fields[at] as string;
    const value = fields[at + 1] as string;
    merged[name] = merged[name] === undefined ? value : `${merged[name]}, ${value}`;
  }
  return merged;
}

/** `rawHeaders`: names and values, with pseudo-header fields. */
export function parseRequestHead(rawHeaders: readonly string[]): Http2RequestHead {
  const head = { method: '', path: '', fields: [] as string[], size: 0 };
  const { fields } = head;
  let authority: string | undefined;
  let cookieAt = -1;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    const value = rawHeaders[at + 1] ?? '';
    head.size += name.length + value.length + 32;
    switch (name) {
      case ':method':
        head.method = value;
        break;
      case ':path':
        head.path = value;
        break;
      case ':authority':
        authority = value;
        fields.push('host', value);
        break;
      case ':scheme':
      case ':protocol':
        break;
      case 'host':
        // Differing values are kept: the policy rejects more than one Host.
        if (value !== authority) fields.push(name, value);
        break;
      case 'cookie':
        if (cookieAt >= 0) fields[cookieAt] = `${fields[cookieAt]}; ${value}`;
        else cookieAt = fields.push(name, value) - 1;
        break;
      default:
        fields.push(name, value);
    }
  }
  return head;
}
