import type { Epoch } from '../domain/epoch.ts';
import type { Downstream } from './downstream.ts';
import { type BodyReadResult, readBody } from './read-body.ts';
import type { HttpRequest, LocalEndpoint, RequestContext, RequestNotes } from './request-context.ts';
import type { HeaderFields, HttpVersion, RequestHead } from './request-head.ts';

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
