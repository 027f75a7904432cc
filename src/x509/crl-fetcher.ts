import type { Epoch } from '../domain/epoch.ts';
import { smallest } from '../lib/extremes.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { KEY_USAGE } from './certificate-facts.ts';
import { CLOCK_SKEW, type Crl, type CrlSource } from './crl-set.ts';

export interface CrlFetcherOptions {
  readonly url: string;
  readonly issuers: readonly ApprovedIssuer[];
  /** Accept lists of this issuer only. */
  readonly issuer?: string | undefined;
  /** Rejects with an `Error` whose message is fit for a log. */
  readonly fetch: () => Promise<Buffer>;
  /** Verifies and parses the lists of these issuers; rejects like `fetch`. */
  readonly parse: (bytes: Buffer, issuers: readonly ApprovedIssuer[]) => Promise<readonly Crl[]>;
  /** Seconds between fetches. */
  readonly refresh: number;
  readonly now: () => Epoch;
  /** Called after each attempt. */
  readonly onAttempt?: (error: Error | undefined) => void;
  /** Called when fetching begins to fail (with the error) and when it works again (without). */
  readonly onStateChange?: (error: Error | undefined) => void;
}

/** Seconds until a failed fetch is repeated; doubled with each failure. */
const RETRY = { min: 1, max: 60 };
/** A list is fetched again in this part of its remaining validity at the latest. */
const RENEW_AT_FRACTION = 0.5;
const MIN_INTERVAL = 10;
/** Replicas that start together fetch at different times. */
const JITTER = 0.1;

/**
 * The revocation lists at a URL. The last good ones stay in use while they cannot be fetched, until they expire. As in a
 * reload, a list is never replaced by an older one (docs/decisions/0029-revocation-lists.md).
 */
export class CrlFetcher implements CrlSource {
  readonly #options: CrlFetcherOptions;
  /** One for each key of an issuer. */
  #lists: readonly Crl[];
  #revision = 0;
  #failures = 0;
  #fetchedAt: Epoch | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  /** `previous`: a fetcher of the same URL, for other issuers. Its lists stay in use. */
  constructor(options: CrlFetcherOptions, previous?: CrlFetcher) {
    this.#options = options;
    this.#lists = (previous?.lists ?? []).flatMap((list) => adoptList(list, options));
    this.#fetchedAt = previous?.fetchedAt;
  }

  get url(): string {
    return this.#options.url;
  }

  get lists(): readonly Crl[] {
    return this.#lists;
  }

  get revision(): number {
    return this.#revision;
  }

  /** The last successful fetch. */
  get fetchedAt(): Epoch | undefined {
    return this.#fetchedAt;
  }

  covers(issuerKey: string): boolean {
    const { issuers, issuer } = this.#options;
    return issuers.some(({ name, keyFingerprint }) => keyFingerprint === issuerKey && name === (issuer ?? name));
  }

  /** Fetches and schedules the next fetch. Resolves also if it has failed. */
  async start(): Promise<void> {
    const { onAttempt, onStateChange, now } = this.#options;
    try {
      const lists = await this.#fetchLists();
      if (this.#isClosed) return;
      this.#replaceLists(lists);
      this.#fetchedAt = now();
      const isRecovery = this.#failures > 0;
      this.#failures = 0;
      onAttempt?.(undefined);
      if (isRecovery) onStateChange?.(undefined);
    } catch (error) {
      if (this.#isClosed) return;
      this.#failures += 1;
      onAttempt?.(error as Error);
      if (this.#failures === 1) onStateChange?.(error as Error);
    }
    this.#timer = setTimeout(() => void this.start(), this.#computeDelay() * 1_000).unref();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  async #fetchLists(): Promise<readonly Crl[]> {
    const { fetch, parse, issuers, issuer, now } = this.#options;
    const lists = await parse(await fetch(), issuers);
    for (const list of lists) {
      if (issuer !== undefined && list.issuer !== issuer)
        throw new Error(`it is the revocation list of ${list.issuer}, and not of ${issuer}`);
      const current = this.#lists.find(({ issuerKey }) => issuerKey === list.issuerKey);
      if (current !== undefined && list.thisUpdate < current.thisUpdate)
        throw new Error(`the revocation list of ${list.issuer} is older than the one in use`);
      // It would not apply yet, and lists issued until then would be refused as older.
      if (list.thisUpdate > now() + CLOCK_SKEW)
        throw new Error(`the revocation list of ${list.issuer} is from the future`);
      if (list.nextUpdate < now()) throw new Error(`the revocation list of ${list.issuer} has expired`);
    }
    return lists;
  }

  #replaceLists(lists: readonly Crl[]): void {
    const replaced = new Set(lists.map(({ issuerKey }) => issuerKey));
    // A CA with a new key publishes its list under the same URL; the list of the old key is still needed.
    const kept = this.#lists.filter(({ issuerKey }) => !replaced.has(issuerKey));
    this.#lists = [...kept, ...lists.map((list) => ({ ...list, isFetched: true as const }))];
    this.#revision += 1;
  }

  #computeDelay(): number {
    const { refresh, now } = this.#options;
    if (this.#failures > 0) return Math.min(RETRY.max, RETRY.min * 2 ** (this.#failures - 1));
    return computeRefetchDelay(this.#lists, refresh, now()) * (1 - Math.random() * JITTER);
  }
}

/** Seconds until the next fetch: after `refresh`, but well before the first of the lists expires. */
export function computeRefetchDelay(lists: readonly Pick<Crl, 'nextUpdate'>[], refresh: number, now: Epoch): number {
  const remaining = smallest(lists.map(({ nextUpdate }) => nextUpdate - now));
  return Math.min(refresh, Math.max(MIN_INTERVAL, remaining * RENEW_AT_FRACTION));
}

/** Its signature was verified with a key, so it stays valid for another certificate of that key that may sign lists. */
function adoptList(list: Crl, { issuers, issuer: onlyIssuer }: CrlFetcherOptions): Crl[] {
  const issuer = issuers.find(
    ({ keyFingerprint, name }) => keyFingerprint === list.issuerKey && name === (onlyIssuer ?? name),
  );
  if (issuer === undefined) return [];
  const { keyUsage } = issuer.facts;
  return keyUsage === undefined || keyUsage.has(KEY_USAGE.crlSign) ? [{ ...list, issuer: issuer.name }] : [];
}
