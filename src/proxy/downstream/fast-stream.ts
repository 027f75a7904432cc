import type { HeaderBlock } from '../../listener/http2/frame-writer.ts';
import {
  encodeFieldName,
  encodeResponseFields,
  getMaxFieldBytes,
  writeField,
  writeString,
} from '../../listener/http2/hpack-encoder.ts';
import { ErrorCode } from '../../listener/http2/protocol.ts';
import type { Http2Stream, StreamHandler } from '../../listener/http2/stream.ts';
import { errorFields } from '../../observability/logger.ts';
import { type Downstream, Exchange } from '../exchange.ts';
import type { EarlyResponse, ProxyRefusal } from '../policy/refusals.ts';
import { METHODS_WITH_BODY } from '../policy/request-head.ts';
import { type BodySource, RequestBody } from '../request-body.ts';
import { clientFieldsBlock } from '../response-fields.ts';
import { UpstreamError } from '../upstream/connection.ts';
import type { ResponseHead } from '../upstream/response-head.ts';
import type { FastPathContext } from './fast-path.ts';
import type { FastPeer } from './fast-peer.ts';
import {
  type FastPathDecision,
  FastRequest,
  type FastRequestOwner,
  isFastPathRefusal,
} from './fast-request.ts';
import { type FallbackReason, isFastPathTarget } from './request-parser.ts';
import { formatDate } from './response-text.ts';

/**
 * - `idle`: it can serve a stream.
 * - `receiving`: the rest of what has arrived is processed first: it may contain the whole body.
 * - `authorizing`: a token is being verified; `abandoned`: its stream was closed meanwhile.
 * - `busy`: the request is being forwarded, or its response is being sent.
 */
type State = 'idle' | 'receiving' | 'authorizing' | 'abandoned' | 'busy';

const REQUEST_ID_NAME = encodeFieldName('x-request-id');
const DATE_NAME = encodeFieldName('date');

/** Serves HTTP/2 streams on the fast path, one after another. */
export class FastStream implements StreamHandler, Downstream, FastRequestOwner, BodySource, HeaderBlock {
  hasStarted = false;
  readonly #context: FastPathContext;
  readonly #request: FastRequest;
  readonly #exchange: Exchange;
  readonly #onIdle: (served: FastStream) => void;
  #stream!: Http2Stream;
  #fallBack!: (stream: Http2Stream) => void;
  #state: State = 'idle';
  /** The response head, until it is written together with what follows it. */
  #head: ResponseHead | undefined = undefined;
  #fieldsBlock!: Buffer;
  /** Bytes of the response body that are still to come; negative: unknown. */
  #bodyLeft = 0;
  #isSent = false;
  #isComplete = false;

  constructor(context: FastPathContext, peer: FastPeer, onIdle: (served: FastStream) => void) {
    this.#context = context;
    this.#onIdle = onIdle;
    this.#request = new FastRequest(context, peer, this);
    this.#exchange = new Exchange(this);
  }

  /** False: the full path serves it. */
  serve(stream: Http2Stream, fallBack: (stream: Http2Stream) => void): boolean {
    const reason = this.#prepare(stream);
    if (reason !== undefined) {
      this.#context.onFallback(stream.connection.socket, reason);
      return false;
    }
    this.#stream = stream;
    this.#fallBack = fallBack;
    this.hasStarted = false;
    this.#isSent = false;
    this.#isComplete = false;
    this.#state = 'receiving';
    stream.handler = this;
    if (stream.isInputEnded) this.#authorize();
    else stream.awaitReadEnd();
    return true;
  }

