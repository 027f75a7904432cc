import type { Settings } from '../config/schema.ts';
import type { Rate } from '../config/units.ts';
import { type ConfirmMemory, confirmMemory } from '../confirm/guess-limit.ts';
import type { Epoch } from '../domain/epoch.ts';
import { denyAtOnce } from '../grants/local-denial.ts';
import { type PollPace, pollPace } from '../grants/poll-pace.ts';
import { type WaitingRoom, waitingRoom } from '../grants/waiting-room.ts';
import { type RateLimit, rateLimit } from '../http/rate-limit.ts';
import type { Logger } from '../observability/logger.ts';
import type { Store } from '../ports/store.ts';
import { type LiveStreams, liveStreams } from '../proxy/live-streams.ts';
import { createUpstreams, type Upstreams } from '../proxy/upstreams.ts';

/** What outlives a configuration generation: a reload resets nobody's count and closes no store. */
export interface Permanent {
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => Epoch;
  readonly startedAt: Epoch;
  readonly pace: PollPace;
  readonly waiting: WaitingRoom;
  readonly confirm: ConfirmMemory;
  /** Does this process not keep up, so that new work of its own should wait? */
  readonly isPressed: () => boolean;
  /** WebSockets and other long answers, whichever configuration they began under. */
  readonly streams: LiveStreams;
  /** Connections to upstreams, and what is known about their targets. */
  readonly upstreams: Upstreams;
  /** The limiter of this name, made anew only when its rate has changed. */
  limiter(name: keyof Settings['limits']['rates'], rate: Rate | undefined): RateLimit;
  /** Ends what runs by itself; before the store closes. */
  stop(): Promise<void>;
}

export interface PermanentOptions {
  readonly settings: Settings;
  readonly store: Store;
  readonly log: Logger;
  readonly now: () => Epoch;
  /** How many processes share the work: a limit on all of them is divided among them. */
  readonly workers: number;
  readonly isPressed: () => boolean;
}

const GLOBAL_LIMITS: ReadonlySet<string> = new Set(['allCodeGuesses']);

export function createPermanent({
  settings,
  store,
  log,
  now,
  workers,
  isPressed,
}: PermanentOptions): Permanent {
  const limiters = new Map<string, { readonly rate: string; readonly limit: RateLimit }>();
  const revocations = denyAtOnce({ log: store.revocations, now });
  const streams = liveStreams({ revocations, now, log });
  const upstreams = createUpstreams(log);
  const share = (count: number): number => Math.max(1, Math.floor(count / workers));
  return {
    store: { ...store, revocations },
    streams,
    upstreams,
    async stop() {
      streams.stop();
      await upstreams.close();
      await revocations.stop();
    },
    log,
    now,
    startedAt: now(),
    isPressed,
    pace: pollPace(),
    confirm: confirmMemory(now),
    waiting: waitingRoom({
      all: share(settings.device.maxPending),
      perClient: share(settings.device.maxPendingPerClient),
    }),
    limiter(name, rate) {
      const own =
        rate !== undefined && GLOBAL_LIMITS.has(name)
          ? { burst: share(rate.burst), perSecond: rate.perSecond / workers }
          : rate;
      const text = JSON.stringify(own ?? 'off');
      const known = limiters.get(name);
      if (known?.rate === text) return known.limit;
      const limit = rateLimit(own, now);
      limiters.set(name, { rate: text, limit });
      return limit;
    },
  };
}
