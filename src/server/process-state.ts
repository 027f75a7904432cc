import type { Settings } from '../config/schema.ts';
import type { Rate } from '../config/units.ts';
import type { Epoch } from '../domain/grant.ts';
import { createPendingDeviceLimiter, createPollLimiter } from '../grants/device-limits.ts';
import { OutageTracker } from '../grants/outage-tracker.ts';
import { createLocalRevocations } from '../grants/revoke.ts';
import { createRateLimiter, type RateLimiter } from '../lib/rate-limiter.ts';
import { type ResourceScope, SharedResources } from '../lib/shared-resources.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { createAttemptLimits } from '../pages/attempt-limits.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import type { Store } from '../ports/store.ts';
import { LiveStreams } from '../proxy/policy/live-streams.ts';
import { UpstreamRegistry } from '../proxy/upstream/registry.ts';
import { createMemoryLimits } from '../stores/memory-limits.ts';
import { type CrlFetcher, createCrlFiles } from '../x509/crl-files.ts';
import type { OcspResponder } from '../x509/ocsp-responder.ts';
import { createProofMemories } from './dpop.ts';
import { QuotaRegistry } from './quotas.ts';
import { IssuerKeysRegistry } from './trusted-issuers.ts';
import { createSharedRateLimit } from './workers/shared-rate-limit.ts';

interface ProcessStateOptions {
  readonly settings: Settings;
  readonly store: Store;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly now: () => Epoch;
  /** False: `audit.failClosed` is set and audit events cannot be written. */
  readonly isAuditAvailable: () => boolean;
  readonly isOverloaded: () => boolean;
  /** Omitted: limits are local to this process. */
  readonly limits?: SharedLimits | undefined;
}

type ConfiguredRates = Settings['limits']['rates'];

/** Operations that are counted separately, with the rate of another one. */
const RATE_OF = {
  par: 'token',
  revoke: 'token',
  verify: 'token',
  logout: 'introspect',
  identityCodeGuesses: 'codeGuesses',
} as const satisfies Readonly<Record<string, keyof ConfiguredRates>>;

type RateLimiters = Readonly<Record<keyof ConfiguredRates | keyof typeof RATE_OF, RateLimiter>>;

/** Limits on guesses: every attempt is counted before it is allowed. */
const STRICT_LIMITS: ReadonlySet<string> = new Set([
  'codeGuesses',
  'allCodeGuesses',
  'networkCodeGuesses',
  'identityCodeGuesses',
  'signInsFrom',
  'failuresAs',
  'failuresAsUnknown',
]);
/** Limits that protect the CPU of this process only. */
const LOCAL_LIMITS: ReadonlySet<string> = new Set(['verify', 'page']);

export type ProcessState = ReturnType<typeof createProcessState>;

/** Creates what survives a reload: the store, rate limits, upstream connections. */
export function createProcessState(options: ProcessStateOptions) {
  const { store, log, now, metrics, isAuditAvailable, isOverloaded, limits: shared } = options;
  const limiters = new SharedResources<RateLimiter>();
  const revocations = createLocalRevocations({ log: store.revocations, now });
  const streams = new LiveStreams({ revocations, now, log });
  const upstreams = new UpstreamRegistry(log);
  let current = options.settings;
  const outageTracker = new OutageTracker({
    store,
    retryWindow: () => current.tokens.refresh.retryWindow,
    onUnreadable: (fault) => log.error('store_error', errorFields(fault)),
  });
  const crlFiles = createCrlFiles();
  const issuerKeys = new IssuerKeysRegistry(log, metrics, now);
  const ocspResponders = new SharedResources<OcspResponder>();
  const crlFetchers = new SharedResources<CrlFetcher>();
  let digest: ((text: string) => string) | undefined;
  const digestName = (text: string): string => {
    if (digest === undefined) throw new Error('rate limits need a keyring first');
    return digest(text).slice(0, DIGEST_LENGTH);
  };
  const createLimiter = (name: string, rate: Rate | undefined): RateLimiter =>
    shared === undefined || rate === undefined || LOCAL_LIMITS.has(name)
      ? createRateLimiter(rate, now)
      : createSharedRateLimit({ shared, name, rate, strict: STRICT_LIMITS.has(name), digestName, now });
  const quotas = new QuotaRegistry({ now, shared, digestName });
  return {
    store: { ...store, revocations },
    /** Limits of routes. */
    quotas,
    /** WebSockets and other long responses, whichever configuration they began with. */
    streams,
    upstreams,
    crlFiles,
    crlFetchers,
    ocspResponders,
    issuerKeys,
    proofs: createProofMemories(),
    /** Must be called before the store closes. */
    async stop(): Promise<void> {
      quotas.stop();
      await outageTracker.stop();
      streams.stop();
      await Promise.all([crlFetchers.close(), ocspResponders.close(), issuerKeys.close()]);
      await crlFiles.stop();
      await upstreams.close();
      await revocations.stop();
    },
    log,
    metrics,
    isAuditAvailable,
    now,
    /** Started together with the listener. */
    outageTracker,
    /**
     * Applies a configuration: the retry window, the limits of pending device requests, and its keyed digest for the names of
     * rate-limit buckets.
     */
    apply(next: Settings, nextDigest: (text: string) => string): void {
      current = next;
      digest = nextDigest;
    },
    isOverloaded,
    pollLimiter: createPollLimiter(),
    attemptLimits: createAttemptLimits({
      now,
      createLimit: createLimiter,
      ...(shared && {
        shared: { limits: shared, keyFor: (sessionId) => digestName(`session\n${sessionId}`) },
      }),
    }),
    pendingLimiter: createPendingDeviceLimiter({
      limits: () => ({ all: current.device.maxPending, perClient: current.device.maxPendingPerClient }),
      shared: shared ?? createMemoryLimits(now),
      digestName,
    }),
    /** A limiter is replaced only when its rate has changed. */
    openLimiters: (rates: ConfiguredRates, scope: ResourceScope): RateLimiters =>
      Object.fromEntries(
        [
          ...Object.entries(rates),
          ...Object.entries(RATE_OF).map(([name, other]) => [name, rates[other]] as const),
        ].map(([name, rate]) => {
          const open = () => ({ resource: createLimiter(name, rate) });
          return [name, limiters.share(JSON.stringify([name, rate]), open, scope)];
        }),
      ) as RateLimiters,
  };
}

/** 132 bits: collision-resistant. */
const DIGEST_LENGTH = 22;
