import { expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { startRedis } from '../../support/redis-server.ts';
import { eventually, PARTITION_SECONDS, revocationsOnRedis } from './revocation-harness.ts';

const { server, relay, admin, now, advance, open, openThroughRelay, closeAll, bearer, revoke, isRefused, markAsUsed } =
  revocationsOnRedis();

test('V09 a flushed Redis is repopulated by the replicas, and no revoked token is accepted again', async () => {
  await markAsUsed();
  const [first, second] = [await open(), await open()];
  const ids = Array.from({ length: 500 }, randomGrantId);
  await Promise.all(ids.map((id) => revoke(first, id)));
  await admin().execute((redis) => redis.flushall());
  expect(ids.filter((id) => !isRefused(second, id))).toEqual([]);
  await eventually(async () => expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(500));
  const third = await open();
  expect(ids.filter((id) => !isRefused(third, id))).toEqual([]);
  // Tokens issued by those replicas before are still valid, since the replicas had a complete view.
  await eventually(() => expect(third.revocations.isRevoked(bearer(randomGrantId(), 1_000))).toBe(false));
});

test('V09 an empty Redis in place of the old one is repopulated after a reconnection', async () => {
  await markAsUsed();
  const first = await open();
  const id = randomGrantId();
  await revoke(first, id);
  await server().kill();
  const next = await startRedis([], { port: server().port });
  try {
    const second = await open();
    await eventually(() => expect(isRefused(second, id)).toBe(true));
    expect(isRefused(first, id)).toBe(true);
    await eventually(() =>
      expect(second.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(false),
    );
  } finally {
    await closeAll();
    await next.stop();
  }
});

test('V09 if no replica is left that knew the revocations, earlier tokens are refused', async () => {
  const first = await open();
  await revoke(first, randomGrantId());
  await first.close();
  await admin().execute((redis) => redis.flushall());
  const second = await open();
  expect(second.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(true);
  expect(second.revocations.isRevoked(bearer(randomGrantId(), Math.ceil(now())))).toBe(false);
});

test('V10 a log trimmed past the reader is detected, and everything is loaded again', async () => {
  const [first, second] = [await open(), await openThroughRelay()];
  relay().set('black hole');
  advance(PARTITION_SECONDS);
  const ids = Array.from({ length: 50 }, randomGrantId);
  for (const id of ids) await revoke(first, id);
  await admin().execute((redis) => redis.xtrim('{gh}:revs', 'MAXLEN', 1));
  relay().set('pass');
  await eventually(() => expect(ids.filter((id) => !isRefused(second, id))).toEqual([]));
});

test('V11 entries lost in a failover are restored by the replicas that knew them', async () => {
  const [first, second] = [await open(), await open()];
  await revoke(first, randomGrantId());
  const head = await admin().execute((redis) => redis.hgetall('{gh}:head'));
  const lost = Array.from({ length: 20 }, randomGrantId);
  for (const id of lost) await revoke(first, id);
  // As if a replica without the last entries had been promoted.
  await admin().execute((redis) =>
    redis
      .multi()
      .zrem('{gh}:rev', ...lost.map((id) => `g:${id}`))
      .xtrim('{gh}:revs', 'MAXLEN', 0)
      .hset('{gh}:head', 'last', head['last'] ?? '')
      .exec(),
  );
  await eventually(async () => expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(21));
  expect(lost.filter((id) => !isRefused(first, id) || !isRefused(second, id))).toEqual([]);
  const third = await open();
  expect(lost.filter((id) => !isRefused(third, id))).toEqual([]);
  const after = randomGrantId();
  await revoke(third, after);
  await eventually(() =>
    expect([first, second, third].map((store) => isRefused(store, after))).toEqual([true, true, true]),
  );
});

test('V09 tokens issued in the second in which an empty Redis is first used are rejected, later ones accepted', async () => {
  const before = Math.floor(now());
  const store = await open();
  const isRevoked = (issuedAt: number): boolean => store.revocations.isRevoked(bearer(randomGrantId(), issuedAt));
  expect([isRevoked(before), isRevoked(Math.floor(now()))]).toEqual([true, false]);
});

test('V09 a replica that was partitioned for longer than its lease does not make a flushed Redis trusted, whatever it sends first', async () => {
  await markAsUsed();
  const stale = await openThroughRelay();
  const other = await open();
  const grantId = randomGrantId();
  const issuedAt = Math.floor(now());
  relay().set('black hole');
  advance(100);
  await eventually(() => expect(other.revocations.isRevoked(bearer(randomGrantId()))).toBe(false));
  await other.close();
  await admin().execute((redis) => redis.flushall());
  relay().set('refuse');
  relay().set('pass');
  // The first command that arrives is a revocation of another grant or a heartbeat.
  await eventually(() => revoke(stale, randomGrantId()));
  const started = await open();
  expect(started.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true);
  await eventually(() => expect(stale.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true));
});

test('revocations that were deleted or weakened in Redis are restored and reported, and no others', async () => {
  await markAsUsed();
  const restored: number[] = [];
  const first = await open({ onRestored: (count) => void restored.push(count) });
  const ids = Array.from({ length: 300 }, randomGrantId);
  await Promise.all(ids.map((id) => revoke(first, id)));
  const keepUntil = Math.floor(now()) + 3_600.5;
  await first.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });
  await first.revocations.announce({ of: 'grant', grantId: 'odd', belowGeneration: 7, keepUntil });
  const expiringSoon = { of: 'client', clientId: 'c', notBefore: 9, keepUntil: now() + 30 } as const;
  await first.revocations.announce(expiringSoon);
  expect(await first.revocations.repair()).toBe(0);

  const deleted = ids.slice(0, 3).map((id) => `g:${id}`);
  await admin().execute((redis) => redis.zrem('{gh}:rev', ...deleted));
  await admin().execute((redis) => redis.hset('{gh}:lim', 'i:i', `1 ${keepUntil}`));
  // An entry that expires within a minute may have been swept, so it is not restored.
  await admin().execute((redis) => redis.hdel('{gh}:lim', 'c:c'));
  // The repair also runs periodically, and may have started before these changes.
  for (let passes = 0; passes < 2; passes += 1) await first.revocations.repair();
  expect(restored.reduce((sum, count) => sum + count, 0)).toBe(4);
  expect(await first.revocations.repair()).toBe(0);
  const second = await open();
  expect(ids.filter((id) => !isRefused(second, id))).toEqual([]);
  expect(second.revocations.isRevoked(bearer(randomGrantId(), 4_999))).toBe(true);
});

test('malformed entries prevent neither the storing nor the restoring of revocations', async () => {
  await markAsUsed();
  const restored: number[] = [];
  const first = await open({ onRestored: (count) => void restored.push(count) });
  const ids = Array.from({ length: 150 }, randomGrantId);
  await Promise.all(ids.map((id) => revoke(first, id)));
  const keepUntil = Math.floor(now()) + 3_600;
  for (const grantId of ids.slice(0, 2))
    await first.revocations.announce({ of: 'grant', grantId, belowGeneration: 7, keepUntil });
  await first.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });

  await admin().execute((redis) => redis.del('{gh}:rev'));
  const altered = { 'i:i': 'x', 'i:other': 'no numbers', stray: 'x y z' };
  await admin().execute((redis) => redis.hset('{gh}:lim', altered));
  await admin().execute((redis) => redis.hset('{gh}:replicas', { stray: 'x', other: '0-0 x y' }));
  for (let passes = 0; passes < 2; passes += 1) {
    await first.sweep();
    await first.revocations.repair();
  }
  expect(restored.reduce((sum, count) => sum + count, 0)).toBe(151);
  expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(150);
  expect(await admin().execute((redis) => redis.hget('{gh}:lim', 'i:i'))).toMatch(/^\d+ \d+ 5000$/);
  expect(await admin().execute((redis) => redis.hlen('{gh}:replicas'))).toBe(1);
  await first.revocations.announce({ of: 'identity', identity: 'other', notBefore: 6_000, keepUntil });
});

