import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import type { Reply } from '../support/https-client.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import type { TcpFault } from '../support/tcp-fault.ts';
import { type Fleet, openFleet, type Replica } from './fleet.ts';
import { closer, count, report } from './form.ts';

/** Two cuts of each kind in the short form. */
const CUTS = count('CUTS', 1, 5);
const LEASE = 3;

let server: RedisServer;
let fleet: Fleet;
const opened = closer();
beforeAll(async () => {
  server = await redisServer();
  opened.add(() => server.stop());
  fleet = await openFleet({
    redis: server.port,
    store: { maxStaleness: `${LEASE}s` },
    set: (replica) => [`store.ack=${replica === 0 ? 'everywhere' : 'reachable'}`],
  });
  opened.add(() => fleet.close());
}, 180_000);
afterAll(() => opened.closeAll());

interface Look {
  readonly askedAt: number;
  readonly answeredAt: number;
  readonly status: number;
}

const ends = new Set<() => void>();
afterEach(() => {
  for (const end of ends) end();
  ends.clear();
});

/** Asks one replica about one token again and again. */
function watch(
  { caller }: Replica,
  token: string,
): { readonly looks: readonly Look[]; stop(): Promise<void> } {
  const looks: Look[] = [];
  const halt = new AbortController();
  ends.add(() => halt.abort());
  const watching = (async () => {
    while (!halt.signal.aborted) {
      const askedAt = performance.now();
      // A connection that broke is no answer, and would be seen: 0 is none of those expected.
      const status = await caller.call(token).catch(() => 0);
      looks.push({ askedAt, answeredAt: performance.now(), status });
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

const faults: readonly TcpFault[] = ['black hole', 'refuse'];

for (const fault of faults)
  test(`V07 a replica cut off from Redis (${fault}), ${CUTS} times: it accepts nothing once its lease is over, \`ack: everywhere\` waits for that, and what it missed counts before it accepts again`, async () => {
    const [everywhere, reachable, cut] = fleet.replicas as readonly [Replica, Replica, Replica];
    const waits: number[] = [];
    let waited = 0;
    for (let round = 0; round < CUTS; round += 1) {
      await fleet.allReady();
      const [strict, loose, live] = [
        await everywhere.caller.grant(),
        await reachable.caller.grant(),
        await reachable.caller.grant(),
      ];
      for (const { access_token: token } of [strict, loose, live])
        await until('it accepts the token', async () => (await cut.caller.call(token)) === 200);
      const watched = [strict, loose, live].map(({ access_token: token }) => watch(cut, token));
      const [strictLooks, looseLooks, liveLooks] = watched.map(({ looks }) => looks) as [
        Look[],
        Look[],
        Look[],
      ];

      cut.way.set(fault);
      const cutAt = performance.now();
      // Whoever must only reach those that beat is answered soon; the other must wait for the lease.
      const looselyEnded = reachable.caller.revoke(loose.access_token).then((answer) => {
        expect(answer.status).toBe(200);
        return performance.now();
      });
      const told: Reply[] = [];
      const strictlyEndedAt = await until('the end counts everywhere', async () => {
        const answer = await everywhere.caller.revoke(strict.access_token);
        told.push(answer);
        return answer.status === 200 && performance.now();
      });
      const looselyEndedAt = await looselyEnded;
      waits.push(strictlyEndedAt - cutAt);
      waited += told.length - 1;
      for (const { status, headers } of told.slice(0, -1)) {
        expect(status).toBe(503);
        expect(Number(headers['retry-after'])).toBeGreaterThan(0);
        expect(Number(headers['retry-after'])).toBeLessThanOrEqual(LEASE);
      }
      // The others refuse at once, whatever the answer was.
      for (const { caller } of [everywhere, reachable])
        for (const { access_token: token } of [strict, loose]) expect(await caller.call(token)).toBe(401);

      await until('the one cut off accepts nobody', () => liveLooks.at(-1)?.status === 503);
      const before = liveLooks.length;
      await until('it stays so', () => liveLooks.length > before + 20);
      expect(await everywhere.caller.call(live.access_token)).toBe(200);

      cut.way.set('pass');
      await until('it serves again', () => liveLooks.at(-1)?.status === 200);
      for (const { access_token: token } of [strict, loose]) expect(await cut.caller.call(token)).toBe(401);
      for (const one of watched) await one.stop();

      // Cut off it says "we", never "you": a token that is valid is never called invalid.
      expect(liveLooks.filter(({ status }) => status !== 200 && status !== 503)).toEqual([]);
      const late = (looks: readonly Look[], from: number): readonly Look[] =>
        looks.filter(({ askedAt, status }) => askedAt > from && status === 200);
      expect(late(strictLooks, strictlyEndedAt)).toEqual([]);
      expect(late(looseLooks, Math.max(looselyEndedAt, cutAt + LEASE * 1_000))).toEqual([]);
      const refused = (looks: readonly Look[]): number => looks.findIndex(({ status }) => status === 401);
      for (const looks of [strictLooks, looseLooks])
        expect(looks.slice(refused(looks)).filter(({ status }) => status === 200)).toEqual([]);
    }
    report(`cut-off-${fault.replace(' ', '-')}`, {
      cuts: CUTS,
      'lease, s': LEASE,
      'ack: everywhere answered after, s': waits.map((wait) => (wait / 1_000).toFixed(1)).join(' '),
      'told to wait': waited,
      'accepted after the lease or the answer': 0,
    });
  }, 300_000);
