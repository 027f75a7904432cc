import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import type { TcpFault } from '../support/faulty-relay.ts';
import { recordFigures } from '../support/figures.ts';
import type { Reply } from '../support/https-client.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';
import { createCloser } from './support.ts';

const LEASE = 3;

interface Observation {
  readonly sentAt: number;
  readonly respondedAt: number;
  readonly status: number;
}

/** Calls one replica with one token repeatedly. */
function watch(
  { caller }: Replica,
  token: string,
): { readonly observations: readonly Observation[]; stop(): Promise<void> } {
  const observations: Observation[] = [];
  const halt = new AbortController();
  onTestFinished(() => halt.abort());
  const watching = (async () => {
    while (!halt.signal.aborted) {
      const sentAt = performance.now();
      // A failed connection is recorded as 0, which is never an expected status.
      const status = await caller.call(token).catch(() => 0);
      observations.push({ sentAt, respondedAt: performance.now(), status });
      if (status === 0) await pause(10);
    }
  })();
  return {
    observations,
    async stop() {
      halt.abort();
      await watching;
    },
  };
}

export interface DisconnectOptions {
  readonly faults: readonly TcpFault[];
  /** Rounds per fault. */
  readonly rounds: number;
}

export function testDisconnectedReplica({ faults, rounds }: DisconnectOptions): void {
  let server: RedisServer;
  let fleet: Fleet;
  const closer = createCloser();
  beforeAll(async () => {
    server = await startRedis();
    closer.add(() => server.stop());
    fleet = await startFleet({
      redis: server.port,
      store: { maxStaleness: `${LEASE}s` },
      set: (replica) => [`store.ack=${replica === 0 ? 'everywhere' : 'reachable'}`],
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  for (const fault of faults)
    test(`V07 a replica partitioned from Redis (${fault}), ${rounds} times: it accepts no token after its lease, \`ack: everywhere\` waits for that, and missed revocations apply before it accepts tokens again`, async () => {
      const [everywhere, reachable, partitioned] = fleet.replicas as readonly [Replica, Replica, Replica];
      const waits: number[] = [];
      let waited = 0;
      for (let round = 0; round < rounds; round += 1) {
        await fleet.allReady();
        const [strict, loose, valid] = [
          await everywhere.caller.grant(),
          await reachable.caller.grant(),
          await reachable.caller.grant(),
        ];
        for (const { access_token: token } of [strict, loose, valid])
          await until('the replica accepts the token', async () => (await partitioned.caller.call(token)) === 200, 60);
        const watches = [strict, loose, valid].map(({ access_token: token }) => watch(partitioned, token));
        const [strictObservations, looseObservations, validObservations] = watches.map(
          ({ observations }) => observations,
        ) as [Observation[], Observation[], Observation[]];

        partitioned.relay.set(fault);
        const partitionedAt = performance.now();
        // `ack: reachable` waits only for replicas with a heartbeat; `ack: everywhere` must wait for the lease.
        const looseRevocation = retryWhileTemporary(() => reachable.caller.revoke(loose.access_token)).then(
          (response) => {
            expect(response.status).toBe(200);
            return performance.now();
          },
        );
        const responses: Reply[] = [];
        const strictlyRevokedAt = await until(
          'the revocation applies everywhere',
          async () => {
            const response = await everywhere.caller.revoke(strict.access_token);
            responses.push(response);
            return response.status === 200 && performance.now();
          },
          60,
        );
        const looselyRevokedAt = await looseRevocation;
        waits.push(strictlyRevokedAt - partitionedAt);
        waited += responses.length - 1;
        for (const { status, headers } of responses.slice(0, -1)) {
          expect(status).toBe(503);
          expect(Number(headers['retry-after'])).toBeGreaterThan(0);
          expect(Number(headers['retry-after'])).toBeLessThanOrEqual(LEASE);
        }
        // The other replicas reject the tokens at once, whatever the response was.
        for (const { caller } of [everywhere, reachable])
          for (const { access_token: token } of [strict, loose]) expect(await caller.call(token)).toBe(401);

        await until(
          'the lease of the partitioned replica has expired',
          () => validObservations.at(-1)?.status === 503,
          60,
        );
        const before = validObservations.length;
        await until('more calls have got responses', () => validObservations.length > before + 20, 60);
        expect(new Set(validObservations.slice(before).map(({ status }) => status))).toEqual(new Set([503]));
        expect(await everywhere.caller.call(valid.access_token)).toBe(200);

        partitioned.relay.set('pass');
        await until('the replica accepts tokens again', () => validObservations.at(-1)?.status === 200, 60);
        for (const { access_token: token } of [strict, loose]) expect(await partitioned.caller.call(token)).toBe(401);
        for (const watcher of watches) await watcher.stop();

        // A partitioned replica responds with 503, never 401: a valid token is never reported as invalid.
        expect(validObservations.filter(({ status }) => status !== 200 && status !== 503)).toEqual([]);
        const findLateAccepts = (observations: readonly Observation[], from: number): readonly Observation[] =>
          observations.filter(({ sentAt, status }) => sentAt > from && status === 200);
        expect(findLateAccepts(strictObservations, strictlyRevokedAt)).toEqual([]);
        expect(findLateAccepts(looseObservations, Math.max(looselyRevokedAt, partitionedAt + LEASE * 1_000))).toEqual(
          [],
        );
        const findFirstRefusal = (observations: readonly Observation[]): number =>
          observations.findIndex(({ status }) => status === 401);
        for (const observations of [strictObservations, looseObservations])
          expect(observations.slice(findFirstRefusal(observations)).filter(({ status }) => status === 200)).toEqual([]);
      }
      recordFigures(`partitioned-${fault.replace(' ', '-')}`, {
        partitions: rounds,
        'lease, s': LEASE,
        'ack: everywhere responded after, s': waits.map((wait) => (wait / 1_000).toFixed(1)).join(' '),
        'temporary errors': waited,
        'accepted after the lease or the response': 0,
      });
    }, 300_000);
}