test('S15 while the clock of Redis is months ahead, and afterwards, revoked tokens stay revoked', async () => {
  await markAsUsed();
  let ahead = 0;
  const first = await open({ clock: () => now() + ahead, wallTime: now });
  const ids = Array.from({ length: 20 }, randomGrantId);
  await Promise.all(ids.map((id) => revoke(first, id)));
  const keepUntil = Math.floor(now()) + 3_600;
  await first.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });
  ahead = 90 * 86_400;
  // More than enough sweeps for a full pass over the view.
  for (let pieces = 0; pieces < 20; pieces += 1) await first.sweep();
  expect(ids.filter((id) => !isRefused(first, id))).toEqual([]);
  ahead = 0;
  for (const store of [first, await open()]) {
    expect(ids.filter((id) => !isRefused(store, id))).toEqual([]);
    expect(store.revocations.isRevoked(bearer(randomGrantId(), 4_999))).toBe(true);
  }
});

test('a tampered log position does not hide revocations from a replica', async () => {
  await markAsUsed();
  const faults: string[] = [];
  const first = await open();
  const second = await open({ onFault: ({ message }) => void faults.push(message) });
  const ahead = '99999999999999-0';
  const moveAhead = (): Promise<unknown> => admin().execute((redis) => redis.hset('{gh}:head', 'last', ahead));
  const getAppliedPositions = async (): Promise<readonly string[]> =>
    Object.values(await admin().execute((redis) => redis.hgetall('{gh}:replicas')));
  await moveAhead();
  // Both replicas look for the apparently missing entries and continue from there.
  await eventually(async () =>
    expect((await getAppliedPositions()).every((text) => text.startsWith(ahead))).toBe(true),
  );
  const moving = setInterval(() => void moveAhead(), 5);
  const id = randomGrantId();
  try {
    await revoke(first, id);
    await eventually(() => expect(isRefused(second, id)).toBe(true));
  } finally {
    clearInterval(moving);
  }
  expect(faults.join()).toContain('the revocation log is ahead of the server clock');
});

test('V09 a replica whose clock is behind waits at start until tokens that it issues are accepted', async () => {
  const wallTime = (): number => now() - 1;
  const store = await open({ wallTime });
  expect(store.revocations.isRevoked(bearer(randomGrantId(), Math.floor(wallTime())))).toBe(false);
});
