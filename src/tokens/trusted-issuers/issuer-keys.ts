import { createBoundedCache } from '../../lib/bounded-cache.ts';
import { Fault } from '../../ports/fault.ts';
import { SIGNATURE_ALGORITHMS, type SignatureAlgorithm } from '../jwt.ts';
import type { IssuerKey } from './key-set.ts';

export interface IssuerKeysOptions {
  /** The name of the issuer in the configuration. */
  readonly name: string;
  /** Fetches the current keys; rejects with an `Error` whose message is fit for a log. */
  readonly fetch: () => Promise<readonly IssuerKey[]>;
  /** With which tokens may be signed. Omitted: all that are supported. */
  readonly algorithms?: readonly SignatureAlgorithm[] | undefined;
  /** Seconds between regular fetches. */
  readonly refreshInterval: number;
  /** Seconds in which unknown keys may cause one fetch, on average, and the same unknown key at most one. */
  readonly cooldown: number;
  /** Seconds for which the last keys are used while they cannot be fetched. */
  readonly maxStaleness: number;
  /** Called after each fetch, with the error if it failed. */
  readonly onAttempt?: (error: Error | undefined) => void;
  /** Called when fetching begins to fail (with the error) and when it works again (without). */
  readonly onStateChange?: (error: Error | undefined) => void;
  /** Called when no fetched key can be used with `algorithms`, and when one can be used again. */
  readonly onUsabilityChange?: (isUsable: boolean) => void;
  /** Monotonic seconds. */
  readonly now?: () => number;
}

/** Seconds until a failed fetch is repeated: doubled with each failure up to `max`, or to `maxInUse` if a request needs the keys. */
const RETRY = { min: 1, max: 60, maxInUse: 3 };
/** Fetches for unknown keys in a row: a key that is new just after another unknown one is found at once. */
const UNKNOWN_KEY_BURST = 3;
/** Unknown keys that are remembered, by id and algorithm. */
const MAX_UNKNOWN_KEYS = 256;
const MAX_REMEMBERED_KID = 256;
/** Requests that wait for one fetch. */
const MAX_WAITING = 1_000;

/**
 * The keys of a trusted issuer. They are fetched at start, at regular intervals and when a token names a key that is not known. Tokens
 * with invented key ids cause a few fetches, then one per cooldown for all requests together.
 */
export class IssuerKeys {
  readonly name: string;
  readonly #options: IssuerKeysOptions;
  readonly #now: () => number;
  #keys: readonly IssuerKey[] = [];
  #ids: ReadonlySet<string> = new Set();
  #fetchedAt = Number.NEGATIVE_INFINITY;
  #attemptedAt = Number.NEGATIVE_INFINITY;
  /** When the allowance for unknown keys is full again (GCRA). */
  #allowanceFullAt = Number.NEGATIVE_INFINITY;
  /** When each caused a fetch. */
  readonly #unknownKeys = createBoundedCache<string, number>(MAX_UNKNOWN_KEYS);
  #waiting = 0;
  #failures = 0;
  /** The error of the last fetch, if it failed. */
  #lastError: Error | undefined;
  #isUsable = true;
  #fetching: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  /** `previous`: the same keys, fetched in another way. They stay in use until they are fetched again or too old. */
  constructor(options: IssuerKeysOptions, previous?: IssuerKeys) {
    this.name = options.name;
    this.#options = options;
    this.#now = options.now ?? (() => performance.now() / 1_000);
    if (previous === undefined) return;
    this.#keys = previous.#keys;
    this.#ids = previous.#ids;
    this.#fetchedAt = previous.#fetchedAt;
    this.#failures = previous.#failures;
    this.#lastError = previous.#lastError;
    this.#isUsable = previous.#isUsable;
  }

