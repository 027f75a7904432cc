import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import { networksOf } from '../http/rate-limit.ts';
import type { PendingEntry, SharedLimits } from '../ports/shared-limits.ts';

type Request = Pick<DeviceRequest, 'id' | 'clientId' | 'askedFrom' | 'expires'>;

/**
 * Limits how many device requests are pending: in all, for each integration, and for each network at an integration.
 * When a limit is reached, the network with the most pending requests loses one to a newcomer from a network with
 * fewer, so that a few networks cannot keep everyone else out.
 */
export interface PendingRequests {
  admit(
    request: Request,
    now: Epoch,
  ): Promise<{
    readonly admitted: boolean;
    /** Ids of requests that have to end now. */
    readonly displaced: readonly string[];
  }>;
  /** A request has ended before its time. */
  release(request: Request): Promise<void>;
}

export interface PendingRequestLimits {
  readonly all: number;
  readonly perClient: number;
}

/** An address (IPv6: a /64) has at most this part of what an integration may have, even below the limit. */
const PER_ADDRESS = 0.1;

export function pendingRequests({
  limits,
  shared,
  hide,
}: {
  readonly limits: PendingRequestLimits;
  readonly shared: Pick<SharedLimits, 'admit' | 'release'>;
  /** Makes a digest of names. */
  readonly hide: (text: string) => string;
}): PendingRequests {
  const all = (): string => hide('pending\nall');
  const of = (clientId: string): string => hide(`pending\nclient ${clientId}`);
  const entryOf = ({ id, askedFrom, expires }: Request): PendingEntry => ({
    id,
    networks: networksOf(askedFrom).map((network) => hide(`pending\n${network}`).slice(0, NAME_LENGTH)),
    expires,
  });
  return {
    async admit(request, now) {
      const entry = entryOf(request);
      const seconds = Math.max(1, request.expires - now);
      const perNetwork = Math.max(1, Math.ceil(limits.perClient * PER_ADDRESS));
      const own = await shared.admit(of(request.clientId), entry, {
        most: limits.perClient,
        perNetwork,
        seconds,
      });
      if (!own.admitted) return { admitted: false, displaced: [] };
      const whole = await shared.admit(all(), entry, { most: limits.all, seconds });
      if (!whole.admitted) {
        // What had to make room in the first limit stays pending, within the second: a refused request ends no other.
        await shared.release(of(request.clientId), entry);
        return { admitted: false, displaced: [] };
      }
      return {
        admitted: true,
        displaced: [own.displaced, whole.displaced].filter((id) => id !== undefined),
      };
    },
    async release(request) {
      const entry = entryOf(request);
      await Promise.all([shared.release(of(request.clientId), entry), shared.release(all(), entry)]);
    },
  };
}

/** 72 bits are enough: two networks of one digest would only share a part. */
const NAME_LENGTH = 12;