  #prepare({ fields, isInputEnded }: Http2Stream): FallbackReason | undefined {
    const { method, path, contentLength } = fields;
    const { readerLimits, headerCache } = this.#context;
    if (!isFastPathTarget(method, path)) return 'head';
    if (fields.isTooLarge || path.length > readerLimits.url) return 'size';
    // RFC 9113 §8.1: a body needs no length; it ends with the stream.
    if (!METHODS_WITH_BODY.has(method) && (!isInputEnded || contentLength !== undefined)) return 'framing';
    const cached = headerCache.read(fields.toText());
    if (typeof cached === 'string') return cached;
    const reason = this.#request.prepare(method, path, cached);
    if (reason !== undefined) return reason;
    return (contentLength ?? 0) > this.#request.maxBodyBytes ? 'body' : undefined;
  }

  onReadEnd(): void {
    if (this.#state === 'receiving') this.#authorize();
  }

  #authorize(): void {
    const decision = this.#request.authorize();
    if (decision === 'pending') this.#state = 'authorizing';
    else this.#proceed(decision);
  }

  onAuthorized(decision: FastPathDecision): void {
    if (this.#state === 'abandoned') {
      this.#stream.connection.release();
      return this.#release();
    }
    this.#state = 'receiving';
    try {
      this.#proceed(decision);
    } catch (error) {
      // The full path may have become the handler.
      this.#stream.onInternalError(error);
    }
  }

  #proceed(decision: FastPathDecision): void {
    if (decision === 'undecided' || decision.kind === 'asterisk') return this.#passOn('refused');
    if (decision.kind === 'refused') {
      if (!isFastPathRefusal(decision.refusal)) return this.#passOn('refused');
      this.#state = 'busy';
      return this.#respond(this.#request.reject(decision));
    }
    const upstream = this.#request.getUpstream(decision.rule);
    if (upstream === undefined) return this.#passOn('upstream');
    const stream = this.#stream;
    const { maxBodyBytes } = this.#request;
    if (stream.receivedBytes > maxBodyBytes) return this.#passOn('body');
    const exceeded = this.#request.takeQuota(decision);
    this.#state = 'busy';
    if (exceeded !== undefined) return this.#respond(this.#request.reject(exceeded));
    if (decision.caller !== undefined) stream.markAuthorized();
    const received = stream.takeReceived();
    const body = stream.isInputEnded
      ? undefined
      : new RequestBody(this, stream.fields.contentLength, maxBodyBytes, received);
    this.#request.forward(
      this.#exchange,
      upstream,
      decision,
      body === undefined ? received : undefined,
      body,
    );
  }

  /** The full path serves the request, with everything that has arrived of it. */
  #passOn(reason: FallbackReason): void {
    const stream = this.#stream;
    const fallBack = this.#fallBack;
    this.#context.onFallback(stream.connection.socket, reason);
    this.#release();
    fallBack(stream);
  }

  #release(): void {
    this.#state = 'idle';
    this.#head = undefined;
    this.#onIdle(this);
  }

  onData(part: Buffer): void {
    this.#request.forwarded.body?.push(part);
  }

  onInputEnd(): void {
    this.#request.forwarded.body?.end();
  }

  /** All of the request body was received. */
  get isComplete(): boolean {
    return this.#stream.isInputTaken;
  }

  pause(): void {
    this.#stream.pause();
  }

  resume(): void {
    this.#stream.resume();
  }

  get isClosed(): boolean {
    return this.#stream.isClosed;
  }

  get unread(): number {
    return this.#stream.unsentBytes;
  }

  writeHead(head: ResponseHead): void {
    // RFC 9110 §15.
    if (head.status > 599) throw new UpstreamError('an invalid status', 'malformed_response');
    this.#request.status = head.status;
    this.#fieldsBlock = clientFieldsBlock(this.#request.forwarded, head);
    this.#bodyLeft = head.framing === 'length' ? head.length : -1;
    this.#head = head;
    this.hasStarted = true;
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    this.#writeHead(false);
    this.#bodyLeft -= end - start;
    return this.#stream.write(bytes, start, end, this.#bodyLeft === 0);
  }

  flush(): boolean {
    this.#writeHead(false);
    return this.#stream.unsentBytes === 0;
  }

  end(): void {
    this.#isComplete = true;
    if (this.#isSent) return this.#finish(false);
    if (this.#head !== undefined) this.#writeHead(true);
    else this.#stream.end();
  }

  #writeHead(isEnd: boolean): void {
    if (this.#head === undefined) return;
    this.#stream.writeHeaders(this, isEnd);
    this.#head = undefined;
  }

  get maxSize(): number {
    const { id, limitFields } = this.#request.forwarded;
    let size =
      this.#fieldsBlock.length + getMaxFieldBytes('x-request-id', id) + getMaxFieldBytes('date', '') + 32;
    for (let at = 0; at < limitFields.length; at += 2)
      size += getMaxFieldBytes(limitFields[at] as string, limitFields[at + 1] as string);
    return size;
  }

  /** The header block of the response: the cached fields, and those that differ for each request. */
  writeTo(out: Buffer, start: number): number {
    const { id, limitFields } = this.#request.forwarded;
    let at = start + this.#fieldsBlock.copy(out, start);
    at += REQUEST_ID_NAME.copy(out, at);
    at = writeString(out, at, id);
    if (this.#head?.hasDate === false) {
      at += DATE_NAME.copy(out, at);
      at = writeString(out, at, formatDate());
    }
    for (let index = 0; index < limitFields.length; index += 2)
      at = writeField(
        out,
        at,
        (limitFields[index] as string).toLowerCase(),
        limitFields[index + 1] as string,
      );
    return at;
  }

  refuse(refusal: ProxyRefusal): void {
    this.#respond(this.#request.refuse(refusal));
  }

  /** Sends a response of gatehouse itself. */
  #respond({ status, text, headers }: EarlyResponse): void {
    const { method } = this.#request.request;
    const body = Buffer.from(method === 'HEAD' ? '' : text);
    const block = encodeResponseFields(status, [
      'content-length',
      String(Buffer.byteLength(text)),
      'cache-control',
      'no-store',
      ...Object.entries(headers).flat(),
      'date',
      formatDate(),
    ]);
    this.#request.status = status;
    this.hasStarted = true;
    this.#isComplete = true;
    const stream = this.#stream;
    stream.writeHeaders(
      { maxSize: block.length, writeTo: (out, at) => at + block.copy(out, at) },
      body.length === 0,
    );
    if (body.length > 0) stream.write(body, 0, body.length, true);
  }

  abort(isClientFault: boolean): void {
    this.#stream.reset(isClientFault ? ErrorCode.cancel : ErrorCode.internalError);
    this.#finish(true);
  }

  onDrain(): void {
    this.#exchange.clientDrained();
  }

  onSent(): void {
    this.#isSent = true;
    if (this.#isComplete) this.#finish(false);
  }

  onClose(): void {
    const state = this.#state;
    if (state === 'receiving') this.#release();
    else if (state === 'authorizing') {
      // It occupies the process until the token is verified.
      this.#state = 'abandoned';
      this.#stream.connection.retain();
    } else if (state === 'busy') {
      this.#exchange.clientClosed();
      this.#finish(true);
    }
  }

  #finish(isAborted: boolean): void {
    // Nothing is read ahead for this client any more.
    this.#exchange.clientDrained();
    this.#request.finish(isAborted);
    this.#release();
  }

  onInternalError(error: unknown): void {
    this.#context.log.error('internal_error', { request_id: this.#request.id, ...errorFields(error) });
    this.#stream.reset(ErrorCode.internalError);
    this.onClose();
  }
}
