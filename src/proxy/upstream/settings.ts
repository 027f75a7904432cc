import type { PathComparison } from '../../domain/path-comparison.ts';

/** See `upstreams` in docs/configuration.md. Times in seconds. */
export interface UpstreamSettings {
  /** `http://host:port`, `https://host:port` or `unix:/path`. */
  readonly targets: readonly string[];
  readonly timeouts: {
    readonly connect: number;
    readonly headers: number;
    readonly idle: number;
    /** For event streams, if longer. */
    readonly events?: number;
    /** For a whole request body. */
    readonly body?: number;
    readonly websocket?: number;
  };
  /** Bytes per second at which clients must send a body. */
  readonly minRate?: number;
  /** Bytes of a body that are read before a connection is used. */
  readonly bodyBuffer?: number;
  /** To each target. */
  readonly connections: number;
  /** Requests that may wait for a connection to a target. */
  readonly maxPending?: number;
  readonly websockets?: number;
  /** Event streams to each target, in addition to `connections`. */
  readonly eventStreams?: number;
  readonly ejection?: EjectionSettings;
  readonly health?: HealthCheckSettings;
  /** The name in the certificate of an https target, where it is not the host of its URL. */
  readonly serverName?: string;
  /** Files. */
  readonly ca?: string;
  readonly certificate?: string;
  readonly key?: string;
  /** Rewrites `Location` fields that name a target to the public URL. */
  readonly rewriteLocation?: boolean;
  /** How it compares paths; omitted: unknown. */
  readonly paths?: PathComparison;
  /** Identifies the caller in a signed assertion. */
  readonly assertion?: { readonly header: string; readonly audience?: string };
}

/** When a target is ejected after failed connections. */
export interface EjectionSettings {
  /** In a row. */
  readonly failures: number;
}

/** Health checks of the targets. */
export interface HealthCheckSettings {
  readonly path: string;
  readonly interval: number;
  readonly timeout: number;
}

export const DEFAULT_MAX_PENDING = 512;
export const DEFAULT_EVENT_STREAMS = 1_000;
export const DEFAULT_BODY_SECONDS = 3_600;
export const DEFAULT_EVENTS_SECONDS = 3_600;
export const DEFAULT_MIN_RATE = 240;
export const DEFAULT_BODY_BUFFER = 65_536;
export const DEFAULT_EJECTION: EjectionSettings = { failures: 3 };
