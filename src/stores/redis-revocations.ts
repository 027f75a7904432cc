import { setTimeout as pause } from 'node:timers/promises';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { Revocation, RevocationLog } from '../ports/revocation-log.ts';
import { type RedisClient, redisFault } from './redis-client.ts';
import { type Follower, follow, newEpoch } from './redis-follower.ts';
import {
  compareIds,
  type KeyedEntry,
  type Peer,
  revocationKeys,
  revocationServer,
} from './redis-revocation-scripts.ts';
import { entryOf, keyOf } from './revocation-rules.ts';
import { type RevocationView, revocationView } from './revocation-view.ts';

/** What a revocation's answer waits for: those that can reach the store, or also the leases of those that cannot. */
export type Ack = 'reachable' | 'everywhere';

export interface RedisRevocationsOptions {
  readonly control: RedisClient;
  /** For what writes. */
  readonly writer: RedisClient;
  readonly reader: RedisClient;
  readonly prefix: string;
  /** Seconds for which tokens are judged by what was known last while the server cannot be reached. */
  readonly maxStaleness: number;
  readonly ack: Ack;
  readonly onFault: (fault: Fault) => void;
  readonly onBeat: () => void;
  /** By the server's clock or this process's, whichever is behind: tokens expire by the latter, and so do their revocations. */
  readonly issuingTime: () => Epoch;
  readonly onDataLoss: () => Promise<void>;
  /** So many revocations were missing from the server, or weaker than announced, and have been put back. */
  readonly onRestored: (count: number) => void;
}

export interface RedisRevocations extends RevocationLog {
  readonly view: RevocationView;
  /** Seconds since all that had been announced was last known here. */
  staleness(): number;
  /** How many processes share this store, as far as is known. */
  followers(): number;
  /** Throws while the server is not the one whose history is known here. */
  requireSame(): Promise<void>;
  /** Announces what was announced elsewhere before, as much as is given at once; nobody's answer waits for it. */
  bring(revocations: readonly Revocation[]): Promise<void>;
  /** All that was revoked before is known here: tokens from before this store count. */
  vouch(): Promise<void>;
  /** Removes what has ended, here and in Redis, piece by piece; returns how many here. */
  sweep(): Promise<number>;
  /** Puts back revocations that were removed from Redis, piece by piece; returns how many. Runs by itself. */
  repair(): Promise<number>;
  stop(): Promise<void>;
}

const SWEEP_MS = 10_000;
/** All that is known here is compared with Redis within an hour; each time at least so many entries. */
const REPAIR_PASSES = 360;
const REPAIR_LEAST = 500;
const REPAIR_BATCH = 100;
/** Seconds. Entries that end sooner may have been swept already. */
const REPAIR_MARGIN = 60;