  /** Fetches the keys for the first time; resolves when that has succeeded or failed. */
  start(): Promise<void> {
    return this.#fetch();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  /** Seconds since the keys were fetched; undefined before the first time. */
  get age(): number | undefined {
    return this.#fetchedAt === Number.NEGATIVE_INFINITY ? undefined : this.#now() - this.#fetchedAt;
  }

  /** False if the issuer was reachable, but publishes no key that can verify its tokens. */
  get isUsable(): boolean {
    return this.#isUsable;
  }

  /** Does the issuer still publish the key that verified a token? Throws a `Fault` if the keys are too old to tell. */
  has(keyId: string): boolean {
    if (this.#isOld()) {
      if (this.#mayFetch()) void this.#fetch();
      if (this.#isStale()) throw this.#createFault();
    }
    return this.#ids.has(keyId);
  }

  /** Returns undefined if the issuer has no such key, or several. Throws a `Fault` while that is not known. */
  find(kid: string | undefined, alg: SignatureAlgorithm): IssuerKey | undefined | Promise<IssuerKey | undefined> {
    const known = this.#isOld() ? undefined : this.#select(kid, alg);
    return known ?? this.#findAfterFetch(kid, alg);
  }

  async #findAfterFetch(kid: string | undefined, alg: SignatureAlgorithm): Promise<IssuerKey | undefined> {
    await this.#wait(this.#fetching ?? this.#fetchFor(kid, alg));
    // The fetch may have begun before the issuer published the key.
    if (this.#failures === 0 && this.#select(kid, alg) === undefined)
      await this.#wait(this.#fetching ?? this.#fetchFor(kid, alg));
    const found = this.#isStale() ? undefined : this.#select(kid, alg);
    // While keys cannot be fetched, an unknown key may be a new one: that is not the client's fault.
    if (found === undefined && (this.#isStale() || this.#failures > 0)) throw this.#createFault();
    return found;
  }

  /** Returns undefined if no fetch is allowed now. */
  #fetchFor(kid: string | undefined, alg: SignatureAlgorithm): Promise<void> | undefined {
    const isUnknown = this.#failures === 0 && this.#select(kid, alg) === undefined;
    return (isUnknown ? this.#takeAllowance(kid, alg) : this.#mayFetch()) ? this.#fetch() : undefined;
  }

  #takeAllowance(kid = '', alg: SignatureAlgorithm): boolean {
    const { cooldown } = this.#options;
    const now = this.#now();
    const fullAt = Math.max(now, this.#allowanceFullAt);
    const key = `${alg} ${kid}`;
    const lastFetch = this.#unknownKeys.get(key) ?? Number.NEGATIVE_INFINITY;
    if (this.#isClosed || now - lastFetch < cooldown) return false;
    if (fullAt - now > (UNKNOWN_KEY_BURST - 1) * cooldown) return false;
    this.#allowanceFullAt = fullAt + cooldown;
    if (kid.length <= MAX_REMEMBERED_KID) this.#unknownKeys.set(key, now);
    return true;
  }

  async #wait(fetching: Promise<void> | undefined): Promise<void> {
    if (fetching === undefined) return;
    const { name } = this.#options;
    if (this.#waiting >= MAX_WAITING)
      throw new Fault('overloaded', `too many requests wait for the keys of the issuer ${name}`, {
        issuer: name,
      });
    this.#waiting += 1;
    await fetching.finally(() => {
      this.#waiting -= 1;
    });
  }

  #createFault(): Fault {
    const { name } = this.#options;
    return new Fault('keys_unavailable', `the keys of the issuer ${name} cannot be fetched`, {
      issuer: name,
      cause: this.#lastError,
      retryAfter: Math.max(1, Math.ceil(this.#retryDelay(RETRY.maxInUse) - (this.#now() - this.#attemptedAt))),
    });
  }

  #select(kid: string | undefined, alg: SignatureAlgorithm): IssuerKey | undefined {
    const [key, ...others] = this.#keys.filter((candidate) => candidate.matches(kid, alg));
    return others.every(({ id }) => id === key?.id) ? key : undefined;
  }

  #isOld(): boolean {
    return this.#now() - this.#fetchedAt > this.#options.maxStaleness;
  }

  /** Keys that are old only because the next fetch is not due are used: the issuer may be available. */
  #isStale(): boolean {
    return this.#isOld() && (this.#failures > 0 || this.age === undefined);
  }

  #mayFetch(): boolean {
    const wait = this.#failures > 0 ? this.#retryDelay(RETRY.maxInUse) : this.#options.cooldown;
    return !this.#isClosed && this.#now() - this.#attemptedAt >= wait;
  }

  #retryDelay(max: number): number {
    return Math.min(max, RETRY.min * 2 ** Math.max(0, this.#failures - 1));
  }

  #fetch(): Promise<void> {
    this.#fetching ??= this.#fetchOnce().finally(() => {
      this.#fetching = undefined;
      this.#schedule();
    });
    return this.#fetching;
  }

  async #fetchOnce(): Promise<void> {
    const { fetch, onAttempt, onStateChange } = this.#options;
    this.#attemptedAt = this.#now();
    try {
      const keys = await fetch();
      const isRecovery = this.#failures > 0;
      this.#keys = keys;
      this.#ids = new Set(keys.map(({ id }) => id));
      this.#fetchedAt = this.#now();
      this.#failures = 0;
      this.#lastError = undefined;
      onAttempt?.(undefined);
      if (isRecovery) onStateChange?.(undefined);
      this.#updateUsability();
    } catch (error) {
      // A fetch that timed out must not be followed by the next one at once.
      this.#attemptedAt = this.#now();
      this.#failures += 1;
      this.#lastError = error as Error;
      onAttempt?.(error as Error);
      if (this.#failures === 1) onStateChange?.(error as Error);
    }
  }

  #updateUsability(): void {
    const { algorithms = SIGNATURE_ALGORITHMS, onUsabilityChange } = this.#options;
    const isUsable = this.#keys.some((key) => algorithms.some((alg) => key.matches(undefined, alg)));
    if (isUsable === this.#isUsable) return;
    this.#isUsable = isUsable;
    onUsabilityChange?.(isUsable);
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    const seconds = this.#failures > 0 ? this.#retryDelay(RETRY.max) : this.#options.refreshInterval;
    this.#timer = setTimeout(() => void this.#fetch(), seconds * 1_000).unref();
  }
}
