import type { AccessRule } from '../../domain/access-rule.ts';
import type { Epoch } from '../../domain/grant.ts';
import type { LimitKey, RouteLimit } from '../../domain/route-limit.ts';
import { getRateLimitKey } from '../../lib/rate-limiter.ts';
import type { RequestBucket, RequestLimiter } from '../../lib/request-limiter.ts';
import { TwoGenerationCache } from '../../lib/two-generation-cache.ts';
import type { Caller } from './authorize.ts';
import type { ProxyRefusal } from './refusals.ts';

/** The limits of the rules of one configuration; without an entry for rules that have none. */
export type Quotas = ReadonlyMap<AccessRule, Quota>;

export interface EnforcedLimit {
  readonly limit: RouteLimit;
  readonly limiter: RequestLimiter;
}

type QuotaRefusal = Extract<ProxyRefusal, { reason: 'rate_limited' }>;

const NO_FIELDS: readonly string[] = [];

/** The limits of one rule. A request takes from all of them, or from none. */
export class Quota {
  readonly #limits: readonly EnforcedLimit[];
  readonly #sendsFields: boolean;
  /** The buckets of the request that is decided at present. */
  readonly #buckets: RequestBucket[];
  /** RateLimit-Policy; the same for all requests. */
  readonly #policy: string;

  constructor(limits: readonly EnforcedLimit[], sendsFields: boolean) {
    this.#limits = limits;
    this.#sendsFields = sendsFields;
    this.#buckets = [];
    this.#policy = limits.map(({ limit }) => formatPolicy(limit)).join(', ');
  }

  /** Takes a request, or returns why it must be refused. */
  take(caller: Caller | undefined, address: string, now: Epoch): QuotaRefusal | undefined {
    const limits = this.#limits;
    const buckets = this.#buckets;
    let exceeded: EnforcedLimit | undefined;
    let longestWait = 0;
    for (let at = 0; at < limits.length; at += 1) {
      const enforced = limits[at] as EnforcedLimit;
      const { limiter } = enforced;
      const bucket = limiter.find(getKey(enforced.limit.per, caller, address), now);
      buckets[at] = bucket;
      const wait = limiter.getWait(bucket, now);
      if (wait <= longestWait) continue;
      longestWait = wait;
      exceeded = enforced;
    }
    if (exceeded !== undefined) return this.#refuse(exceeded.limit, longestWait, now);
    for (let at = 0; at < limits.length; at += 1)
      (limits[at] as EnforcedLimit).limiter.take(buckets[at] as RequestBucket, now);
    return undefined;
  }

  /** Fields of the response to the request that was taken last; none unless they are configured. */
  getFields(now: Epoch): readonly string[] {
    if (!this.#sendsFields) return NO_FIELDS;
    return ['RateLimit-Policy', this.#policy, 'RateLimit', this.#formatState(now)];
  }

  #refuse({ name }: RouteLimit, wait: number, now: Epoch): QuotaRefusal {
    return {
      reason: 'rate_limited',
      limit: name,
      retryAfter: Math.max(1, Math.ceil(wait)),
      policy: this.#policy,
      state: this.#formatState(now),
    };
  }

  /** `"identity";r=0;t=3` for each limit: what is left, and the seconds until there is more. */
  #formatState(now: Epoch): string {
    let text = '';
    for (const [at, { limit, limiter }] of this.#limits.entries()) {
      const bucket = this.#buckets[at] as RequestBucket;
      const reset = Math.max(1, Math.ceil(limiter.getWait(bucket, now)));
      text += `${at === 0 ? '' : ', '}"${limit.name}";r=${limiter.getRemaining(bucket, now)};t=${reset}`;
    }
    return text;
  }
}

/** draft-ietf-httpapi-ratelimit-headers §3.1. Own parameters have a vendor prefix. */
const formatPolicy = ({ name, quota, window, rate }: RouteLimit): string =>
  `"${name}";q=${quota};w=${window}${rate.burst === quota ? '' : `;gatehouse-burst=${rate.burst}`}`;

function getKey(per: LimitKey, caller: Caller | undefined, address: string): string {
  if (per === 'route') return '';
  if (per === 'address' || caller === undefined) return getAddressKey(address);
  return per === 'identity' ? caller.bearer.identity : caller.bearer.clientId;
}

const ipv6Keys = new TwoGenerationCache<string>(4_096, 64);

/** Begins with a zero byte, as no identity does, or is an IPv4 address, which no identity is. */
function getAddressKey(address: string): string {
  if (!address.includes(':')) return address;
  const known = ipv6Keys.get(address);
  if (known !== undefined) return known;
  const key = `\0${getRateLimitKey(address)}`;
  ipv6Keys.set(address, key);
  return key;
}
