import { describe, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { ENDED, revocationsOnRedis, soon } from './revocation-harness.ts';

const { way, admin, now, later, open, throughWay, bearer, end, refuses } = revocationsOnRedis();

describe('a revocation applies on every replica', () => {
  test('V06 once it is acknowledged no replica accepts the token', async () => {
    const stores = [await open(), await open(), await open()] as const;
    const accepted: string[] = [];
    const ids = Array.from({ length: 300 }, randomGrantId);
    await Promise.all(
      ids.map(async (id, index) => {
        await end(stores[index % 3] ?? stores[0], id);
        for (const store of stores) if (!refuses(store, id)) accepted.push(id);
      }),
    );
    expect(accepted).toEqual([]);
    expect(refuses(stores[0], randomGrantId())).toBe(false);
  });

  test('V13 whole clients and identities, and superseded generations, apply everywhere', async () => {
    const [one, two] = [await open(), await open()];
    const issuedAt = Math.floor(now()) + 60;
    const id = randomGrantId();
    await one.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later() });
    await one.revocations.announce({
      of: 'client',
      clientId: 'gone',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    await one.revocations.announce({
      of: 'identity',
      identity: 'left',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    const three = await open();
    for (const store of [one, two, three]) {
      const revoked = (changes: object): boolean =>
        store.revocations.isRevoked({ ...bearer(id, issuedAt), generation: 3, ...changes });
      expect(revoked({})).toBe(false);
      expect(revoked({ generation: 2 })).toBe(true);
      expect(revoked({ clientId: 'gone', issuedAt: issuedAt - 1 })).toBe(true);
      expect(revoked({ clientId: 'gone' })).toBe(false);
      expect(revoked({ identity: 'left', issuedAt: issuedAt - 1 })).toBe(true);
    }
  });

  test('V08 a replica that starts late knows all that was revoked before, and what is revoked while it starts', async () => {
    const one = await open();
    const before = Array.from({ length: 1_500 }, randomGrantId);
    await Promise.all(before.map((id) => end(one, id)));
    const meanwhile: string[] = [];
    let starting = true;
    const revoking = (async () => {
      for (;;) {
        if (!starting) return;
        const id = randomGrantId();
        await end(one, id);
        if (starting) meanwhile.push(id);
      }
    })();
    // Longer than a revocation takes, so that some fall into its start.
    way().delayResponses(10, 20);
    const two = await throughWay();
    starting = false;
    const known = [...meanwhile];
    const missed = [...before, ...known].filter((id) => !refuses(two, id));
    await revoking;
    expect(known.length).toBeGreaterThan(0);
    expect(missed).toEqual([]);
  });

  test('a replica that stops is not waited for', async () => {
    const [one, two] = [await open(), await open()];
    await two.close();
    expect(await admin().execute((redis) => redis.hlen('{gh}:replicas'))).toBe(1);
    await end(one, randomGrantId());
  });
});

test('V12 expired entries are removed from Redis by a sweep every ten seconds', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  const one = await open();
  const past = Math.floor(now()) - 1;
  await one.revocations.announce({ of: 'grant', grantId: 'old', belowGeneration: ENDED, keepUntil: past });
  await one.revocations.announce({ of: 'client', clientId: 'old', notBefore: 5, keepUntil: past });
  await end(one, 'young');
  vi.advanceTimersByTime(10_000);
  vi.useRealTimers();
  await soon(async () => {
    expect(await admin().execute((redis) => redis.zrange('{gh}:rev', '0', '-1'))).toEqual(['g:young']);
    expect(await admin().execute((redis) => redis.hlen('{gh}:lim'))).toBe(0);
  });
});
