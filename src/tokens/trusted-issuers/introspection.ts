import { hash } from 'node:crypto';
import type { Epoch, VerifiedToken } from '../../domain/grant.ts';
import type { RejectedToken } from '../../domain/token-rejection.ts';
import { IDENTITY_ENCODING, readResponseText } from '../../http/read-response.ts';
import { createBoundedCache } from '../../lib/bounded-cache.ts';
import { flattenString } from '../../lib/flat-string.ts';
import type { HttpClient } from '../../lib/http-client.ts';
import { getRateLimitKey, type RateLimiter } from '../../lib/rate-limiter.ts';
import { isJsonObject, type Json, type JsonObject, parseStrictJson } from '../../lib/strict-json.ts';
import { Fault } from '../../ports/fault.ts';
import { isJsonType } from './fetch-keys.ts';

interface IntrospectionOptions {
  /** The name of the issuer in the configuration. */
  readonly name: string;
  readonly url: string;
  readonly clientId: string;
  readonly clientSecret: string;
  /** Seconds for which a result is used. */
  readonly cacheLifetime: number;
  /** Seconds for which an active result is used beyond that while the endpoint fails. */
  readonly maxStaleness: number;
  readonly cacheSize: number;
  readonly httpClient: Pick<HttpClient, 'send'>;
  /** Tokens that were not active, by client address. Above the limit, unknown tokens of the address are not introspected. */
  readonly guesses?: Pick<RateLimiter, 'take' | 'refund'> | undefined;
  /** Called when requests begin to fail (with the error) and when they succeed again (without). */
  readonly onStateChange?: (error: Error | undefined) => void;
}

type Reading = VerifiedToken | RejectedToken;

/** The claims of an introspection response as a token of the issuer, if it is active. */
type MapClaims = (claims: JsonObject, now: Epoch) => Reading;

/** Returns the address of the client. It is called only if an unknown token is to be introspected. */
export type GetClientAddress = () => string;

interface Rejection {
  readonly rejected: RejectedToken;
  readonly until: Epoch;
}

interface Result {
  readonly token: VerifiedToken;
  /** When the token must be introspected again. */
  readonly until: Epoch;
  /** The same while the endpoint fails. */
  readonly staleUntil: Epoch;
}

const MAX_RESPONSE_BYTES = 64 * 1_024;
const MAX_INACTIVE = 10_000;
const MAX_FAILED = 10_000;
/** For how long a failure applies to a token. */
const FAILURE_MS = 1_000;
/** Concurrent requests: of tokens that were never active here, and of all tokens. Unknown ones cannot displace known ones. */
const MAX_REQUESTS = { unknown: 64, all: 128 };

/** Asks the issuer of opaque tokens about them (RFC 7662). Results are cached, with limits on memory and concurrent requests. */
export class TokenIntrospection {
  readonly #options: IntrospectionOptions;
  readonly #active;
  /** By digest, so that long tokens do not fill the memory: until when they are known to be inactive. */
  readonly #inactive = createBoundedCache<string, Rejection>(MAX_INACTIVE);
  /** By digest: until when they are not introspected again (monotonic). */
  readonly #failed = createBoundedCache<string, number>(MAX_FAILED);
  readonly #inFlight = new Map<string, Promise<Reading>>();
  #isFailing = false;
  /** The message of the last failure. The error itself could contain the request. */
  #lastError = '';

  constructor(options: IntrospectionOptions) {
    this.#options = options;
    this.#active = createBoundedCache<string, Result>(options.cacheSize);
  }

  /** Results in memory. */
  get size(): number {
    return this.#active.size + this.#inactive.size + this.#failed.size + this.#inFlight.size;
  }

  /** Throws or rejects with a `Fault` if it cannot be found out whether the token is active. */
  read(
    token: string,
    now: Epoch,
    mapClaims: MapClaims,
    getClientAddress?: GetClientAddress,
  ): Reading | Promise<Reading> {
    const cached = this.#active.get(token);
    if (cached === undefined) return this.#request(token, now, mapClaims, MAX_REQUESTS.unknown, getClientAddress);
    if (now < cached.until) return cached.token;
    return now < cached.staleUntil
      ? this.#readStale(cached.token, token, now, mapClaims)
      : this.#request(token, now, mapClaims, MAX_REQUESTS.all);
  }

  /** While the endpoint fails, a token that was active is used a little longer. Known failures are not waited for. */
  #readStale(stale: VerifiedToken, token: string, now: Epoch, mapClaims: MapClaims): Reading | Promise<Reading> {
    const useStale = (error: unknown): VerifiedToken => {
      if (error instanceof Fault && error.code === 'introspection_unavailable') return stale;
      throw error;
    };
    try {
      const request = this.#request(token, now, mapClaims, MAX_REQUESTS.all);
      if (!(request instanceof Promise)) return request;
      if (!this.#isFailing) return request.catch(useStale);
      request.catch(() => {});
      return stale;
    } catch (error) {
      return useStale(error);
    }
  }

