import { setTimeout as sleep } from 'node:timers/promises';
import type { Epoch } from '../../domain/grant.ts';
import { largest } from '../../lib/extremes.ts';
import { singleFlight } from '../../lib/promises.ts';
import { Fault } from '../../ports/fault.ts';
import type { ReplicaStatus, Revocation, RevocationSubject } from '../../ports/store.ts';
import {
  createRevocationView,
  isGrantKey,
  type KeyedEntry,
  NEXT_NUMBER,
  type RevocationView,
  toKeyedEntry,
} from '../revocation-rules.ts';
import { batches, createBatcher } from './batch.ts';
import { type RedisClient, toRedisFault } from './client.ts';
import { createEpoch, RevocationFollower, type RevocationFollowerOptions } from './revocation-follower.ts';
import {
  compareIds,
  createRevocationScripts,
  type LogHead,
  type Peer,
  type RevocationScripts,
  revocationKeys,
} from './revocation-scripts.ts';

/** Whether a revocation waits for the reachable replicas only, or also for the leases of the others to end. */
export type AckMode = 'reachable' | 'everywhere';

interface RedisRevocationsOptions
  extends Pick<RevocationFollowerOptions, 'reader' | 'onFault' | 'onHeartbeat' | 'issuingTime' | 'onDataLoss'> {
  readonly control: RedisClient;
  readonly writer: RedisClient;
  readonly prefix: string;
  /** Seconds for which the last known revocations are used while the server is unreachable. */
  readonly maxStaleness: number;
  readonly ack: AckMode;
  /** This many revocations were missing from the server, or weaker than announced, and have been restored. */
  readonly onRestored: (count: number) => void;
}

export type RedisRevocations = Awaited<ReturnType<typeof openRedisRevocations>>;

const MAINTENANCE_INTERVAL_MS = 10_000;
/** The whole view is compared with Redis within an hour, at least this many entries at a time. */
const REPAIRS_PER_PASS = 360;
const REPAIR_MIN = 500;
const REPAIR_BATCH = 100;
/** Entries that expire sooner may have been swept. */
const REPAIR_MARGIN_SECONDS = 60;

export async function openRedisRevocations(options: RedisRevocationsOptions) {
  const { control, onFault, issuingTime } = options;
  const keys = revocationKeys(options.prefix);
  const scripts = createRevocationScripts(control, keys, options.writer);
  const view = createRevocationView();
  const lease = options.maxStaleness * 1_000;
  const follower = new RevocationFollower({ ...options, scripts, keys, view, lease });
  await follower.start();
  const waitForAcks = createAckWaiter(follower.replica, options.ack, () => scripts.peers());

  const announce = async (entries: readonly KeyedEntry[]) => {
    const head = await scripts.announce(createEpoch(), follower.knownState(), entries);
    for (const [key, entry] of entries)
      view.add(key, isGrantKey(key) || entry.limit !== NEXT_NUMBER ? entry : { ...entry, limit: head.number });
    follower.observeHead(head);
    return head;
  };

  let sweepCursor = '0';
  /** Removes a part of the expired entries, here and in Redis; returns how many here. */
  const sweep = async (): Promise<number> => {
    const safeTime = issuingTime();
    const removed = view.sweep(safeTime);
    sweepCursor = await scripts.sweep(sweepCursor, safeTime);
    return removed;
  };

  const repair = createRepair(view, scripts, follower, control.storeTime, options.onRestored);

  let stopped = false;
  const reportFault = (error: unknown): void => {
    if (!stopped) onFault(toRedisFault(error));
  };
  const maintenanceTimer = setInterval(() => {
    void sweep().catch(reportFault);
    void repair().catch(reportFault);
  }, MAINTENANCE_INTERVAL_MS).unref();

  return {
    view,
    async announce(revocation: Revocation): Promise<void> {
      const keyed = toKeyedEntry(revocation);
      if (!keyed[0].isWellFormed()) throw new RangeError('not a valid revocation key');
      const head = await announce([keyed]);
      await waitForAcks(head);
      // `getLastNumber` follows the log, which may contain earlier entries of other replicas that are not applied here yet.
      if (!isGrantKey(keyed[0])) await follower.waitUntilApplied(head.lastId, ACK_TIMEOUT_MS);
    },
    getLastNumber: () => follower.lastNumber(),
    isRevoked(subject: RevocationSubject): boolean {
      const staleMs = follower.staleness();
      if (staleMs > lease)
        throw new Fault(
          'store_unavailable',
          `the revocation list has been out of date for ${Math.floor(staleMs / 1_000)} s`,
        );
      return subject.issuedAt < follower.floor() || view.isRevoked(subject, issuingTime());
    },
    /** Announces revocations of another store, without waiting for replicas. */
    announceImported: async (revocations: readonly Revocation[]): Promise<void> =>
      void (await announce(revocations.map(toKeyedEntry))),
    /** Accepts tokens issued before this store was created, when all earlier revocations were imported. */
    acceptEarlierTokens: () => scripts.lowerFloor(0),
    /** Seconds since all announced revocations were known here. */
    staleness: () => follower.staleness() / 1_000,
    followerCount: () => follower.followerCount(),
    listReplicas: async () => describeReplicas(follower.replica, await scripts.peers()),
    requireSameHistory: () => follower.requireSameHistory(),
    sweep,
    repair,
    async stop(): Promise<void> {
      stopped = true;
      clearInterval(maintenanceTimer);
      await follower.stop();
    },
  };
}

