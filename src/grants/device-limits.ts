import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/grant.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { getNetworks } from '../lib/rate-limiter.ts';
import type { PendingEntry, SharedLimits } from '../ports/shared-limits.ts';

const MAX_REQUESTS = 100_000;
const SLOW_DOWN_SECONDS = 5;
const MAX_SLOW_DOWN_SECONDS = 30;

interface PollState {
  readonly lastPollAt: Epoch;
  readonly slowDownSeconds: number;
}

/**
 * Limits how often a device may poll. In memory, so that a poll writes nothing. The interval starts at the last accepted
 * poll, so a device that polls too often is delayed but never locked out.
 *
 * RFC 8628 §3.5: each `slow_down` adds 5 seconds to the interval, for this and all later polls. The growth is limited:
 * a device that ignores it is still accepted once in `interval + MAX_SLOW_DOWN_SECONDS`.
 */
export function createPollLimiter() {
  const states = createBoundedCache<string, PollState>(MAX_REQUESTS);
  return {
    /** 0: the poll is accepted. */
    getWaitSeconds(requestId: string, interval: number, now: Epoch): number {
      const state = states.get(requestId);
      // A last poll in the future: the clock was set back, and the device must not wait until it catches up.
      if (state === undefined || now < state.lastPollAt) return 0;
      const due = state.lastPollAt + interval + state.slowDownSeconds;
      // Half a second of tolerance for jitter.
      return now >= due - 0.5 ? 0 : Math.max(1, Math.ceil(due - now));
    },
    /** Has this process seen the request pending? */
    isPolling: (requestId: string): boolean => states.has(requestId),
    /** The response was `authorization_pending`. */
    recordPoll(requestId: string, now: Epoch): void {
      const { slowDownSeconds = 0 } = states.get(requestId) ?? {};
      states.set(requestId, { lastPollAt: now, slowDownSeconds });
    },
    /** The response was `slow_down`. */
    slowDown(requestId: string): void {
      const state = states.get(requestId);
      if (state !== undefined)
        states.set(requestId, {
          ...state,
          slowDownSeconds: Math.min(state.slowDownSeconds + SLOW_DOWN_SECONDS, MAX_SLOW_DOWN_SECONDS),
        });
    },
  };
}

export type PollLimiter = ReturnType<typeof createPollLimiter>;

type PendingDeviceRequest = Pick<DeviceRequest, 'id' | 'clientId' | 'askedFrom' | 'expires'>;

/** The share of an integration's limit that one address (IPv6: a /64) may use. */
const MAX_SHARE_PER_ADDRESS = 0.1;

/**
 * Limits how many device requests are pending: in all, for each integration, and for each network at an integration.
 * When a limit is reached, the network with the most pending requests loses one to a newcomer from a network with
 * fewer, so that a few networks cannot keep everyone else out.
 */
export function createPendingDeviceLimiter({
  limits,
  shared,
  digestName,
}: {
  /** Read for each request: a reload may change them. */
  readonly limits: () => { readonly all: number; readonly perClient: number };
  readonly shared: Pick<SharedLimits, 'admit' | 'release'>;
  readonly digestName: (text: string) => string;
}) {
  const getGlobalName = (): string => digestName('pending\nall');
  const getClientName = (clientId: string): string => digestName(`pending\nclient ${clientId}`);
  const createEntry = ({ id, askedFrom, expires }: PendingDeviceRequest): PendingEntry => ({
    id,
    networks: getNetworks(askedFrom).map((network) => digestName(`pending\n${network}`).slice(0, DIGEST_LENGTH)),
    expires,
  });
  return {
    /** `evicted`: ids of requests that must expire now. */
    async admit(
      request: PendingDeviceRequest,
      now: Epoch,
    ): Promise<{ readonly admitted: boolean; readonly evicted: readonly string[] }> {
      const { all, perClient } = limits();
      const entry = createEntry(request);
      const seconds = Math.max(1, request.expires - now);
      const perNetwork = Math.max(1, Math.ceil(perClient * MAX_SHARE_PER_ADDRESS));
      const clientOutcome = await shared.admit(getClientName(request.clientId), entry, {
        total: perClient,
        perNetwork,
        seconds,
      });
      if (!clientOutcome.admitted) return { admitted: false, evicted: [] };
      const globalOutcome = await shared.admit(getGlobalName(), entry, { total: all, seconds });
      if (!globalOutcome.admitted) {
        // A refused request evicts no other: the one evicted from the first limit stays pending.
        await shared.release(getClientName(request.clientId), entry);
        return { admitted: false, evicted: [] };
      }
      return {
        admitted: true,
        evicted: [clientOutcome.evicted, globalOutcome.evicted].filter((id) => id !== undefined),
      };
    },
    /** A request has ended before it expired. */
    async release(request: PendingDeviceRequest): Promise<void> {
      const entry = createEntry(request);
      await Promise.all([
        shared.release(getClientName(request.clientId), entry),
        shared.release(getGlobalName(), entry),
      ]);
    },
  };
}

export type PendingDeviceLimiter = ReturnType<typeof createPendingDeviceLimiter>;

/** 72 bits: networks with equal digests would merely share a limit. */
const DIGEST_LENGTH = 12;