  #request(
    token: string,
    now: Epoch,
    mapClaims: MapClaims,
    maxRequests: number,
    getClientAddress?: GetClientAddress,
  ): Reading | Promise<Reading> {
    const shared = this.#inFlight.get(token);
    if (shared !== undefined) return shared;
    const digest = hash('sha256', token, 'base64url');
    const rejection = this.#inactive.get(digest);
    if (rejection !== undefined && now < rejection.until) return rejection.rejected;
    if (performance.now() < (this.#failed.get(digest) ?? 0)) throw this.#createFault();
    if (this.#inFlight.size >= maxRequests)
      throw new Fault('overloaded', `too many tokens from ${this.#options.name} are being introspected at once`, {
        issuer: this.#options.name,
      });
    const key = flattenString(token);
    const introspect = (): Promise<Reading> => this.#introspect(key, digest, now, mapClaims);
    const request = (
      getClientAddress === undefined ? introspect() : this.#countGuess(getClientAddress(), introspect)
    ).finally(() => this.#inFlight.delete(key));
    this.#inFlight.set(key, request);
    return request;
  }

  /** Only active tokens do not count: while the endpoint fails, unknown ones must not be sent without limit either. */
  async #countGuess(address: string, introspect: () => Promise<Reading>): Promise<Reading> {
    const { guesses, name } = this.#options;
    const key = getRateLimitKey(address);
    const retryAfter = (await guesses?.take(key)) ?? 0;
    if (retryAfter > 0)
      throw new Fault('overloaded', `too many unknown tokens from ${name} from one address`, {
        retryAfter,
        issuer: name,
      });
    const reading = await introspect();
    if (reading.rejection === undefined) await guesses?.refund(key);
    return reading;
  }

  async #introspect(token: string, digest: string, now: Epoch, mapClaims: MapClaims): Promise<Reading> {
    const { cacheLifetime, maxStaleness } = this.#options;
    const verified = mapClaims(await this.#send(token, digest), now);
    if (verified.rejection !== undefined) {
      this.#active.delete(token);
      this.#inactive.set(digest, { rejected: verified, until: now + cacheLifetime });
    } else {
      const until = Math.min(now + cacheLifetime, verified.expires);
      const staleUntil = Math.min(now + cacheLifetime + maxStaleness, verified.expires);
      this.#active.set(token, { token: verified, until, staleUntil });
    }
    return verified;
  }

  async #send(token: string, digest: string): Promise<JsonObject> {
    const { onStateChange } = this.#options;
    try {
      const claims = await requestIntrospection(this.#options, token);
      if (this.#isFailing) onStateChange?.(undefined);
      this.#isFailing = false;
      return claims;
    } catch (error) {
      if (!this.#isFailing) onStateChange?.(error as Error);
      this.#isFailing = true;
      this.#lastError = (error as Error).message;
      this.#failed.set(digest, performance.now() + FAILURE_MS);
      throw this.#createFault();
    }
  }

  #createFault(): Fault {
    const { name } = this.#options;
    return new Fault('introspection_unavailable', `tokens from the issuer ${name} cannot be introspected`, {
      issuer: name,
      cause: new Error(this.#lastError),
    });
  }
}

/** RFC 7662 §2.1. Rejects unless the response says whether the token is active. */
async function requestIntrospection(
  { url, clientId, clientSecret, httpClient }: IntrospectionOptions,
  token: string,
): Promise<JsonObject> {
  // RFC 6749 §2.3.1: both are form-encoded first.
  const credentials = [clientId, clientSecret].map(encodeFormValue).join(':');
  const response = await httpClient.send(url, {
    method: 'POST',
    headers: {
      accept: 'application/json',
      ...IDENTITY_ENCODING,
      'content-type': 'application/x-www-form-urlencoded',
      authorization: `Basic ${Buffer.from(credentials).toString('base64')}`,
    },
    body: `token=${encodeFormValue(token)}&token_type_hint=access_token`,
  });
  const { status, headers } = response;
  const text = await readResponseText(response, MAX_RESPONSE_BYTES);
  if (status !== 200) throw new Error(`${url} responded with ${status}`);
  if (!isJsonType(headers)) throw new Error(`${url} did not respond with JSON`);
  let claims: Json;
  try {
    claims = parseStrictJson(text);
  } catch {
    throw new Error(`${url} did not respond with valid JSON`);
  }
  if (!isJsonObject(claims) || typeof claims['active'] !== 'boolean')
    throw new Error(`${url} did not say whether the token is active`);
  return claims;
}

const encodeFormValue = (text: string): string => new URLSearchParams({ '': text }).toString().slice(1);