export async function redisRevocations(options: RedisRevocationsOptions): Promise<RedisRevocations> {
  const { control, reader, prefix, maxStaleness, onFault, onBeat, onDataLoss, issuingTime } = options;
  const keys = revocationKeys(prefix);
  const server = revocationServer(control, keys, options.writer);
  const view = revocationView();
  const lease = maxStaleness * 1_000;
  const follower = await follow({
    server,
    reader,
    keys,
    view,
    lease,
    onFault,
    onBeat,
    onDataLoss,
    issuingTime,
  });
  const wait = waiter(follower, options.ack, () => server.peers());

  let cursor = '0';
  const sweep = async (): Promise<number> => {
    const sure = issuingTime();
    const removed = view.sweep(sure);
    cursor = await server.sweep(cursor, sure);
    return removed;
  };
  /** An absent revocation lets a token pass, and no MAC shows that it is absent: this process remembers what it has seen. */
  let unrepaired = view.entries()[Symbol.iterator]();
  const repairOnce = async (): Promise<number> => {
    const soon = control.storeTime() + REPAIR_MARGIN;
    let left = Math.max(REPAIR_LEAST, Math.ceil(view.size() / REPAIR_PASSES));
    let restored = 0;
    for (let isEnd = false; !isEnd && left > 0; ) {
      const batch: KeyedEntry[] = [];
      while (batch.length < REPAIR_BATCH && left > 0) {
        const next = unrepaired.next();
        if (next.done === true) {
          unrepaired = view.entries()[Symbol.iterator]();
          isEnd = true;
          break;
        }
        left -= 1;
        const [key, { limit, keepUntil }] = next.value;
        // The view rounds up to whole seconds; one less never exceeds what Redis has.
        if (keepUntil > soon) batch.push([key, { limit, keepUntil: keepUntil - 1 }]);
      }
      // Another server is loaded and given what it lacks by the follower.
      if (batch.length === 0 || !follower.isCurrent()) continue;
      const head = await server.announce(newEpoch(), follower.vouchedFloor(), batch);
      follower.saw(head);
      if (follower.isCurrent()) restored += head.changed;
    }
    if (restored > 0) options.onRestored(restored);
    return restored;
  };
  let repairing: Promise<number> | undefined;
  const repair = (): Promise<number> => {
    repairing ??= repairOnce().finally(() => {
      repairing = undefined;
    });
    return repairing;
  };
  let stopped = false;
  const report = (error: unknown): void => {
    if (!stopped) onFault(redisFault(error));
  };
  // Each by itself: what keeps one from working must not keep the other.
  const upkeep = (): void => {
    void sweep().catch(report);
    void repair().catch(report);
  };
  const sweeping = setInterval(upkeep, SWEEP_MS).unref();

  return {
    view,
    async announce(revocation) {
      const key = keyOf(revocation);
      if (!key.isWellFormed()) throw new RangeError('not a name the store can keep');
      const entry = entryOf(revocation);
      const head = await server.announce(newEpoch(), follower.vouchedFloor(), [[key, entry]]);
      view.add(key, entry);
      follower.saw(head);
      await wait(head);
    },
    isRevoked(bearer) {
      const stale = follower.staleness();
      if (stale > lease)
        throw new Fault(
          'store_unavailable',
          `what was revoked has not been known for ${Math.floor(stale / 1_000)} s`,
        );
      return bearer.issuedAt < follower.floor() || view.isRevoked(bearer, issuingTime());
    },
    async bring(revocations) {
      const entries = revocations.map((one) => [keyOf(one), entryOf(one)] as const);
      const head = await server.announce(newEpoch(), follower.vouchedFloor(), entries);
      for (const [key, entry] of entries) view.add(key, entry);
      follower.saw(head);
    },
    vouch: async () => void (await server.vouch(0)),
    staleness: () => follower.staleness() / 1_000,
    followers: () => follower.followers(),
    requireSame: () => follower.requireSame(),
    sweep,
    repair,
    async stop() {
      stopped = true;
      clearInterval(sweeping);
      await follower.stop();
    },
  };
}

interface Answer {
  readonly last: string;
  readonly now: number;
  readonly peers: readonly Peer[];
}

/** No beat for this long: cut off. */
const SILENT_MS = 2_000;
/** A replica that beats and has not applied an entry by then is not busy, it is stuck. */
const WAIT_MS = 5_000;
const LOOK_AGAIN_MS = { first: 2, most: 20 };

/** Waits until everybody who must know of an announcement has applied it. */
function waiter(
  { replica }: Pick<Follower, 'replica'>,
  ack: Ack,
  ask: () => Promise<Answer>,
): (announced: Answer) => Promise<void> {
  /** Those that beat but did not apply in time, with what they had applied: not waited for again until they move. */
  const stuck = new Map<string, string>();
  // Announcements that wait at the same time look together.
  let looking: Promise<Answer> | undefined;
  const look = (): Promise<Answer> => {
    looking ??= ask().finally(() => {
      looking = undefined;
    });
    return looking;
  };
  const isSilent = ({ id, applied, beatAt }: Peer, now: number): boolean =>
    now - beatAt > SILENT_MS || stuck.get(id) === applied;

  return async (announced) => {
    const behind = ({ peers }: Answer): readonly Peer[] =>
      peers.filter(({ id, applied }) => id !== replica && compareIds(applied, announced.last) < 0);
    const hindering = (answer: Answer): readonly Peer[] =>
      behind(answer).filter((peer) => !isSilent(peer, answer.now));
    const until = performance.now() + WAIT_MS;
    let latest = announced;
    for (let delay = LOOK_AGAIN_MS.first; hindering(latest).length > 0 && performance.now() < until; ) {
      await pause(delay);
      latest = await look();
      delay = Math.min(delay * 2, LOOK_AGAIN_MS.most);
    }
    for (const { id, applied } of hindering(latest)) stuck.set(id, applied);
    for (const { id, applied } of latest.peers) if (stuck.get(id) !== applied) stuck.delete(id);
    if (ack === 'reachable') return;
    const { now } = latest;
    const left = Math.max(0, ...behind(latest).map(({ beatAt, lease }) => beatAt + lease - now));
    if (left > 0)
      throw new Fault('store_unavailable', 'a replica that is cut off may still accept the token', {
        retryAfter: Math.ceil(left / 1_000),
      });
  };
}
