import { expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { startRedis } from '../../support/redis-server.ts';
import { CUT_OFF, revocationsOnRedis, soon } from './revocation-harness.ts';

const { server, way, admin, now, skip, open, throughWay, closeAll, bearer, end, refuses, aged } =
  revocationsOnRedis();

test('V09 an emptied Redis is filled again by the replicas, and no revoked token is accepted again', async () => {
  await aged();
  const [one, two] = [await open(), await open()];
  const ids = Array.from({ length: 500 }, randomGrantId);
  await Promise.all(ids.map((id) => end(one, id)));
  await admin().execute((redis) => redis.flushall());
  expect(ids.filter((id) => !refuses(two, id))).toEqual([]);
  await soon(async () => expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(500));
  const three = await open();
  expect(ids.filter((id) => !refuses(three, id))).toEqual([]);
  // What those replicas issued before still counts: they knew everything, and said so.
  await soon(() => expect(three.revocations.isRevoked(bearer(randomGrantId(), 1_000))).toBe(false));
});

test('V09 an empty Redis in place of the old is filled again after a reconnection', async () => {
  await aged();
  const one = await open();
  const id = randomGrantId();
  await end(one, id);
  await server().kill();
  const next = await startRedis([], { port: server().port });
  try {
    const two = await open();
    await soon(() => expect(refuses(two, id)).toBe(true));
    expect(refuses(one, id)).toBe(true);
    await soon(() =>
      expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(false),
    );
  } finally {
    await closeAll();
    await next.stop();
  }
});

test('V09 when no replica is left that knew them, tokens from before are refused', async () => {
  const one = await open();
  await end(one, randomGrantId());
  await one.close();
  await admin().execute((redis) => redis.flushall());
  const two = await open();
  expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(true);
  expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.ceil(now())))).toBe(false);
});

test('V10 a log trimmed past the reader is detected, and everything is loaded again', async () => {
  const [one, two] = [await open(), await throughWay()];
  way().set('black hole');
  skip(CUT_OFF);
  const ids = Array.from({ length: 50 }, randomGrantId);
  for (const id of ids) await end(one, id);
  await admin().execute((redis) => redis.xtrim('{gh}:revs', 'MAXLEN', 1));
  way().set('pass');
  await soon(() => expect(ids.filter((id) => !refuses(two, id))).toEqual([]));
});

test('V11 entries lost in a failover are put back by the replicas that knew them', async () => {
  const [one, two] = [await open(), await open()];
  await end(one, randomGrantId());
  const head = await admin().execute((redis) => redis.hgetall('{gh}:head'));
  const lost = Array.from({ length: 20 }, randomGrantId);
  for (const id of lost) await end(one, id);
  // As a replica that never got the last entries, and was promoted.
  await admin().execute((redis) =>
    redis
      .multi()
      .zrem('{gh}:rev', ...lost.map((id) => `g:${id}`))
      .xtrim('{gh}:revs', 'MAXLEN', 0)
      .hset('{gh}:head', 'last', head['last'] ?? '')
      .exec(),
  );
  await soon(async () => expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(21));
  expect(lost.filter((id) => !refuses(one, id) || !refuses(two, id))).toEqual([]);
  const three = await open();
  expect(lost.filter((id) => !refuses(three, id))).toEqual([]);
  const after = randomGrantId();
  await end(three, after);
  await soon(() =>
    expect([one, two, three].map((store) => refuses(store, after))).toEqual([true, true, true]),
  );
});

test('V09 tokens issued in the second in which an empty Redis is first used are rejected, later ones accepted', async () => {
  const before = Math.floor(now());
  const store = await open();
  const isRevoked = (issuedAt: number): boolean =>
    store.revocations.isRevoked(bearer(randomGrantId(), issuedAt));
  expect([isRevoked(before), isRevoked(Math.floor(now()))]).toEqual([true, false]);
});

test('V09 a replica that was cut off for longer than its lease does not vouch for an emptied Redis, whatever it sends first', async () => {
  await aged();
  const stale = await throughWay();
  const other = await open();
  const grantId = randomGrantId();
  const issuedAt = Math.floor(now());
  way().set('black hole');
  skip(100);
  await soon(() => expect(other.revocations.isRevoked(bearer(randomGrantId()))).toBe(false));
  await other.close();
  await admin().execute((redis) => redis.flushall());
  way().set('refuse');
  way().set('pass');
  // The first command that arrives is a revocation of another grant, or a beat.
  await soon(() => end(stale, randomGrantId()));
  const started = await open();
  expect(started.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true);
  await soon(() => expect(stale.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true));
});

