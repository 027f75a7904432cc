import { describe, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { ENDED, eventually, revocationsOnRedis } from './revocation-harness.ts';

const { relay, admin, now, later, open, openThroughRelay, bearer, revoke, isRefused } = revocationsOnRedis();

describe('a revocation applies on every replica', () => {
  test('V06 once a revocation is acknowledged no replica accepts the token', async () => {
    const stores = [await open(), await open(), await open()] as const;
    const accepted: string[] = [];
    const ids = Array.from({ length: 300 }, randomGrantId);
    await Promise.all(
      ids.map(async (id, index) => {
        await revoke(stores[index % 3] ?? stores[0], id);
        for (const store of stores) if (!isRefused(store, id)) accepted.push(id);
      }),
    );
    expect(accepted).toEqual([]);
    expect(isRefused(stores[0], randomGrantId())).toBe(false);
  });

  test('V13 revocations of clients, identities and superseded generations apply everywhere', async () => {
    const [first, second] = [await open(), await open()];
    const issuedAt = Math.floor(now()) + 60;
    const before = first.revocations.getLastNumber();
    const id = randomGrantId();
    await first.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later() });
    await first.revocations.announce({
      of: 'client',
      clientId: 'gone',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    await first.revocations.announce({
      of: 'identity',
      identity: 'left',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    const third = await open();
    for (const store of [first, second, third]) {
      const isRevoked = (changes: object): boolean =>
        store.revocations.isRevoked({ ...bearer(id, issuedAt), generation: 3, ...changes });
      expect(isRevoked({})).toBe(false);
      expect(isRevoked({ generation: 2 })).toBe(true);
      expect(isRevoked({ clientId: 'gone', issuedAfter: before })).toBe(true);
      expect(isRevoked({ clientId: 'gone', issuedAfter: store.revocations.getLastNumber() })).toBe(false);
      expect(isRevoked({ identity: 'left', issuedAfter: before })).toBe(true);
    }
  });

  test('V08 a replica that starts late knows all earlier revocations, and those during its start', async () => {
    const first = await open();
    const before = Array.from({ length: 1_500 }, randomGrantId);
    await Promise.all(before.map((id) => revoke(first, id)));
    const meanwhile: string[] = [];
    let isStarting = true;
    const revoking = (async () => {
      for (;;) {
        if (!isStarting) return;
        const id = randomGrantId();
        await revoke(first, id);
        if (isStarting) meanwhile.push(id);
      }
    })();
    // Longer than a revocation takes, so that some happen during the start.
    relay().delayResponses(10, 20);
    const second = await openThroughRelay();
    isStarting = false;
    const expectedIds = [...meanwhile];
    const missed = [...before, ...expectedIds].filter((id) => !isRefused(second, id));
    await revoking;
    expect(expectedIds.length).toBeGreaterThan(0);
    expect(missed).toEqual([]);
  });

  test('a revocation does not wait for a stopped replica', async () => {
    const [first, second] = [await open(), await open()];
    await second.close();
    expect(await admin().execute((redis) => redis.hlen('{gh}:replicas'))).toBe(1);
    await revoke(first, randomGrantId());
  });
});

test('V12 expired entries are removed from Redis by a sweep every ten seconds', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  const first = await open();
  const past = Math.floor(now()) - 1;
  await first.revocations.announce({ of: 'grant', grantId: 'old', belowGeneration: ENDED, keepUntil: past });
  await first.revocations.announce({ of: 'client', clientId: 'old', notBefore: 5, keepUntil: past });
  await revoke(first, 'young');
  vi.advanceTimersByTime(10_000);
  vi.useRealTimers();
  await eventually(async () => {
    expect(await admin().execute((redis) => redis.zrange('{gh}:rev', '0', '-1'))).toEqual(['g:young']);
    expect(await admin().execute((redis) => redis.hlen('{gh}:lim'))).toBe(0);
  });
});
