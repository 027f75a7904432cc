import type { Settings } from '../config/schema.ts';
import type { Rate } from '../config/units.ts';
import { type ConfirmMemory, confirmMemory } from '../confirm/guess-limit.ts';
import type { Epoch } from '../domain/epoch.ts';
import { denyAtOnce } from '../grants/local-denial.ts';
import { type PendingRequests, pendingRequests } from '../grants/pending-requests.ts';
import { type PollPace, pollPace } from '../grants/poll-pace.ts';
import { type ServingTime, servingTime } from '../grants/serving-time.ts';
import { type RateLimit, rateLimit } from '../http/rate-limit.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import type { Store } from '../ports/store.ts';
import { type LiveStreams, liveStreams } from '../proxy/live-streams.ts';
import { createUpstreams, type Upstreams } from '../proxy/upstreams.ts';
import { memoryLimits } from '../stores/memory-limits.ts';
import { type RevocationFiles, revocationFiles } from '../tls/revocation-files.ts';
import { sharedRateLimit } from './shared-limiter.ts';

/** What outlives a configuration generation: a reload resets nobody's count and closes no store. */
export interface Permanent {
  readonly store: Store;
  readonly log: Logger;
  readonly metrics: Metrics;
  /** Can what happens to grants be recorded, as far as the settings ask for it? */
  readonly mayRecord: () => boolean;
  readonly now: () => Epoch;
  /** When gatehouse served and when it could not; `start` with the listener. */
  readonly serving: ServingTime;
  /** The retry window in force: it decides how exactly outages are measured. */
  useRetryWindow(seconds: number): void;
  readonly pace: PollPace;
  readonly pending: PendingRequests;
  readonly confirm: ConfirmMemory;
  /** Are calls recorded as spans? Settled at the start. */
  readonly isTraced: boolean;
  /** Does this process not keep up, so that new work of its own should wait? */
  readonly isPressed: () => boolean;
  /** WebSockets and other long answers, whichever configuration they began under. */
  readonly streams: LiveStreams;
  /** Connections to upstreams, and what is known about their targets. */
  readonly upstreams: Upstreams;
  /** Parsed certificate revocation lists. */
  readonly revocationFiles: RevocationFiles;
  /** The limiter of this name, made anew only when its rate has changed. */
  limiter(name: RateName, rate: Rate | undefined): RateLimit;
  /** How names of those that are counted are made unreadable, under the keys in force. */
  hideBy(digest: (text: string) => string): void;
  /** Ends what runs by itself; before the store closes. */
  stop(): Promise<void>;
}

export interface PermanentOptions {
  readonly settings: Settings;
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => Epoch;
  readonly metrics: Metrics;
  readonly mayRecord: () => boolean;
  /** Where counts are shared with other processes; left out, this is the only one. */
  readonly limits?: SharedLimits | undefined;
  readonly isTraced: boolean;
  readonly isPressed: () => boolean;
}

type RateName = keyof Settings['limits']['rates'];

/** Guesses: each is asked for before it is allowed. */
const STRICT: ReadonlySet<string> = new Set([
  'codeGuesses',
  'allCodeGuesses',
  'networkCodeGuesses',
  'identityCodeGuesses',
  'signInsFrom',
  'failuresAs',
  'failuresAsUnknown',
]);
/** What these protect is this process's own time, and they are answered from memory: nobody else is asked. */
const OWN: ReadonlySet<string> = new Set(['verify', 'page']);

export function createPermanent({
  settings,
  store,
  log,
  now,
  metrics,
  mayRecord,
  limits: shared,
  isTraced,
  isPressed,
}: PermanentOptions): Permanent {
  const limiters = new Map<string, { readonly rate: string; readonly limit: RateLimit }>();
  const revocations = denyAtOnce({ log: store.revocations, now });
  const streams = liveStreams({ revocations, now, log });
  const upstreams = createUpstreams(log);
  let { retryWindow } = settings.tokens.refresh;
  const serving = servingTime({
    store,
    retryWindow: () => retryWindow,
    onUnreadable: (fault) => log.error('store_fault', errorFields(fault)),
  });
  const crls = revocationFiles();
  let digest: ((text: string) => string) | undefined;
  const hide = (text: string): string => {
    if (digest === undefined) throw new Error('nothing is counted before there are keys');
    return digest(text).slice(0, DIGEST_LENGTH);
  };
  const limitBy = (name: string, rate: Rate | undefined): RateLimit =>
    shared === undefined || rate === undefined || OWN.has(name)
      ? rateLimit(rate, now)
      : sharedRateLimit({ shared, name, rate, strict: STRICT.has(name), hide, now });
  const { maxPending: all, maxPendingPerClient: perClient } = settings.device;
  return {
    store: { ...store, revocations },
    streams,
    upstreams,
    revocationFiles: crls,
    async stop() {
      await serving.stop();
      streams.stop();
      await crls.stop();
      await upstreams.close();
      await revocations.stop();
    },
    log,
    metrics,
    mayRecord,
    now,
    serving,
    useRetryWindow(seconds) {
      retryWindow = seconds;
    },
    isTraced,
    isPressed,
    pace: pollPace(),
    confirm: confirmMemory({
      now,
      limit: limitBy,
      ...(shared && { shared: { limits: shared, nameOf: (sessionId) => hide(`session\n${sessionId}`) } }),
    }),
    pending: pendingRequests({ limits: { all, perClient }, shared: shared ?? memoryLimits({ now }), hide }),
    hideBy(by) {
      digest = by;
    },
    limiter(name, rate) {
      const text = JSON.stringify(rate ?? 'off');
      const known = limiters.get(name);
      if (known?.rate === text) return known.limit;
      const limit = limitBy(name, rate);
      limiters.set(name, { rate: text, limit });
      return limit;
    },
  };
}

/** 132 bits: nobody finds two names with one digest. */
const DIGEST_LENGTH = 22;
