import { setImmediate as pendingReads } from 'node:timers/promises';
import { type Epoch, findTokenFault, type VerifiedToken } from '../../domain/grant.ts';
import type { TokenFault } from '../../domain/refusal.ts';
import { errorFields } from '../../observability/logger.ts';
import type { ProxyConfig } from '../config.ts';
import { getPresentedCertificate, type PolicyContext } from './authorize.ts';

/** Why a response or a WebSocket is ended. */
export type StreamEndReason = TokenFault | 'unknown' | 'going_away';

export interface LiveStream {
  /** The token that it needs; undefined: none. */
  readonly bearer: VerifiedToken | undefined;
  /** Its client reconnects, so that a shutdown does not wait for it: a WebSocket, or an event stream that is silent. */
  readonly endsAtShutdown: boolean;
  end(reason: StreamEndReason): void;
}

interface StreamRules {
  /** Are the integration of this token, or its issuer and key, still configured? */
  readonly isKnownClient: (bearer: VerifiedToken) => boolean;
  /** Is this client certificate (DER) accepted now? `unknown`: its revocation status is unavailable. */
  readonly isCertificateAccepted: (der: Uint8Array) => boolean | 'unknown';
}

type LiveStreamsOptions = Pick<PolicyContext, 'revocations'> & Pick<ProxyConfig, 'now' | 'log'>;

/** Together with the time to close a connection, less than the promised second. */
const CHECK_INTERVAL_MS = 400;
/** How long streams continue while their tokens cannot be checked. */
const MAX_UNKNOWN_SECONDS = 5;

/**
 * Responses and WebSockets that may outlive the token they began with. They end when it expires or is revoked
 * (docs/decisions/0011-streams-end-with-their-grant.md).
 */
export class LiveStreams {
  readonly #options: LiveStreamsOptions;
  readonly #streams = new Set<LiveStream>();
  #rules: StreamRules = { isKnownClient: () => true, isCertificateAccepted: () => true };
  #timer: NodeJS.Timeout | undefined = undefined;
  #isDraining = false;
  /** Since when the token of a stream cannot be checked. */
  readonly #unknownSince = new WeakMap<LiveStream, Epoch>();
  #hasFailed = false;

  constructor(options: LiveStreamsOptions) {
    this.#options = options;
  }

  /** Returns a function that removes it. */
  add(stream: LiveStream): () => void {
    this.#streams.add(stream);
    this.#timer ??= setInterval(() => {
      this.#checkAll();
      if (this.#isDraining) void this.#endForShutdown();
      if (this.#streams.size === 0) this.stop();
    }, CHECK_INTERVAL_MS).unref();
    return () => void this.#streams.delete(stream);
  }

  count(): number {
    return this.#streams.size;
  }

  /**
   * Why a request that was authorized before, and has waited for its body or for a connection, must not be forwarded now;
   * undefined: it may.
   */
  getEndReason(bearer: VerifiedToken): StreamEndReason | undefined {
    try {
      return this.#check(bearer, this.#options.now());
    } catch {
      // 503, as for a new request.
      return 'unknown';
    }
  }

  /**
   * After a reload: ends streams whose integration was removed or whose token is bound to a certificate that is no longer
   * accepted.
   */
  applyRules(rules: StreamRules): void {
    this.#rules = rules;
    this.#checkAll();
  }

  /** From now on, streams that a shutdown does not wait for are ended. Resolves when those of this moment are. */
  drain(): Promise<void> {
    this.#isDraining = true;
    return this.#endForShutdown();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #check(bearer: VerifiedToken, now: Epoch): StreamEndReason | undefined {
    const { boundTo } = bearer;
    // The certificate of the connection, which is the same as when the stream began.
    const der = boundTo === undefined ? undefined : getPresentedCertificate(bearer);
    const accepted = der && this.#rules.isCertificateAccepted(der);
    if (accepted === 'unknown') return 'unknown';
    const rules = this.#rules;
    return findTokenFault(bearer, {
      now,
      revoked: this.#options.revocations.isRevoked(bearer),
      // Evaluated after expiry and revocation, which apply also while the keys of the issuer are unavailable.
      get clientKnown() {
        return rules.isKnownClient(bearer);
      },
      // Proved when the stream began.
      proofKey: bearer.proofKey,
      certificate: () =>
        boundTo === undefined || accepted === undefined ? undefined : { fingerprint: boundTo, accepted },
    });
  }

  #checkAll(): void {
    const now = this.#options.now();
    let failure: unknown;
    for (const stream of this.#streams)
      try {
        const reason = stream.bearer && this.#check(stream.bearer, now);
        this.#unknownSince.delete(stream);
        if (reason !== undefined) this.#end(stream, reason);
      } catch (error) {
        // A dependency of one token, such as the keys of its issuer, must not affect the streams of others.
        failure ??= error;
        this.#endIfUnknown(stream, now);
      }
    if (failure !== undefined && !this.#hasFailed) this.#options.log.error('stream_check_failed', errorFields(failure));
    this.#hasFailed = failure !== undefined;
  }

  /** After pending reads: data that arrived while the event loop was stalled is not silence. */
  async #endForShutdown(): Promise<void> {
    await pendingReads();
    for (const stream of this.#streams) if (stream.endsAtShutdown) this.#end(stream, 'going_away');
  }

  #endIfUnknown(stream: LiveStream, now: Epoch): void {
    const since = this.#unknownSince.get(stream) ?? now;
    this.#unknownSince.set(stream, since);
    if (now - since >= MAX_UNKNOWN_SECONDS) this.#end(stream, 'unknown');
  }

  #end(stream: LiveStream, reason: StreamEndReason): void {
    this.#streams.delete(stream);
    stream.end(reason);
  }
}
