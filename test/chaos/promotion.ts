import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Reply } from '../support/https-client.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isTemporary, startFleet } from './fleet.ts';
import { type RedisPair, redisPair } from './redis-pair.ts';
import { createCloser, pick, randomFrom, report, runConcurrently, SEED } from './report.ts';

const random = randomFrom(SEED);

/** What a client knows: its newest refresh token, and whether the revocation of its grant was acknowledged. */
interface Held {
  refreshToken: string;
  readonly accessToken: string;
  state: 'live' | 'ended' | 'perhaps ended';
}

export interface Promotions {
  readonly rounds: number;
  readonly clients: number;
  /** Acknowledged before each partition. */
  readonly revocations: number;
}

export function testPromotion({ rounds, clients, revocations }: Promotions): void {
  let pair: RedisPair;
  let fleet: Fleet;
  const opened = createCloser();
  beforeAll(async () => {
    pair = await redisPair();
    opened.add(() => pair.close());
    fleet = await startFleet({
      redis: pair.primary.port,
      size: 2,
      store: { maxStaleness: '60s', durability: 'replicated', replicas: 1 },
    });
    opened.add(() => fleet.close());
  }, 180_000);
  afterAll(() => opened.closeAll());

  test(`S08 V11 partition and promotion, ${rounds} times, \`durability: replicated\`: nothing acknowledged is lost, and rejections are temporary errors`, async () => {
    const total = { grants: 0, rotations: 0, revocations: 0, refused: 0, rolledForward: 0 };
    const wronglyRefused: string[] = [];
    const lost: string[] = [];
    const all: Held[] = [];
    const caller = () => pick(random, fleet.replicas).caller;
    const refused = (what: string, response: Reply): void => {
      total.refused += 1;
      if (!isTemporary(response))
        wronglyRefused.push(`${what}: ${response.status} ${JSON.stringify(response.json)}`);
    };
    /** One client: obtains a grant, refreshes it twice, and ends every other one. */
    const client = async (helds: Held[]): Promise<void> => {
      const made = await caller().post('/Authorize/Certificate', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      if (made.status !== 200) return refused('grant', made);
      const held: Held = {
        refreshToken: String(made.json['refresh_token']),
        accessToken: String(made.json['access_token']),
        state: 'live',
      };
      helds.push(held);
      total.grants += 1;
      for (let attempt = 0; attempt < 2; attempt += 1) {
        const response = await caller().refresh(held.refreshToken);
        if (response.status !== 200) return refused('refresh', response);
        held.refreshToken = String(response.json['refresh_token']);
        total.rotations += 1;
      }
      if (random() < 0.5) return;
      held.state = 'perhaps ended';
      const response = await caller().revoke(held.accessToken);
      if (response.status !== 200) return refused('revocation', response);
      held.state = 'ended';
      total.revocations += 1;
    };

    for (let round = 0; round < rounds; round += 1) {
      const helds: Held[] = [];
      const before = { ...total };
      const halt = new AbortController();
      const load = Array.from({ length: clients }, async () => {
        while (!halt.signal.aborted) await client(helds);
      });
      try {
        await until(
          'there are acknowledged revocations',
          () => total.revocations >= before.revocations + revocations,
          60,
        );
        pair.partition();
        await until('writes are refused', () => total.refused >= before.refused + 2 * clients, 60);
        await pair.promote(fleet.replicas.map(({ relay }) => relay));
      } finally {
        halt.abort();
        await Promise.all(load);
      }
      await pair.rejoin();
      await fleet.allReady();

      // Every grant that was ever acknowledged, through both gatehouses on the new primary.
      all.push(...helds);
      await runConcurrently(helds, 8, async (held) => {
        const statuses = await Promise.all(fleet.replicas.map((one) => one.caller.call(held.accessToken)));
        const response = await until('an answer about the grant', async () => {
          const found = await caller().refresh(held.refreshToken);
          return !isTemporary(found) && found;
        });
        const seen = `round ${round}, ${held.state}: ${statuses.join(' ')}, refresh ${response.status}`;
        if (held.state === 'live' && (statuses.some((status) => status !== 200) || response.status !== 200))
          lost.push(seen);
        if (held.state === 'ended' && (statuses.some((status) => status !== 401) || response.status !== 400))
          lost.push(seen);
        if (response.status === 200) held.refreshToken = String(response.json['refresh_token']);
      });
      const records = await Promise.all(
        helds
          .filter(({ state }) => state === 'live')
          .map(({ refreshToken }) => pair.admin.exists(`gh:{${refreshToken.split('.')[1]}}:g`)),
      );
      if (records.includes(0)) lost.push(`round ${round}: a record is gone`);
      expect(lost).toEqual([]);
      expect(wronglyRefused).toEqual([]);
    }
    // Once more, after all promotions: what was ended stays ended.
    await runConcurrently(all, 8, async ({ state, accessToken }) => {
      if (state !== 'ended') return;
      for (const { caller: at } of fleet.replicas)
        if ((await at.call(accessToken)) !== 401) lost.push('an ended grant is accepted again');
    });
    expect(lost).toEqual([]);
    expect(fleet.audits('refresh_reuse')).toBe(0);
    report('promotions', {
      seed: SEED,
      'partitions and promotions': rounds,
      'grants acknowledged': total.grants,
      'rotations acknowledged': total.rotations,
      'revocations acknowledged': total.revocations,
      'refused as temporary': total.refused,
      'rolled forward': fleet.audits('refresh_rolled_forward'),
      'acknowledged and lost': lost.length,
    });
  }, 2_700_000);
}
