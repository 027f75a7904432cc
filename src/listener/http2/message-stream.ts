import { Duplex } from 'node:stream';
import type { Http2MessageStream } from '../http2-request.ts';
import { encodeResponseFields } from './hpack-encoder.ts';
import { ErrorCode } from './protocol.ts';
import type { Http2Stream, StreamHandler } from './stream.ts';

type Callback = (error?: Error | null) => void;

/** Node's streams and messages for one request, and a short response. */
const MESSAGE_BYTES = 16_384;
/** RFC 9110 §5.5. */
const FIELD_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

/** A stream with the interface of Node's HTTP/2 streams, as far as `Http2Request` and `Http2Response` use it. */
export class MessageStream extends Duplex implements StreamHandler, Http2MessageStream {
  readonly endAfterHeaders: boolean;
  /** The client, or an error, has ended the stream before the response was complete. */
  aborted = false;
  readonly #stream: Http2Stream;
  readonly #log: (error: unknown) => void;
  /** Calls back when everything that was written has been sent. */
  #written: Callback | undefined = undefined;
  #ended: Callback | undefined = undefined;

  constructor(stream: Http2Stream, onInternalError: (error: unknown) => void) {
    super({ autoDestroy: false });
    this.#stream = stream;
    this.#log = onInternalError;
    this.endAfterHeaders = stream.isInputTaken;
    stream.hold(MESSAGE_BYTES);
  }

  /** As in Node: whether END_STREAM was sent. */
  get state(): { readonly localClose: number } {
    return { localClose: this.#stream.isOutputEnded ? 1 : 0 };
  }

  /** `list`: names and values, `:status` first. */
  respond(list: readonly string[], { endStream }: { readonly endStream: boolean }): void {
    this.#writeHeaders(list, endStream);
  }

  additionalHeaders({ ':status': status }: { readonly ':status': number }): void {
    this.#writeHeaders([':status', String(status)], false);
  }

  #writeHeaders([, status, ...fields]: readonly string[], isEnd: boolean): void {
    if (!fields.every((text) => FIELD_VALUE.test(text))) throw new TypeError('an invalid header field');
    const block = encodeResponseFields(Number(status), fields);
    this.#stream.writeHeaders(
      { maxSize: block.length, writeTo: (out, at) => at + block.copy(out, at) },
      isEnd,
    );
  }

  close(code: number): void {
    // The rest of the response is sent first; then the connection discards the rest of the request.
    if (code === ErrorCode.noError && this.writableEnded && !this.#stream.isClosed) return;
    this.#stream.reset(code as ErrorCode);
    this.destroy();
  }

  override _read(): void {
    this.#stream.resume();
  }

  override _write(part: Buffer, _encoding: BufferEncoding, callback: Callback): void {
    // Node keeps the part until the callback.
    this.#stream.hold(part.length);
    const written = (): void => {
      this.#stream.hold(-part.length);
      callback();
    };
    if (this.#stream.write(part, 0, part.length, false, true)) written();
    else this.#written = written;
  }

  override _final(callback: Callback): void {
    this.#ended = callback;
    this.#stream.end();
  }

  override _destroy(error: Error | null, callback: Callback): void {
    this.#stream.reset(error === null ? ErrorCode.cancel : ErrorCode.internalError);
    callback(error);
  }

  onData(part: Buffer): void {
    if (!this.push(part)) this.#stream.pause();
  }

  onInputEnd(): void {
    this.push(null);
  }

  onReadEnd(): void {}

  onDrain(): void {
    const written = this.#written;
    this.#written = undefined;
    written?.();
  }

  onSent(): void {
    this.#ended?.();
    // After `finish`, which Node emits in a later tick.
    setImmediate(() => this.destroy());
  }

  onClose(): void {
    this.aborted = true;
    this.destroy();
  }

  onInternalError(error: unknown): void {
    this.#log(error);
    this.destroy(error instanceof Error ? error : new Error(String(error)));
  }
}
