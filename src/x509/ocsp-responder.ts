import type { Epoch } from '../domain/grant.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { Fault } from '../ports/fault.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { type OcspResult, readOcspResponse, writeOcspRequest } from './ocsp-message.ts';

export interface OcspResponderOptions {
  readonly issuer: ApprovedIssuer;
  /** For the log. */
  readonly url: string;
  /** Sends a request and returns the response; rejects with an `Error` whose message is fit for a log. */
  readonly send: (request: Buffer) => Promise<Buffer>;
  /** Seconds after which a status is requested again. */
  readonly refresh: number;
  /** Accept certificates whose status cannot be found out. */
  readonly softFail: boolean;
  readonly now: () => Epoch;
  /** Called after each request. */
  readonly onResponse?: (outcome: OcspResult['status'] | 'failure') => void;
  /** Called when requests begin to fail (with the error) and when they work again (without). */
  readonly onStateChange?: (error: Error | undefined) => void;
}

export interface OcspStatus {
  readonly status: OcspResult['status'];
  /** Until then the status stays the same for the caller. */
  readonly checkAgainAt: Epoch;
}

interface CachedStatus {
  result: OcspResult | undefined;
  /** From then on, a use of the status renews it. */
  refreshAt: Epoch;
  /** After a failure: no request before. */
  retryAt: Epoch;
  failures: number;
  request: Promise<void> | undefined;
}

const CACHE_SIZE = 20_000;
const MAX_REQUESTS = 64;
/** Requests that wait for one of these to end. */
const MAX_QUEUED = 512;
/** Seconds until a failed request for a certificate is repeated; doubled with each failure. */
const RETRY = { min: 1, max: 30 };
/** A status is renewed in this part of its remaining validity at the latest. */
const RENEW_AT_FRACTION = 0.5;

/** Responses have whole seconds: of two in the same second, a revocation is the later one. */
const isReplay = (result: OcspResult, last: OcspResult): boolean =>
  result.thisUpdate < last.thisUpdate ||
  (result.thisUpdate === last.thisUpdate && last.status === 'revoked' && result.status !== 'revoked');

/** Whether the list of revoked certificates of the issuer contains a serial number. */
type RevocationCheck = (serial: string) => boolean;

/** The revocation status of the certificates of one issuer, from its OCSP responder. */
export class OcspResponder {
  readonly #options: OcspResponderOptions;
  readonly #cache = createBoundedCache<string, CachedStatus>(CACHE_SIZE);
  #activeRequests = 0;
  readonly #queue: (() => void)[] = [];
  /** The error of the last request, if it failed. */
  #error: Error | undefined;

  constructor(options: OcspResponderOptions) {
    this.#options = options;
  }

  get softFail(): boolean {
    return this.#options.softFail;
  }

  /** Synchronous if the status is cached. Throws or rejects with a `Fault` if it cannot be found out. */
  check(serial: string, now: Epoch, isRevoked: RevocationCheck): OcspStatus | Promise<OcspStatus> {
    const entry = this.#getEntry(serial);
    const { result } = entry;
    if (result !== undefined && now <= result.validUntil) {
      // Without a free slot, the next use of the certificate tries again.
      if (now >= entry.refreshAt && now >= entry.retryAt && this.#activeRequests < MAX_REQUESTS)
        void this.#request(entry, serial, isRevoked);
      const renewal = Math.max(entry.refreshAt, entry.retryAt, now + 1);
      return { status: result.status, checkAgainAt: Math.min(result.validUntil, renewal) };
    }
    if (entry.request === undefined && now < entry.retryAt) return this.#getUnavailable(entry, now);
    // Our own limit, and not a failure of the responder: `softFail` does not apply.
    if (entry.request === undefined && this.#queue.length >= MAX_QUEUED)
      throw new Fault('overloaded', `too many requests to the OCSP responder of ${this.#options.issuer.name}`);
    return this.#request(entry, serial, isRevoked).then(() => {
      const at = this.#options.now();
      return entry.result !== undefined && at <= entry.result.validUntil
        ? { status: entry.result.status, checkAgainAt: Math.min(entry.result.validUntil, entry.refreshAt) }
        : this.#getUnavailable(entry, at);
    });
  }

  /** Is a certificate that was accepted before still accepted while its status is requested? */
  isAcceptedMeanwhile(serial: string): boolean {
    const result = this.#cache.get(serial)?.result;
    return this.#options.softFail && (result === undefined || result.status === 'good');
  }

  #getEntry(serial: string): CachedStatus {
    let entry = this.#cache.get(serial);
    if (entry === undefined) {
      entry = { result: undefined, refreshAt: 0, retryAt: 0, failures: 0, request: undefined };
      this.#cache.set(serial, entry);
    }
    return entry;
  }

  #getUnavailable({ result, retryAt }: CachedStatus, now: Epoch): OcspStatus {
    // A refusal stays until a newer response: blocking the responder must not make the certificate usable again.
    if (result !== undefined && result.status !== 'good') return { status: result.status, checkAgainAt: now + 1 };
    if (this.#options.softFail) return { status: 'good', checkAgainAt: now + 1 };
    throw new Fault(
      'certificate_status_unavailable',
      `the OCSP responder of ${this.#options.issuer.name} does not provide a status: ${this.#options.url}`,
      { retryAfter: Math.max(1, Math.ceil(retryAt - now)), cause: this.#error },
    );
  }

  /** Never rejects. */
  #request(entry: CachedStatus, serial: string, isRevoked: RevocationCheck): Promise<void> {
    entry.request ??= this.#requestInTurn(entry, serial, isRevoked);
    return entry.request;
  }

  async #requestInTurn(entry: CachedStatus, serial: string, isRevoked: RevocationCheck): Promise<void> {
    // A request that ends leaves its slot to the first in the queue.
    if (this.#activeRequests < MAX_REQUESTS) this.#activeRequests += 1;
    else await new Promise<void>((resolve) => this.#queue.push(resolve));
    try {
      await this.#requestOnce(entry, serial, isRevoked);
    } finally {
      entry.request = undefined;
      const startNext = this.#queue.shift();
      if (startNext === undefined) this.#activeRequests -= 1;
      else startNext();
    }
  }

  async #requestOnce(entry: CachedStatus, serial: string, isRevoked: RevocationCheck): Promise<void> {
    const { issuer, send, refresh, now, onResponse } = this.#options;
    try {
      const subject = { issuer, serial };
      const bytes = await send(writeOcspRequest(subject));
      const receivedAt = now();
      const result = readOcspResponse(bytes, subject, receivedAt, isRevoked);
      if (entry.result !== undefined && isReplay(result, entry.result))
        throw new Error('the response is older than the one before it');
      entry.result = result;
      entry.refreshAt = receivedAt + Math.min(refresh, (result.validUntil - receivedAt) * RENEW_AT_FRACTION);
      entry.failures = 0;
      entry.retryAt = 0;
      onResponse?.(result.status);
      this.#setFailing(undefined);
    } catch (error) {
      entry.failures += 1;
      entry.retryAt = now() + Math.min(RETRY.max, RETRY.min * 2 ** (entry.failures - 1));
      onResponse?.('failure');
      this.#setFailing(error as Error);
    }
  }

  #setFailing(error: Error | undefined): void {
    const hasChanged = (error === undefined) !== (this.#error === undefined);
    this.#error = error;
    if (hasChanged) this.#options.onStateChange?.(error);
  }
}
