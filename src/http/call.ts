import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Epoch } from '../domain/epoch.ts';

/** A request on its way through the house, with what the listener found out about it. */
export interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Goes into every log line and every refusal. */
  readonly id: string;
  readonly arrivedAt: Epoch;
  /** The other end of the socket (or what the PROXY protocol said, from listed peers). */
  readonly peer: string;
  /** `peer` relays this connection for others, and its PROXY header does not name them: its headers are not trusted. */
  readonly sourceUnknown?: boolean;
  /** Who is calling: the peer, or through listed proxies what they say. */
  readonly clientAddress: string;
  /** The leaf certificate the client proved possession of in this connection's handshake, DER. */
  readonly certificate: () => Buffer | undefined;
  /** A WebSocket handshake: the connection itself, from which nobody reads yet, and what came right after the head. */
  readonly upgrade?: { readonly socket: Duplex; readonly head: Buffer };
  /** What the room that answered wants in the request's log line. */
  note(fields: CallNote): void;
  readonly notes: CallNote;
}

/** What is told about a call when it is over: whoever counts or writes it down needs no more. */
export interface DoneCall extends Pick<Call, 'id' | 'clientAddress' | 'notes'> {
  readonly request: { readonly method?: string | undefined; readonly url?: string | undefined };
}

export interface Tally {
  /** Until the upstream's answer began. */
  readonly upstreamSeconds: number | undefined;
  /** Of the bodies, to the upstream and from it. */
  readonly bytesIn: number;
  readonly bytesOut: number;
}

export interface CallNote {
  readonly rule?: string;
  readonly decision?: string;
  readonly reason?: string;
  readonly identity?: string;
  readonly clientId?: string;
  readonly grantId?: string;
  readonly upstream?: string;
  /** The traceparent it is sent on with, and the span that called us when this request is recorded as one. */
  readonly trace?: string;
  readonly parentSpan?: string;
  /** Until the upstream's answer began. */
  readonly upstreamSeconds?: number;
  /** Of the bodies carried between client and upstream. */
  readonly bytesIn?: number;
  readonly bytesOut?: number;
  /** In place of these three: somebody who goes on counting. */
  readonly carried?: Tally;
  /** Method and path of the request another gateway asked about. */
  readonly original?: string;
}
