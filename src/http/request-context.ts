import type { Epoch } from '../domain/grant.ts';
import type { HeaderFields, HttpVersion, RequestHead } from './request-head.ts';
import type { BodyReadResult } from './service-request.ts';

/** The head of a request, whichever protocol brought it. */
export interface HttpRequest {
  readonly method: string;
  /** The request target, as sent. */
  readonly url: string;
  readonly httpVersion: HttpVersion;
  readonly head: RequestHead;
  /** Names and values in their order. */
  readonly rawHeaders: readonly string[];
  /** By names in lower case. */
  readonly headers: HeaderFields;
}

/** The addresses of the own end of a connection. */
export interface LocalEndpoint {
  readonly localAddress?: string | undefined;
  readonly localPort?: number | undefined;
}

/** A request, and what is known about its client. */
export interface RequestContext {
  readonly request: HttpRequest;
  /** In all log lines and refusals of this request. */
  readonly id: string;
  readonly arrivedAt: Epoch;
  /** The remote address of the socket, or the source in its PROXY header. */
  readonly peer: string;
  /** `peer` is a load balancer whose PROXY header names no source: forwarded headers are not trusted. */
  readonly sourceUnknown?: boolean;
  readonly local: LocalEndpoint;
  /** The peer, or the address that trusted proxies forward. */
  readonly clientAddress: string;
  /** The client's leaf certificate (DER), whose key it proved to hold in the handshake of this connection. */
  readonly certificate: () => Buffer | undefined;
  /** Reads the body, up to a size and within a time. */
  readBody(maxBytes: number, seconds: number): Promise<BodyReadResult>;
  /** Charges the client with memory that is held until the end of the request. */
  hold(bytes: number): void;
  /** The client has proved who it is: its connection is closed last when there is no room. */
  markAuthorized(): void;
  /** Adds fields to the access log line. */
  note(fields: RequestNotes): void;
  readonly notes: RequestNotes;
}
/** A request after its end, for logs and metrics. */
export interface CompletedRequest extends Pick<RequestContext, 'id' | 'clientAddress' | 'notes'> {
  readonly request: { readonly method?: string | undefined; readonly url?: string | undefined };
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export interface TransferStats {
  /** Until the upstream response began. */
  readonly upstreamSeconds: number | undefined;
  /** Body bytes to the upstream and from it. */
  readonly bytesIn: number;
  readonly bytesOut: number;
  /** The response is an event stream, whose duration says nothing about latency. */
  readonly isEventStream: boolean;
}

export interface RequestNotes extends Partial<Mutable<TransferStats>> {
  rule?: string;
  decision?: string;
  reason?: string;
  identity?: string;
  /** The user name of the identity. */
  name?: string;
  clientId?: string;
  grantId?: string;
  upstream?: string;
  /** For calls of gRPC: `package.Service/Method`, and the code of the result. */
  grpcMethod?: string;
  grpcStatus?: number;
  /** The traceparent sent to the upstream, and the caller's span if this request is recorded. */
  trace?: string;
  parentSpan?: string;
  /** Instead of the four numbers: counters that are still changing. */
  transfer?: TransferStats;
  /** Method and path of the request that another gateway asks about. */
  original?: string;
  /** Its id and the address of its client, where they are not those of the request that asks. */
  originalId?: string;
  originalAddress?: string;
}

export interface RequestOutcome {
  readonly status: number;
  readonly seconds: number;
  /** The client disconnected before the response was complete. */
  readonly aborted: boolean;
}
