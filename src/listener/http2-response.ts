import { type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { constants } from 'node:http2';
import type { Http2MessageStream, Http2Request } from './http2-request.ts';
import { resetStream, trackEndSent } from './node-quirks/http2.ts';

type HeaderFields = OutgoingHttpHeaders | OutgoingHttpHeader[];
type Callback = (error?: Error | null) => void;

/** RFC 9113 §8.2.2: not allowed in HTTP/2. */
const CONNECTION_FIELDS = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'te',
]);
const BODILESS_STATUSES = new Set([204, 205, 304]);

/**
 * An HTTP/2 response with the interface of an HTTP/1.1 response, without reason phrase and connection-specific fields.
 * Destroying it before its end resets the stream, so that the client does not take it for complete.
 */
export class Http2Response extends ServerResponse<Http2Request> {
  readonly #stream: Http2MessageStream;
  readonly #isEndSent: () => boolean;
  /** Written, but held back until the first part of the body or the end is sent with it. */
  #head: string[] | undefined;
  #isHeadWritten = false;
  #isBodiless: boolean;
  #isFinished = false;
  #wasReset = false;

  constructor(request: Http2Request, stream: Http2MessageStream) {
    super(request);
    // The constructor takes version "2.0" for one older than 1.1.
    this.shouldKeepAlive = true;
    this.#stream = stream;
    this.#isBodiless = request.method === 'HEAD';
    this.#isEndSent = trackEndSent(stream);
    stream
      .on('drain', () => this.emit('drain'))
      .on('finish', this.#finish)
      .on('error', () => {})
      .once('close', () => {
        if (this.#isEndSent()) this.#finish();
        this.destroyed = true;
        this.emit('close');
      });
  }

  override writeHead(status: number, reasonOrFields?: string | HeaderFields, fields?: HeaderFields): this {
    if (this.#isHeadWritten) throw new Error('the response head was already written');
    // Node would reject it only when the head is sent, too late for another response.
    if (!(status >= 200 && status <= 599)) throw new RangeError(`not a final HTTP status: ${status}`);
    this.#isHeadWritten = true;
    this.statusCode = status;
    this.#isBodiless ||= BODILESS_STATUSES.has(status);
    const headers = typeof reasonOrFields === 'string' ? fields : reasonOrFields;
    this.#head = buildHeaderList(status, this.getHeaders(), headers);
    return this;
  }

  override flushHeaders(): void {
    this.#sendHead(false);
  }

  override write(part: string | Uint8Array, encoding?: BufferEncoding | Callback, done?: Callback): boolean {
    const callback = typeof encoding === 'function' ? encoding : done;
    this.#sendHead(false);
    if (this.#isClosed || this.finished || this.#isBodiless) {
      if (callback !== undefined) process.nextTick(callback);
      return !this.#isClosed;
    }
    return this.#stream.write(part, typeof encoding === 'string' ? encoding : 'utf8', callback);
  }

  override end(
    part?: string | Uint8Array | Callback,
    encoding?: BufferEncoding | Callback,
    done?: Callback,
  ): this {
    if (this.finished) return this;
    const body = typeof part === 'function' || part === undefined || part.length === 0 ? undefined : part;
    const callback = [part, encoding, done].find((one) => typeof one === 'function');
    if (callback !== undefined) this.once('finish', callback);
    this.finished = true;
    if (!this.#isHeadWritten) this.writeHead(this.statusCode);
    const hasNoBody = body === undefined || this.#isBodiless;
    const endWithHead = this.#head !== undefined && hasNoBody;
    this.#sendHead(endWithHead);
    // Node ends the stream of a response without a body as soon as its head is sent.
    if (this.#stream.writableFinished) process.nextTick(this.#finish);
    if (endWithHead || this.#isClosed) return this;
    if (hasNoBody) this.#stream.end();
    else this.#stream.end(body, typeof encoding === 'string' ? encoding : 'utf8');
    return this;
  }

  override writeContinue(callback?: Callback): void {
    if (!this.#isClosed && !this.#isHeadWritten) this.#stream.additionalHeaders({ ':status': 100 });
    if (callback !== undefined) process.nextTick(callback);
  }

  /** Resets the stream, unless the response is complete. */
  override destroy(_error?: Error): this {
    if (this.destroyed) return this;
    this.destroyed = true;
    this.#wasReset = true;
    resetStream(this.#stream);
    return this;
  }

  /** Whether `destroy` was called before the end. */
  get wasReset(): boolean {
    return this.#wasReset;
  }

  readonly #finish = (): void => {
    // Node also emits `finish` for a stream that is reset.
    if (!this.finished || this.#isFinished || this.destroyed || this.#stream.aborted) return;
    this.#isFinished = true;
    this.emit('finish');
    if (!this.req.complete && !this.#stream.closed) this.#stream.close(constants.NGHTTP2_NO_ERROR);
  };

  get #isClosed(): boolean {
    return this.destroyed || this.#stream.closed || this.#stream.destroyed;
  }

  #sendHead(end: boolean): void {
    if (!this.#isHeadWritten) this.writeHead(this.statusCode);
    const head = this.#head;
    if (head === undefined) return;
    this.#head = undefined;
    if (!this.#isClosed) this.#stream.respond(head, { endStream: end });
  }

  // Node defines these as accessors; @types/node declares them as properties.
  // @ts-expect-error TS2611
  override get headersSent(): boolean {
    return this.#isHeadWritten;
  }

  // @ts-expect-error TS2611
  override get writableLength(): number {
    return this.#stream.writableLength;
  }

  // @ts-expect-error TS2611
  override get writableFinished(): boolean {
    return this.#isFinished;
  }
}

/** `fields` take precedence over `preset`. */
function buildHeaderList(status: number, preset: OutgoingHttpHeaders, fields: HeaderFields = []): string[] {
  const list = [':status', String(status)];
  const names = new Set<string>();
  const add = (name: string, value: unknown): void => {
    const lower = name.toLowerCase();
    names.add(lower);
    if (value === undefined || CONNECTION_FIELDS.has(lower)) return;
    for (const item of Array.isArray(value) ? value : [value]) list.push(lower, String(item));
  };
  if (Array.isArray(fields))
    for (let at = 0; at + 1 < fields.length; at += 2) add(String(fields[at]), fields[at + 1]);
  else for (const [name, value] of Object.entries(fields)) add(name, value);
  const presetFields = Object.entries(preset);
  for (const [name, value] of presetFields) if (!names.has(name)) add(name, value);
  return list;
}