test('revocations that were deleted or weakened in Redis are put back and reported, and none otherwise', async () => {
  await aged();
  const restored: number[] = [];
  const one = await open({ onRestored: (count) => void restored.push(count) });
  const ids = Array.from({ length: 300 }, randomGrantId);
  await Promise.all(ids.map((id) => end(one, id)));
  const keepUntil = Math.floor(now()) + 3_600.5;
  await one.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });
  await one.revocations.announce({ of: 'grant', grantId: 'odd', belowGeneration: 7, keepUntil });
  const soonOver = { of: 'client', clientId: 'c', notBefore: 9, keepUntil: now() + 30 } as const;
  await one.revocations.announce(soonOver);
  expect(await one.revocations.repair()).toBe(0);

  const gone = ids.slice(0, 3).map((id) => `g:${id}`);
  await admin().execute((redis) => redis.zrem('{gh}:rev', ...gone));
  await admin().execute((redis) => redis.hset('{gh}:lim', 'i:i', `1 ${keepUntil}`));
  // What ends within a minute may have been swept; it is left alone.
  await admin().execute((redis) => redis.hdel('{gh}:lim', 'c:c'));
  // It runs by itself as well, and may have begun before all of this was done.
  for (let passes = 0; passes < 2; passes += 1) await one.revocations.repair();
  expect(restored.reduce((sum, count) => sum + count, 0)).toBe(4);
  expect(await one.revocations.repair()).toBe(0);
  const two = await open();
  expect(ids.filter((id) => !refuses(two, id))).toEqual([]);
  expect(two.revocations.isRevoked(bearer(randomGrantId(), 4_999))).toBe(true);
});

test('entries of others that are no numbers keep revocations neither from being stored nor from being put back', async () => {
  await aged();
  const restored: number[] = [];
  const one = await open({ onRestored: (count) => void restored.push(count) });
  const ids = Array.from({ length: 150 }, randomGrantId);
  await Promise.all(ids.map((id) => end(one, id)));
  const keepUntil = Math.floor(now()) + 3_600;
  for (const grantId of ids.slice(0, 2))
    await one.revocations.announce({ of: 'grant', grantId, belowGeneration: 7, keepUntil });
  await one.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });

  await admin().execute((redis) => redis.del('{gh}:rev'));
  const altered = { 'i:i': 'x', 'i:other': 'no numbers', stray: 'x y z' };
  await admin().execute((redis) => redis.hset('{gh}:lim', altered));
  await admin().execute((redis) => redis.hset('{gh}:replicas', { stray: 'x', other: '0-0 x y' }));
  for (let passes = 0; passes < 2; passes += 1) {
    await one.sweep();
    await one.revocations.repair();
  }
  expect(restored.reduce((sum, count) => sum + count, 0)).toBe(151);
  expect(await admin().execute((redis) => redis.zcard('{gh}:rev'))).toBe(150);
  expect(await admin().execute((redis) => redis.hget('{gh}:lim', 'i:i'))).toMatch(/^5000 \d+$/);
  expect(await admin().execute((redis) => redis.hlen('{gh}:replicas'))).toBe(1);
  await one.revocations.announce({ of: 'identity', identity: 'other', notBefore: 6_000, keepUntil });
});

test('S15 while the clock of Redis is months ahead, and afterwards, revoked tokens stay revoked', async () => {
  await aged();
  let ahead = 0;
  const one = await open({ clock: () => now() + ahead, wallTime: now });
  const ids = Array.from({ length: 20 }, randomGrantId);
  await Promise.all(ids.map((id) => end(one, id)));
  const keepUntil = Math.floor(now()) + 3_600;
  await one.revocations.announce({ of: 'identity', identity: 'i', notBefore: 5_000, keepUntil });
  ahead = 90 * 86_400;
  // As many pieces as the view is swept in, and more.
  for (let pieces = 0; pieces < 20; pieces += 1) await one.sweep();
  expect(ids.filter((id) => !refuses(one, id))).toEqual([]);
  ahead = 0;
  for (const store of [one, await open()]) {
    expect(ids.filter((id) => !refuses(store, id))).toEqual([]);
    expect(store.revocations.isRevoked(bearer(randomGrantId(), 4_999))).toBe(true);
  }
});

test('a log position that others moved ahead hides no revocation from a replica', async () => {
  await aged();
  const faults: string[] = [];
  const one = await open();
  const two = await open({ onFault: ({ message }) => void faults.push(message) });
  const ahead = '99999999999999-0';
  const move = (): Promise<unknown> => admin().execute((redis) => redis.hset('{gh}:head', 'last', ahead));
  const applied = async (): Promise<readonly string[]> =>
    Object.values(await admin().execute((redis) => redis.hgetall('{gh}:replicas')));
  await move();
  // Both look for what seems to be missing, and go on from there.
  await soon(async () => expect((await applied()).every((text) => text.startsWith(ahead))).toBe(true));
  const moving = setInterval(() => void move(), 5);
  const id = randomGrantId();
  try {
    await end(one, id);
    await soon(() => expect(refuses(two, id)).toBe(true));
  } finally {
    clearInterval(moving);
  }
  expect(faults.join()).toContain('the revocation log is ahead of the server clock');
});

test('V09 a replica whose clock is behind waits until the tokens that it issues are accepted', async () => {
  const wallTime = (): number => now() - 1;
  const store = await open({ wallTime });
  expect(store.revocations.isRevoked(bearer(randomGrantId(), Math.floor(wallTime())))).toBe(false);
});
