import { type IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { constants, type ServerHttp2Stream } from 'node:http2';
import type { Socket } from 'node:net';

/**
 * A request that came over HTTP/2, in the shape the rest of the house knows: the pseudo header fields have become
 * method, target and Host, and cookies one field (RFC 9113 §8.2.3, §8.3.1). `complete` means that its end was seen.
 * To destroy it ends its stream, and never the connection, which carries the requests of others.
 */
export class Http2Request extends IncomingMessage {
  readonly #stream: ServerHttp2Stream;
  /** As RFC 9113 §6.5.2 counts: names, values, and 32 for each. */
  readonly headSize: number;
  #reading = false;

  constructor(
    stream: ServerHttp2Stream,
    socket: Socket,
    headers: IncomingHttpHeaders & Record<string, unknown>,
    rawHeaders: readonly string[],
    /** Learns of each part of the body that arrives, also while it is not read. */
    onPart: (size: number) => void,
  ) {
    super(socket);
    this.#stream = stream;
    // What came together with the header section.
    if (stream.readableLength > 0) onPart(stream.readableLength);
    const push = stream.push.bind(stream);
    stream.push = (part: Buffer | null, encoding) => {
      if (part !== null) onPart(part.length);
      return push(part, encoding);
    };
    // Not "2.0": so calls node a request of HTTP/1.1 that only says it were one.
    this.httpVersion = '2';
    this.httpVersionMajor = 2;
    this.httpVersionMinor = 0;
    const head = readFields(rawHeaders);
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
    if (this.#reading) {
      this.#stream.resume();
      return;
    }
    this.#reading = true;
    if (this.complete) {
      this.push(null);
      return;
    }
    this.#stream
      .on('data', (part: Buffer) => {
        if (!this.push(part)) this.#stream.pause();
      })
      .on('end', () => {
        // A stream that was reset ends as well.
        if (this.#stream.aborted) return;
        this.complete = true;
        this.push(null);
      });
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const stream = this.#stream;
    // RFC 9113 §8.1: after a whole answer the rest of the request is not an error, only not wanted.
    if (!this.complete && stream.writableEnded && !stream.closed) stream.close(constants.NGHTTP2_NO_ERROR);
    else if (!this.complete) breakOff(stream);
    process.nextTick(callback, error);
  }
}

const CUT = new Error('cut off');

/**
 * Resets a stream. `close` with an error code would not do: node ends the stream first, and the client sees a whole
 * answer where it was cut off.
 */
export function breakOff(stream: ServerHttp2Stream): void {
  if (!stream.closed) stream.destroy(CUT);
}

interface Fields {
  method: string;
  path: string;
  authority: string | undefined;
  fields: string[];
  size: number;
}

function readFields(rawHeaders: readonly string[]): Fields {
  const read: Fields = { method: '', path: '', authority: undefined, fields: [], size: 0 };
  const { fields } = read;
  let cookieAt = -1;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    const value = rawHeaders[at + 1] ?? '';
    read.size += name.length + value.length + 32;
    switch (name) {
      case ':method':
        read.method = value;
        break;
      case ':path':
        read.path = value;
        break;
      case ':authority':
        read.authority = value;
        fields.push('host', value);
        break;
      case ':scheme':
      case ':protocol':
        break;
      case 'host':
        // Two that differ stay two, and whoever reads the head refuses them.
        if (value !== read.authority) fields.push(name, value);
        break;
      case 'cookie':
        if (cookieAt >= 0) fields[cookieAt] = `${fields[cookieAt]}; ${value}`;
        else cookieAt = fields.push(name, value) - 1;
        break;
      default:
        fields.push(name, value);
    }
  }
  return read;
}

// An accessor of node's own class, which counts on its parser.
Object.defineProperty(Http2Request.prototype, 'headersDistinct', {
  get(this: Http2Request): NodeJS.Dict<string[]> {
    const distinct = Object.create(null) as Record<string, string[]>;
    for (let at = 0; at + 1 < this.rawHeaders.length; at += 2)
      (distinct[this.rawHeaders[at] ?? ''] ??= []).push(this.rawHeaders[at + 1] ?? '');
    return distinct;
  },
});
