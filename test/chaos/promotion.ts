import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Reply } from '../support/https-client.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isTemporary, startFleet } from './fleet.ts';
import { type RedisPair, startRedisPair } from './redis-pair.ts';
import { createCloser, pick, randomFrom, report, runConcurrently, SEED } from './report.ts';

const random = randomFrom(SEED);

/** The state of a client: its newest refresh token, and whether the revocation of its grant was acknowledged. */
interface ClientState {
  refreshToken: string;
  readonly accessToken: string;
  state: 'valid' | 'revoked' | 'maybe revoked';
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
  const closer = createCloser();
  beforeAll(async () => {
    pair = await startRedisPair();
    closer.add(() => pair.close());
    fleet = await startFleet({
      redis: pair.primary.port,
      size: 2,
      store: { maxStaleness: '60s', durability: 'replicated', replicas: 1 },
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  test(`S08 V11 partition and promotion, ${rounds} times, \`durability: replicated\`: no acknowledged write is lost, and rejections are temporary errors`, async () => {
    const total = { grants: 0, rotations: 0, revocations: 0, refused: 0, rolledForward: 0 };
    const wronglyRefused: string[] = [];
    const lost: string[] = [];
    const all: ClientState[] = [];
    const pickCaller = () => pick(random, fleet.replicas).caller;
    const recordRefusal = (what: string, response: Reply): void => {
      total.refused += 1;
      if (!isTemporary(response))
        wronglyRefused.push(`${what}: ${response.status} ${JSON.stringify(response.json)}`);
    };
    /** One client: obtains a grant, refreshes it twice, and revokes it with a probability of 0.5. */
    const runClient = async (states: ClientState[]): Promise<void> => {
      const created = await pickCaller().post('/Authorize/Certificate', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      if (created.status !== 200) return recordRefusal('grant', created);
      const state: ClientState = {
        refreshToken: String(created.json['refresh_token']),
        accessToken: String(created.json['access_token']),
        state: 'valid',
      };
      states.push(state);
      total.grants += 1;
      for (let attempt = 0; attempt < 2; attempt += 1) {
        const response = await pickCaller().refresh(state.refreshToken);
        if (response.status !== 200) return recordRefusal('refresh', response);
        state.refreshToken = String(response.json['refresh_token']);
        total.rotations += 1;
      }
      if (random() < 0.5) return;
      state.state = 'maybe revoked';
      const response = await pickCaller().revoke(state.accessToken);
      if (response.status !== 200) return recordRefusal('revocation', response);
      state.state = 'revoked';
      total.revocations += 1;
    };

    for (let round = 0; round < rounds; round += 1) {
      const states: ClientState[] = [];
      const before = { ...total };
      const halt = new AbortController();
      const load = Array.from({ length: clients }, async () => {
        while (!halt.signal.aborted) await runClient(states);
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

      // Check every acknowledged grant through both gateways on the new primary.
      all.push(...states);
      await runConcurrently(states, 8, async (state) => {
        const statuses = await Promise.all(
          fleet.replicas.map((replica) => replica.caller.call(state.accessToken)),
        );
        const response = await until('the response is not temporary', async () => {
          const found = await pickCaller().refresh(state.refreshToken);
          return !isTemporary(found) && found;
        });
        const seen = `round ${round}, ${state.state}: ${statuses.join(' ')}, refresh ${response.status}`;
        if (state.state === 'valid' && (statuses.some((status) => status !== 200) || response.status !== 200))
          lost.push(seen);
        if (
          state.state === 'revoked' &&
          (statuses.some((status) => status !== 401) || response.status !== 400)
        )
          lost.push(seen);
        if (response.status === 200) state.refreshToken = String(response.json['refresh_token']);
      });
      const records = await Promise.all(
        states
          .filter(({ state }) => state === 'valid')
          .map(({ refreshToken }) => pair.admin.exists(`gh:{${refreshToken.split('.')[1]}}:g`)),
      );
      if (records.includes(0)) lost.push(`round ${round}: a record is missing`);
      expect(lost).toEqual([]);
      expect(wronglyRefused).toEqual([]);
    }
    // After all promotions, revoked grants are still revoked.
    await runConcurrently(all, 8, async ({ state, accessToken }) => {
      if (state !== 'revoked') return;
      for (const { caller } of fleet.replicas)
        if ((await caller.call(accessToken)) !== 401) lost.push('a revoked grant is accepted again');
    });
    expect(lost).toEqual([]);
    expect(fleet.countAudits('refresh_reuse')).toBe(0);
    report('promotions', {
      seed: SEED,
      'partitions and promotions': rounds,
      'grants acknowledged': total.grants,
      'rotations acknowledged': total.rotations,
      'revocations acknowledged': total.revocations,
      'refused as temporary': total.refused,
      'rolled forward': fleet.countAudits('refresh_rolled_forward'),
      'acknowledged and lost': lost.length,
    });
  }, 2_700_000);
}
