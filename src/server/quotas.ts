import type { Settings } from '../config/schema.ts';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Epoch } from '../domain/grant.ts';
import type { RouteLimit } from '../domain/route-limit.ts';
import { computeLevel } from '../lib/rate-limiter.ts';
import { BucketBudget, type RequestBucket, RequestLimiter, type RequestReporter } from '../lib/request-limiter.ts';
import { type OpenedResource, type ResourceScope, SharedResources } from '../lib/shared-resources.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import { type EnforcedLimit, Quota, type Quotas } from '../proxy/policy/quotas.ts';

/** Buckets of all limits of a process, which need about 30 MB. */
const MAX_BUCKETS = 200_000;
const REPORT_MS = 100;
const EARLY_REPORT_MS = 5;
const RETRY_MS = 1_000;
/** Buckets in one report; the others follow in the next one. */
const MAX_REPORTED = 1_000;

interface QuotaRegistryOptions {
  readonly now: () => Epoch;
  /** Shares the counts with other processes. Undefined if there are none. */
  readonly shared: SharedLimits | undefined;
  readonly digestName: (text: string) => string;
  readonly maxBuckets?: number;
}

type QuotaSettings = Pick<Settings['limits'], 'shared' | 'rateLimitHeaders'>;

/** The limits of routes, whose counts survive a reload while some configuration uses them. */
export class QuotaRegistry {
  readonly #options: QuotaRegistryOptions;
  readonly #budget: BucketBudget;
  readonly #reporter: SharedCountReporter | undefined;
  readonly #limiters = new SharedResources<RequestLimiter>();
  #releasedOverflow = 0;

  constructor(options: QuotaRegistryOptions) {
    const { shared, maxBuckets = MAX_BUCKETS } = options;
    this.#options = options;
    this.#budget = new BucketBudget(maxBuckets);
    this.#reporter = shared && new SharedCountReporter({ ...options, shared });
  }

  /** It is undefined if no rule has a limit. */
  open(rules: readonly AccessRule[], settings: QuotaSettings, scope: ResourceScope): Quotas | undefined {
    const quotas = new Map<AccessRule, Quota>();
    for (const rule of rules) {
      const limits = (rule.limits ?? []).map((limit): EnforcedLimit => {
        const name = nameLimiter(rule, limit, settings.shared);
        const open = (): OpenedResource<RequestLimiter> => this.#open(name, limit, settings.shared);
        return { limit, limiter: this.#limiters.share(name, open, scope) };
      });
      if (limits.length > 0) quotas.set(rule, new Quota(limits, settings.rateLimitHeaders));
    }
    return quotas.size === 0 ? undefined : quotas;
  }

  /** Keys that are counted at present. */
  get size(): number {
    return this.#budget.used;
  }

  /** Requests for which there was no bucket of their own. */
  get overflowed(): number {
    let total = this.#releasedOverflow;
    for (const { overflowed } of this.#limiters.list()) total += overflowed;
    return total;
  }

  stop(): void {
    this.#reporter?.stop();
  }

  #open(name: string, { rate }: RouteLimit, isShared: boolean): OpenedResource<RequestLimiter> {
    const reporter = isShared ? this.#reporter : undefined;
    const limiter = new RequestLimiter(rate, this.#budget, this.#options.now(), reporter);
    reporter?.register(limiter, name);
    return {
      resource: limiter,
      close: () => {
        this.#releasedOverflow += limiter.overflowed;
        limiter.clear();
      },
    };
  }
}

/** The same for the same route and limit, wherever the route is in the list and in whichever process. */
function nameLimiter({ host, methods, pattern }: AccessRule, limit: RouteLimit, isShared: boolean): string {
  const route = { host: host?.toLowerCase(), methods: methods && [...methods].toSorted(), pattern };
  return JSON.stringify([route, limit, isShared]);
}

type ReporterOptions = QuotaRegistryOptions & { readonly shared: SharedLimits };

/** Reports the requests of this process to the shared state in the background, and applies the levels it returns. */
class SharedCountReporter implements RequestReporter {
  readonly #options: ReporterOptions;
  readonly #names = new WeakMap<RequestLimiter, string>();
  /** Buckets with unreported requests, oldest first. */
  readonly #unreported = new Map<RequestBucket, RequestLimiter>();
  #timer: NodeJS.Timeout | undefined;
  #isEarly = false;
  #isReporting = false;
  #isStopped = false;
  sharers = 1;

  constructor(options: ReporterOptions) {
    this.#options = options;
  }

  register(limiter: RequestLimiter, name: string): void {
    this.#names.set(limiter, name);
  }

  onTaken(limiter: RequestLimiter, bucket: RequestBucket): void {
    if (bucket.unreported === 1) {
      this.#unreported.set(bucket, limiter);
      if (this.#timer === undefined) this.#schedule(this.sharers === 1 ? REPORT_MS : RETRY_MS, false);
    }
    // Half of this process's share of the burst: the others should know soon.
    if (this.#isEarly || this.sharers !== 1) return;
    if (2 * bucket.unreported * this.#options.shared.processCount() >= limiter.rate.burst)
      this.#schedule(EARLY_REPORT_MS, true);
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  #schedule(delay: number, isEarly: boolean): void {
    if (this.#isReporting || this.#isStopped) return;
    clearTimeout(this.#timer);
    this.#isEarly = isEarly;
    this.#timer = setTimeout(() => void this.#report(), delay).unref();
  }

  async #report(): Promise<void> {
    this.#isReporting = true;
    const reported = [...this.#unreported.entries().take(MAX_REPORTED)];
    for (const [bucket] of reported) this.#unreported.delete(bucket);
    const outcomes = await Promise.all(reported.map(([bucket, limiter]) => this.#reportBucket(limiter, bucket)));
    const isReachable = outcomes.every(Boolean);
    this.sharers = isReachable ? 1 : Math.max(1, this.#options.shared.processCount());
    this.#isReporting = false;
    this.#timer = undefined;
    this.#isEarly = false;
    if (this.#unreported.size > 0) this.#schedule(isReachable ? REPORT_MS : RETRY_MS, false);
  }

  async #reportBucket(limiter: RequestLimiter, bucket: RequestBucket): Promise<boolean> {
    const { shared, digestName, now } = this.#options;
    const { rate } = limiter;
    const amount = bucket.unreported;
    bucket.unreported = 0;
    bucket.reporting = amount;
    try {
      const name = digestName(`route\n${this.#names.get(limiter)}\n${bucket.key}`);
      const previousLevel = await shared.take(name, rate, amount, true);
      limiter.setLevel(bucket, computeLevel(previousLevel, rate, amount, true), now());
      return true;
    } catch {
      // Reported again later. Until then, this process grants its share.
      bucket.unreported += amount;
      this.#unreported.set(bucket, limiter);
      return false;
    } finally {
      bucket.reporting = 0;
    }
  }
}
