import { expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { eventually, revocationsOnRedis } from './revocation-harness.ts';

const { admin, now, later, open, bearer } = revocationsOnRedis();

test('V13 the clocks of replicas do not change the order of revocations and tokens', async () => {
  const stores = [await open(), await open({ clock: () => now() - 25 }), await open({ clock: () => now() + 25 })];
  for (let round = 0; round < 30; round += 1) {
    const before = stores.map(({ revocations }) => revocations.getLastNumber());
    const announcer = stores[round % 3] ?? stores[0];
    await announcer?.revocations.announce({
      of: 'identity',
      identity: 'left',
      notBefore: Math.floor(now()) + 1,
      keepUntil: later(),
    });
    const after = stores.map(({ revocations }) => revocations.getLastNumber());
    for (const { revocations } of stores) {
      const isRevoked = (issuedAfter: number): boolean =>
        revocations.isRevoked({ ...bearer(randomGrantId()), identity: 'left', issuedAfter });
      expect(before.map(isRevoked)).toEqual([true, true, true]);
      expect(after.map(isRevoked)).toEqual([false, false, false]);
    }
  }
});

test('V09 V13 a revocation after Redis lost its data revokes all tokens issued before, whatever the clock', async () => {
  const [first, second] = [await open(), await open({ clock: () => now() - 25 })];
  const revokeLeft = (store: typeof first): Promise<void> =>
    store.revocations.announce({
      of: 'identity',
      identity: 'left',
      notBefore: Math.floor(now()) + 1,
      keepUntil: later(),
    });
  await revokeLeft(first);
  const issuedAfter = second.revocations.getLastNumber();
  const subject = { ...bearer(randomGrantId()), identity: 'left', issuedAfter };
  expect(second.revocations.isRevoked(subject)).toBe(false);
  await admin().execute((redis) => redis.flushall());
  await revokeLeft(second);
  await eventually(() => {
    for (const { revocations } of [first, second]) {
      expect(revocations.isRevoked(subject)).toBe(true);
      expect(revocations.isRevoked({ ...subject, issuedAfter: revocations.getLastNumber() })).toBe(false);
    }
  });
});
