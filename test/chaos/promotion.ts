import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { until } from '../support/serve-process.ts';
import { createAcknowledgedWrites } from './acknowledged-writes.ts';
import { type Fleet, startFleet } from './fleet.ts';
import { type RedisPair, startRedisPair } from './redis-pair.ts';
import { createCloser, randomFrom, SEED, withRetryWindow } from './support.ts';

const random = randomFrom(SEED);

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
      change: withRetryWindow,
    });
    closer.add(() => fleet.close());
  }, 180_000);
  afterAll(() => closer.closeAll());

  test(`S08 V11 partition and promotion, ${rounds} times, \`durability: replicated\`: no acknowledged write is lost, and rejections are temporary errors`, async () => {
    const writes = createAcknowledgedWrites(fleet, { clients, random });
    const { total } = writes;
    for (let round = 0; round < rounds; round += 1) {
      const before = { ...total };
      const states = await writes.during(async () => {
        await until(
          'there are acknowledged revocations',
          () => total.revocations >= before.revocations + revocations,
          60,
        );
        pair.partition();
        await until('writes are refused', () => total.refused >= before.refused + 2 * clients, 60);
        await pair.promote(fleet.replicas.map(({ relay }) => relay));
      });
      await pair.rejoin();
      await fleet.allReady();
      await writes.check(states, `round ${round}`);
      const records = await Promise.all(
        states
          .filter(({ state }) => state === 'valid')
          .map(({ refreshToken }) => pair.admin.exists(`gh:{${refreshToken.split('.')[1]}}:g`)),
      );
      expect(records, `round ${round}`).not.toContain(0);
    }
    await writes.checkRevoked();
    recordFigures('promotions', {
      seed: SEED,
      'partitions and promotions': rounds,
      ...writes.describe(),
      'rolled forward': fleet.countAudits('refresh_rolled_forward'),
    });
  }, 2_700_000);
}