/**
 * Compares a part of the view with Redis at each call, and restores missing revocations: a missing one accepts a revoked token,
 * and no MAC reveals that it is missing.
 */
function createRepair(
  view: RevocationView,
  scripts: RevocationScripts,
  follower: RevocationFollower,
  now: () => Epoch,
  onRestored: (count: number) => void,
): () => Promise<number> {
  let cursor = view.entries();
  const listNext = function* (): Generator<KeyedEntry> {
    const repairAfter = now() + REPAIR_MARGIN_SECONDS;
    const count = Math.max(REPAIR_MIN, Math.ceil(view.size() / REPAIRS_PER_PASS));
    for (let visited = 0; visited < count; visited += 1) {
      const next = cursor.next();
      if (next.done === true) {
        cursor = view.entries();
        return;
      }
      const [key, entry] = next.value;
      const { keepUntil } = entry;
      // The view rounds up to whole seconds; one less never exceeds the value in Redis.
      if (keepUntil > repairAfter) yield [key, { ...entry, keepUntil: keepUntil - 1 }];
    }
  };
  return singleFlight(async () => {
    let restored = 0;
    for await (const batch of batches(listNext(), REPAIR_BATCH)) {
      // After a change of history the follower restores everything.
      if (!follower.isCurrent()) continue;
      const head = await scripts.announce(createEpoch(), follower.knownState(), batch);
      follower.observeHead(head);
      if (follower.isCurrent()) restored += head.changed;
    }
    if (restored > 0) onRestored(restored);
    return restored;
  });
}

/** By the server's clock: heartbeats and entries have its time. */
export const describeReplicas = (ownReplica: string, { peers, lastId, now }: PeerStatus): readonly ReplicaStatus[] =>
  peers
    .filter(({ heartbeatAt }) => Number.isFinite(heartbeatAt))
    .map(({ id, applied, heartbeatAt }) => {
      const heartbeatAge = Math.max(0, now - heartbeatAt) / 1_000;
      const isBehind = compareIds(applied, lastId) < 0;
      const entryAge = (now - Number(lastId.split('-', 1)[0])) / 1_000;
      return {
        name: id,
        isSelf: id === ownReplica,
        heartbeatAge,
        lag: isBehind ? Math.max(heartbeatAge, entryAge) : heartbeatAge,
      };
    });

type PeerStatus = Pick<LogHead, 'lastId' | 'now'> & { readonly peers: readonly Peer[] };

/** A replica without a heartbeat for this long is cut off. */
const HEARTBEAT_TIMEOUT_MS = 2_000;
/** A replica that sends heartbeats and has not applied an entry by then is stuck. */
const ACK_TIMEOUT_MS = 5_000;
const POLL_DELAY_MS = { initial: 2, max: 20 };

/** Waits until the other replicas have applied an announcement. */
export function createAckWaiter(
  ownReplica: string,
  ack: AckMode,
  readPeers: () => Promise<PeerStatus>,
): (announced: PeerStatus) => Promise<void> {
  /** Stuck replicas, with the id they had applied: not waited for until they make progress. */
  const stuck = new Map<string, string>();
  // A read that began before an announcement may lack a replica that the announcement must reach.
  const readLatest = createBatcher(Number.POSITIVE_INFINITY, async (announcedIds: readonly string[]) => {
    const status = await readPeers();
    return announcedIds.map(() => status);
  });
  const isUnresponsive = ({ id, applied, heartbeatAt }: Peer, now: number): boolean =>
    now - heartbeatAt > HEARTBEAT_TIMEOUT_MS || stuck.get(id) === applied;

  return async (announced) => {
    const findBehind = ({ peers }: PeerStatus): readonly Peer[] =>
      peers.filter(({ id, applied }) => id !== ownReplica && compareIds(applied, announced.lastId) < 0);
    const findBlocking = (status: PeerStatus): readonly Peer[] =>
      findBehind(status).filter((peer) => !isUnresponsive(peer, status.now));
    const deadline = performance.now() + ACK_TIMEOUT_MS;
    let latest = announced;
    let delay = POLL_DELAY_MS.initial;
    while (findBlocking(latest).length > 0 && performance.now() < deadline) {
      await sleep(delay);
      latest = await readLatest(announced.lastId);
      delay = Math.min(delay * 2, POLL_DELAY_MS.max);
    }
    for (const { id, applied } of findBlocking(latest)) stuck.set(id, applied);
    for (const { id, applied } of latest.peers) if (stuck.get(id) !== applied) stuck.delete(id);
    if (ack === 'reachable') return;
    const leaseEnds = findBehind(latest).map(({ heartbeatAt, lease }) => heartbeatAt + lease);
    const leaseLeftMs = largest(leaseEnds) - latest.now;
    if (leaseLeftMs > 0)
      throw new Fault('store_unavailable', 'a replica that is cut off may still accept the token', {
        retryAfter: Math.ceil(leaseLeftMs / 1_000),
      });
  };
}
