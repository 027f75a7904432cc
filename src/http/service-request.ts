import type { Epoch } from '../domain/grant.ts';
import type { BodySink, Downstream } from './downstream.ts';
import type { HttpRequest, LocalEndpoint, RequestContext, RequestNotes } from './request-context.ts';
import type { HeaderFields, HttpVersion, RequestHead } from './request-head.ts';

export type BodyReadResult =
  | { readonly kind: 'complete'; readonly bytes: Buffer }
  | { readonly kind: 'too_large' }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'aborted' };

/** Reads a request body into memory, which is charged to the client. It stops when the body exceeds the size or the time. */
export function readBody(
  downstream: Downstream,
  { contentLength = 0 }: RequestHead,
  maxBytes: number,
  seconds: number,
): Promise<BodyReadResult> {
  if (contentLength > maxBytes) return Promise.resolve({ kind: 'too_large' });
  return new Promise((resolve) => {
    const collected = new CollectedBytes(maxBytes, (bytes) => downstream.hold(bytes));
    let isSettled = false;
    const finish = (result: BodyReadResult): void => {
      if (isSettled) return;
      isSettled = true;
      clearTimeout(timer);
      if (result.kind !== 'complete') downstream.pause();
      resolve(result);
    };
    const sink: BodySink = {
      push(part) {
        if (!isSettled && !collected.add(part)) finish({ kind: 'too_large' });
      },
      end: () => finish({ kind: 'complete', bytes: collected.bytes }),
      abort: () => finish({ kind: 'aborted' }),
    };
    const timer = setTimeout(() => finish({ kind: 'timeout' }), seconds * 1_000);
    const first = downstream.takeBody(sink);
    if (first !== undefined) sink.push(first);
    if (downstream.isComplete) sink.end();
    else if (downstream.isClosed) sink.abort();
    else downstream.resume();
  });
}

const MIN_CAPACITY = 1_024;

/** Bytes that arrive in parts. They are copied: a chunk of one byte would keep an object, and the read that it was a part of. */
class CollectedBytes {
  readonly #maxBytes: number;
  readonly #hold: (bytes: number) => void;
  #buffer: Buffer = Buffer.alloc(0);
  #length = 0;

  constructor(maxBytes: number, hold: (bytes: number) => void) {
    this.#maxBytes = maxBytes;
    this.#hold = hold;
  }

  get bytes(): Buffer {
    return this.#buffer.subarray(0, this.#length);
  }

  /** Returns false if there are too many. */
  add(part: Buffer): boolean {
    const length = this.#length + part.length;
    if (length > this.#maxBytes) return false;
    if (length > this.#buffer.length) this.#grow(length);
    part.copy(this.#buffer, this.#length);
    this.#length = length;
    return true;
  }

  #grow(length: number): void {
    const previous = this.#buffer;
    this.#buffer = Buffer.allocUnsafeSlow(
      Math.min(this.#maxBytes, Math.max(length, 2 * previous.length, MIN_CAPACITY)),
    );
    this.#hold(this.#buffer.length - previous.length);
    previous.copy(this.#buffer, 0, 0, this.#length);
  }
}

type ServiceRequestInit = Pick<
  RequestContext,
  'request' | 'id' | 'arrivedAt' | 'peer' | 'local' | 'clientAddress' | 'certificate' | 'notes'
> & { readonly sourceUnknown: boolean };

/**
 * A class, since one is created for each request: each object literal with a getter has a hidden class of its own, which
 * lives until a full garbage collection together with all it refers to (docs/decisions/0040-performance-work.md).
 */
export class ReceivedRequest implements HttpRequest {
  readonly method: string;
  readonly url: string;
  readonly httpVersion: HttpVersion;
  readonly head: RequestHead;

  constructor(method: string, url: string, httpVersion: HttpVersion, head: RequestHead) {
    this.method = method;
    this.url = url;
    this.httpVersion = httpVersion;
    this.head = head;
  }

  get rawHeaders(): readonly string[] {
    return this.head.rawHeaders;
  }

  get headers(): HeaderFields {
    return this.head.headers;
  }
}

/** A request that gatehouse serves itself. */
export class ServiceRequest implements RequestContext {
  readonly request: HttpRequest;
  readonly id: string;
  readonly arrivedAt: Epoch;
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly local: LocalEndpoint;
  readonly clientAddress: string;
  readonly certificate: () => Buffer | undefined;
  readonly notes: RequestNotes;
  /** Undefined after the end of the request: the connection may serve another one. */
  #downstream: Downstream | undefined;

  constructor(init: ServiceRequestInit, downstream: Downstream) {
    this.request = init.request;
    this.id = init.id;
    this.arrivedAt = init.arrivedAt;
    this.peer = init.peer;
    this.sourceUnknown = init.sourceUnknown;
    this.local = init.local;
    this.clientAddress = init.clientAddress;
    this.certificate = init.certificate;
    this.notes = init.notes;
    this.#downstream = downstream;
  }

  /** The request has ended. */
  detach(): void {
    this.#downstream = undefined;
  }

  readBody(maxBytes: number, seconds: number): Promise<BodyReadResult> {
    return this.#downstream === undefined
      ? Promise.resolve({ kind: 'aborted' })
      : readBody(this.#downstream, this.request.head, maxBytes, seconds);
  }

  hold(bytes: number): void {
    this.#downstream?.hold(bytes);
  }

  markAuthorized(): void {
    this.#downstream?.markAuthorized();
  }

  note(fields: RequestNotes): void {
    Object.assign(this.notes, fields);
  }
}
