import { type IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { constants, type ServerHttp2Stream } from 'node:http2';
import type { Socket } from 'node:net';
import { resetStream } from './node-quirks/http2.ts';

/**
 * An HTTP/2 request with the interface of an HTTP/1.1 request: pseudo-header fields become method, target and Host, and
 * cookies one field (RFC 9113 §8.2.3, §8.3.1). Destroying it ends its stream, not the connection.
 */
export class Http2Request extends IncomingMessage {
  readonly #stream: ServerHttp2Stream;
  /** As defined by RFC 9113 §6.5.2: names, values, and 32 bytes for each field. */
  readonly headSize: number;
  #isReading = false;

  constructor(
    stream: ServerHttp2Stream,
    socket: Socket,
    headers: IncomingHttpHeaders & Record<string, unknown>,
    rawHeaders: readonly string[],
  ) {
    super(socket);
    this.#stream = stream;
    // "2.0" is what Node's HTTP/1.1 parser reports for a request line that says so.
    this.httpVersion = '2';
    this.httpVersionMajor = 2;
    this.httpVersionMinor = 0;
    const head = parseHead(rawHeaders);
    this.method = head.method;
    this.url = head.path;
    this.rawHeaders = head.fields;
    this.headSize = head.size;
    if (headers.host === undefined && head.authority !== undefined) headers.host = head.authority;
    this.headers = headers;
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

interface RequestHead {
  method: string;
  path: string;
  authority: string | undefined;
  fields: string[];
  size: number;
}

function parseHead(rawHeaders: readonly string[]): RequestHead {
  const head: RequestHead = { method: '', path: '', authority: undefined, fields: [], size: 0 };
  const { fields } = head;
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
        head.authority = value;
        fields.push('host', value);
        break;
      case ':scheme':
      case ':protocol':
        break;
      case 'host':
        // Differing values are kept: the policy rejects more than one Host.
        if (value !== head.authority) fields.push(name, value);
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
