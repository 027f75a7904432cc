import type { PathReading } from '../domain/path-spelling.ts';

/** What is known about an upstream before the first request: see `upstreams` in docs/configuration.md. Times in seconds. */
export interface UpstreamSettings {
  /** `http://host:port`, `https://host:port` or `unix:/path`. */
  readonly targets: readonly string[];
  readonly timeouts: {
    readonly connect: number;
    readonly headers: number;
    readonly idle: number;
    /** For a whole request body. */
    readonly body?: number;
    readonly websocket?: number;
  };
  /** Bytes per second that a client must send of a body. */
  readonly minRate?: number;
  /** Bytes of a body that are read before a connection is used. */
  readonly bodyBuffer?: number;
  /** To each target. */
  readonly connections: number;
  /** How many requests may wait for a connection to a target, beyond those that have one. */
  readonly maxPending?: number;
  readonly websockets?: number;
  readonly ejection?: EjectionTerms;
  readonly health?: HealthTerms;
  /** The name an https target must prove, where it is not the one in its URL. */
  readonly serverName?: string;
  /** Files. */
  readonly ca?: string;
  readonly certificate?: string;
  readonly key?: string;
  /** `Location` fields that name a target's own address are written in terms of ours. */
  readonly rewriteLocation?: boolean;
  /** How it reads paths; omitted: not known. */
  readonly paths?: PathReading;
  /** Tell who is calling in a signed form as well. */
  readonly assertion?: { readonly header: string; readonly audience?: string };
}

/** When a target is left out after connections to it failed. */
export interface EjectionTerms {
  /** In a row. */
  readonly failures: number;
  /** For how long at first; it doubles each time. */
  readonly first: number;
  readonly longest: number;
}

/** How targets are asked whether they are well. */
export interface HealthTerms {
  readonly path: string;
  readonly interval: number;
  readonly timeout: number;
  /** Good answers in a row that bring a target back. */
  readonly healthy: number;
  /** Bad ones in a row that leave it out. */
  readonly unhealthy: number;
}

export const MAX_PENDING = 512;
export const BODY_SECONDS = 3_600;
export const MIN_RATE = 240;
export const BODY_BUFFER = 65_536;
export const EJECTION: EjectionTerms = { failures: 3, first: 5, longest: 300 };
