import type { Epoch } from '../domain/epoch.ts';
import type { Call, DoneCall } from '../http/call.ts';
import type { Logger } from '../observability/logger.ts';
import type { Peers } from './caller.ts';
import type { FirstReader } from './first-reader.ts';
import type { TicketMaterial } from './session-tickets.ts';

/** What a secure context is made of. All of it is given again at every change: Node keeps nothing of the old one. */
export interface TlsMaterial {
  /** PEM: the chain, and its key. */
  readonly certificate: string;
  readonly key: string;
  readonly minVersion: 'TLSv1.2' | 'TLSv1.3';
  /** PEM of issuers whose names clients are told, so that they can pick a certificate. A hint; it decides nothing. */
  readonly issuers: readonly string[];
  /** Left out: no session is resumed. */
  readonly tickets?: TicketMaterial | undefined;
}

export interface PublicListenerOptions {
  readonly host: string;
  readonly port: number;
  /** Left out: plain HTTP, behind something that has ended TLS. */
  readonly tls?: TlsMaterial & {
    /** Where a client certificate is asked for: everywhere, nowhere, or under these host names (by SNI). */
    readonly askCertificate: 'always' | 'never' | readonly string[];
    /** Offer HTTP/2 beside HTTP/1.1 in the handshake. */
    readonly http2?: boolean;
  };
  readonly limits: ListenerLimits;
  readonly proxyProtocol: Peers;
  readonly trustedProxies: Peers;
  readonly onCall: (call: Call) => void;
  /** A handshake has ended well; `resumed`: it went on with a session of before. */
  readonly onSecured?: (resumed: boolean) => void;
  /** A connection came to nothing: its handshake failed, or there were too many. */
  readonly onTurnedAway?: (by: 'handshake' | 'connection') => void;
  /** A request has begun; `onDone` follows in any case. */
  readonly onBegin?: () => void;
  /** After the answer was sent, or the caller went away. */
  readonly onDone?: (call: DoneCall, end: CallEnd) => void;
  /** Reads HTTP/1.1 connections first, and gives back those that are not its business. */
  readonly firstReader?: FirstReader | undefined;
  readonly log: Logger;
  readonly now: () => Epoch;
}

export interface ListenerLimits {
  /** Bytes of a request head. */
  readonly headers: number;
  /** Characters of a request's target. */
  readonly url?: number;
  /** Seconds for a request head. */
  readonly headerTimeout: number;
  readonly connections: number;
  /** Requests at once on one HTTP/2 connection. */
  readonly streams?: number;
}

export interface CallEnd {
  readonly status: number;
  readonly seconds: number;
  /** The caller went away before the answer was whole. */
  readonly aborted: boolean;
}

export interface PublicListener {
  readonly port: number;
  /** New connections use it; open ones go on with what they have. Throws when it cannot be used, and changes nothing. */
  setSecureContext(material: TlsMaterial): void;
  /** From now on tickets are made with this, and only with this; those made with another are not understood any more. */
  setTicketSecret(secret: Buffer): void;
  /** How many client connections are open. */
  connections(): number;
  /** Takes no new connections, lets running calls end for this long, then closes what is left. True: all ended by themselves. */
  drain(seconds: number): Promise<boolean>;
  /** At once. */
  close(): Promise<void>;
}

export const HANDSHAKE_SECONDS = 5;
export const KEEP_ALIVE_SECONDS = 65;
/** For the rest of a request that was answered before it was whole. */
export const REST_SECONDS = 5;
/** An answer of which the other end has taken nothing for this long is not wanted any more. */
export const STALLED_SECONDS = 120;
export const MAX_FIELDS = 100;
export const URL_LENGTH = 8_192;
export const STREAMS = 100;
