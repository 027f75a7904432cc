import { type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { constants, type ServerHttp2Stream } from 'node:http2';
import { breakOff, type Http2Request } from './http2-request.ts';

type Fields = OutgoingHttpHeaders | OutgoingHttpHeader[];
type Done = (error?: Error | null) => void;

/** RFC 9113 §8.2.2: about one connection of HTTP/1.1, and an error here. */
const CONNECTION_FIELDS = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'te',
]);
const WITHOUT_BODY = new Set([204, 205, 304]);

/**
 * The answer to a request that came over HTTP/2, in the shape the rest of the house knows. There is no reason phrase
 * and no field about the connection. What is destroyed before its end is reset, so that nobody takes it for whole.
 */
export class Http2Response extends ServerResponse<Http2Request> {
  readonly #stream: ServerHttp2Stream;
  /** Decided, and not yet sent: what comes with it goes with it. */
  #head: string[] | undefined;
  #headDone = false;
  #bodiless: boolean;
  #sent = false;
  #endSent = false;
  #cut = false;

  constructor(request: Http2Request, stream: ServerHttp2Stream) {
    super(request);
    // The constructor takes "2.0" for something older than 1.1.
    this.shouldKeepAlive = true;
    this.#stream = stream;
    this.#bodiless = request.method === 'HEAD';
    stream
      .on('drain', () => this.emit('drain'))
      .on('finish', this.#settle)
      .on('error', () => {})
      .once('close', () => {
        if (this.#endSent) this.#settle();
        this.destroyed = true;
        this.emit('close');
      });
    // A stream whose request was read to its end is destroyed by node as soon as the end of its answer is sent, and then
    // never finishes. Whether it was sent, or the client has reset it, can be asked until then.
    const destroy = stream.destroy.bind(stream);
    stream.destroy = (error) => {
      this.#endSent ||= stream.state.localClose === 1;
      return destroy(error);
    };
  }

  override writeHead(status: number, reasonOrFields?: string | Fields, fields?: Fields): this {
    if (this.#headDone) throw new Error('the head was written before');
    // Node would refuse it when the head is sent, and then it is too late for another answer.
    if (!(status >= 200 && status <= 599)) throw new RangeError(`no status of HTTP/2: ${status}`);
    this.#headDone = true;
    this.statusCode = status;
    this.#bodiless ||= WITHOUT_BODY.has(status);
    const given = typeof reasonOrFields === 'string' ? fields : reasonOrFields;
    this.#head = fieldsOf(status, this.getHeaders(), given);
    return this;
  }

  override flushHeaders(): void {
    this.#sendHead(false);
  }

  override write(part: string | Uint8Array, encoding?: BufferEncoding | Done, done?: Done): boolean {
    const callback = typeof encoding === 'function' ? encoding : done;
    this.#sendHead(false);
    if (this.#gone || this.finished || this.#bodiless) {
      if (callback !== undefined) process.nextTick(callback);
      return !this.#gone;
    }
    return this.#stream.write(part, typeof encoding === 'string' ? encoding : 'utf8', callback);
  }

  override end(part?: string | Uint8Array | Done, encoding?: BufferEncoding | Done, done?: Done): this {
    if (this.finished) return this;
    const body = typeof part === 'function' || part === undefined || part.length === 0 ? undefined : part;
    const callback = [part, encoding, done].find((one) => typeof one === 'function');
    if (callback !== undefined) this.once('finish', callback);
    this.finished = true;
    if (!this.#headDone) this.writeHead(this.statusCode);
    const alone = body === undefined || this.#bodiless;
    const inOne = this.#head !== undefined && alone;
    this.#sendHead(inOne);
    // Node ends the stream of an answer without a body as soon as its head is sent.
    if (this.#stream.writableFinished) process.nextTick(this.#settle);
    if (inOne || this.#gone) return this;
    if (alone) this.#stream.end();
    else this.#stream.end(body, typeof encoding === 'string' ? encoding : 'utf8');
    return this;
  }

  override writeContinue(callback?: Done): void {
    if (!this.#gone && !this.#headDone) this.#stream.additionalHeaders({ ':status': 100 });
    if (callback !== undefined) process.nextTick(callback);
  }

  /** A reset, unless the answer is whole already. */
  override destroy(_error?: Error): this {
    if (this.destroyed) return this;
    this.destroyed = true;
    this.#cut = true;
    breakOff(this.#stream);
    return this;
  }

  /** It was we who ended it before its end. */
  get cut(): boolean {
    return this.#cut;
  }

  /** Everything was handed to the connection. */
  readonly #settle = (): void => {
    // A stream that is reset is finished by node, too.
    if (!this.finished || this.#sent || this.destroyed || this.#stream.aborted) return;
    this.#sent = true;
    this.emit('finish');
    if (!this.req.complete && !this.#stream.closed) this.#stream.close(constants.NGHTTP2_NO_ERROR);
  };

  get #gone(): boolean {
    return this.destroyed || this.#stream.closed || this.#stream.destroyed;
  }

  #sendHead(end: boolean): void {
    if (!this.#headDone) this.writeHead(this.statusCode);
    const head = this.#head;
    if (head === undefined) return;
    this.#head = undefined;
    if (!this.#gone) this.#stream.respond(head, { endStream: end });
  }

  isHeadSent(): boolean {
    return this.#headDone;
  }

  isSent(): boolean {
    return this.#sent;
  }

  unsentBytes(): number {
    return this.#stream.writableLength;
  }
}

// Accessors of node's own class, which look at a socket that is not there.
Object.defineProperties(Http2Response.prototype, {
  headersSent: {
    get(this: Http2Response) {
      return this.isHeadSent();
    },
  },
  writableLength: {
    get(this: Http2Response) {
      return this.unsentBytes();
    },
  },
  writableFinished: {
    get(this: Http2Response) {
      return this.isSent();
    },
  },
});

function fieldsOf(status: number, before: OutgoingHttpHeaders, given: Fields = []): string[] {
  const list = [':status', String(status)];
  const names = new Set<string>();
  const add = (name: string, value: unknown): void => {
    const lower = name.toLowerCase();
    names.add(lower);
    if (value === undefined || CONNECTION_FIELDS.has(lower)) return;
    for (const one of Array.isArray(value) ? value : [value]) list.push(lower, String(one));
  };
  if (Array.isArray(given))
    for (let at = 0; at + 1 < given.length; at += 2) add(String(given[at]), given[at + 1]);
  else for (const [name, value] of Object.entries(given)) add(name, value);
  const set = Object.entries(before);
  for (const [name, value] of set) if (!names.has(name)) add(name, value);
  return list;
}
