import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import type { TcpFault } from '../support/faulty-relay.ts';
import type { Reply } from '../support/https-client.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';
import { createCloser, report } from './report.ts';

const LEASE = 3;

interface Observation {
  readonly sentAt: number;
  readonly respondedAt: number;
  readonly status: number;
}

/** Calls one replica with one token again and again. */
function watch(
  { caller }: Replica,
  token: string,
): { readonly looks: readonly Observation[]; stop(): Promise<void> } {
  const looks: Observation[] = [];
  const halt = new AbortController();
  onTestFinished(() => halt.abort());
  const watching = (async () => {
    while (!halt.signal.aborted) {
      const sentAt = performance.now();
      // A broken connection is no response, and would show: 0 is not an expected status.
      const status = await caller.call(token).catch(() => 0);
      looks.push({ sentAt, respondedAt: performance.now(), status });
      if (status === 0) await pause(10);
    }
  })();
  return {
    looks,
    async stop() {
      halt.abort();
      await watching;
    },
  };
}

export interface DisconnectOptions {
  readonly faults: readonly TcpFault[];
  /** Of each kind. */
  readonly rounds: number;
}

export function testDisconnectedReplica({ faults, rounds }: DisconnectOptions): void {
  let server: RedisServer;
  let fleet: Fleet;
  const opened = createCloser();
  beforeAll(async () => {
    server = await startRedis();
    opened.add(() => server.stop());
    fleet = await startFleet({
      redis: server.port,
      store: { maxStaleness: `${LEASE}s` },
      set: (replica) => [`store.ack=${replica === 0 ? 'everywhere' : 'reachable'}`],
    });
    opened.add(() => fleet.close());
  }, 180_000);
  afterAll(() => opened.closeAll());

  for (const fault of faults)
    test(`V07 a replica cut off from Redis (${fault}), ${rounds} times: it accepts nothing once its lease is over, \`ack: everywhere\` waits for that, and missed revocations apply before it accepts tokens again`, async () => {
      const [everywhere, reachable, cut] = fleet.replicas as readonly [Replica, Replica, Replica];
      const waits: number[] = [];
      let waited = 0;
      for (let round = 0; round < rounds; round += 1) {
        await fleet.allReady();
        const [strict, loose, live] = [
          await everywhere.caller.grant(),
          await reachable.caller.grant(),
          await reachable.caller.grant(),
        ];
        for (const { access_token: token } of [strict, loose, live])
          await until('it accepts the token', async () => (await cut.caller.call(token)) === 200, 60);
        const watched = [strict, loose, live].map(({ access_token: token }) => watch(cut, token));
        const [strictLooks, looseLooks, liveLooks] = watched.map(({ looks }) => looks) as [
          Observation[],
          Observation[],
          Observation[],
        ];

        cut.relay.set(fault);
        const cutAt = performance.now();
        // `ack: reachable` waits for the replicas that beat; `ack: everywhere` must wait for the lease.
        const looselyEnded = retryWhileTemporary(() => reachable.caller.revoke(loose.access_token)).then(
          (response) => {
            expect(response.status).toBe(200);
            return performance.now();
          },
        );
        const reported: Reply[] = [];
        const strictlyEndedAt = await until(
          'the revocation applies everywhere',
          async () => {
            const response = await everywhere.caller.revoke(strict.access_token);
            reported.push(response);
            return response.status === 200 && performance.now();
          },
          60,
        );
        const looselyEndedAt = await looselyEnded;
        waits.push(strictlyEndedAt - cutAt);
        waited += reported.length - 1;
        for (const { status, headers } of reported.slice(0, -1)) {
          expect(status).toBe(503);
          expect(Number(headers['retry-after'])).toBeGreaterThan(0);
          expect(Number(headers['retry-after'])).toBeLessThanOrEqual(LEASE);
        }
        // The other replicas reject the tokens at once, whatever the response was.
        for (const { caller } of [everywhere, reachable])
          for (const { access_token: token } of [strict, loose]) expect(await caller.call(token)).toBe(401);

        await until('the lease of the replica cut off is over', () => liveLooks.at(-1)?.status === 503, 60);
        const before = liveLooks.length;
        await until('more calls were answered', () => liveLooks.length > before + 20, 60);
        expect(new Set(liveLooks.slice(before).map(({ status }) => status))).toEqual(new Set([503]));
        expect(await everywhere.caller.call(live.access_token)).toBe(200);

        cut.relay.set('pass');
        await until('it accepts tokens again', () => liveLooks.at(-1)?.status === 200, 60);
        for (const { access_token: token } of [strict, loose]) expect(await cut.caller.call(token)).toBe(401);
        for (const one of watched) await one.stop();

        // A replica that is cut off answers 503, never 401: a valid token is never called invalid.
        expect(liveLooks.filter(({ status }) => status !== 200 && status !== 503)).toEqual([]);
        const late = (looks: readonly Observation[], from: number): readonly Observation[] =>
          looks.filter(({ sentAt, status }) => sentAt > from && status === 200);
        expect(late(strictLooks, strictlyEndedAt)).toEqual([]);
        expect(late(looseLooks, Math.max(looselyEndedAt, cutAt + LEASE * 1_000))).toEqual([]);
        const refused = (looks: readonly Observation[]): number =>
          looks.findIndex(({ status }) => status === 401);
        for (const looks of [strictLooks, looseLooks])
          expect(looks.slice(refused(looks)).filter(({ status }) => status === 200)).toEqual([]);
      }
      report(`cut-off-${fault.replace(' ', '-')}`, {
        cuts: rounds,
        'lease, s': LEASE,
        'ack: everywhere answered after, s': waits.map((wait) => (wait / 1_000).toFixed(1)).join(' '),
        'told to wait': waited,
        'accepted after the lease or the answer': 0,
      });
    }, 300_000);
}
