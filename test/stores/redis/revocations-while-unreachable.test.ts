import { expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { CUT_OFF, faultOf, revocationsOnRedis, soon } from './revocation-harness.ts';

const { way, skip, open, throughWay, end, refuses } = revocationsOnRedis();

test('V05 while Redis is unreachable a revocation is a fault, and the token stays valid', async () => {
  const one = await throughWay({ commandTimeout: 250 });
  const id = randomGrantId();
  way().set('refuse');
  const fault = await faultOf(() => end(one, id));
  expect(fault.code).toBe('store_unavailable');
  expect(refuses(one, id)).toBe(false);
});

test('S02 while Redis is unreachable tokens are checked from memory for `maxStaleness`, then none is accepted, then it recovers', async () => {
  const one = await throughWay({ commandTimeout: 250 });
  const id = randomGrantId();
  await end(one, id);
  way().set('refuse');
  skip(50 - one.revocations.staleness());
  expect([refuses(one, id), refuses(one, randomGrantId())]).toEqual([true, false]);
  // The lease runs from the last beat that was confirmed.
  skip(60.001 - one.revocations.staleness());
  expect((await faultOf(() => refuses(one, id))).code).toBe('store_unavailable');
  expect((await faultOf(() => one.probe())).code).toBe('store_unavailable');
  way().set('pass');
  await soon(() => expect(refuses(one, id)).toBe(true));
  await soon(() => one.probe());
});

test('V07 a replica that was cut off learns what was revoked meanwhile when it is back', async () => {
  const [one, two] = [await open(), await throughWay()];
  way().set('black hole');
  skip(CUT_OFF);
  const ids = Array.from({ length: 20 }, randomGrantId);
  for (const id of ids) await end(one, id);
  expect(ids.filter((id) => !refuses(one, id))).toEqual([]);
  way().set('pass');
  await soon(() => expect(ids.filter((id) => !refuses(two, id))).toEqual([]));
});

test('with `ack: everywhere` a revocation waits for the lease of a replica that was cut off', async () => {
  const one = await open({ ack: 'everywhere' });
  const two = await throughWay({ ack: 'everywhere' });
  const id = randomGrantId();
  await end(one, randomGrantId());
  way().set('refuse');
  skip(CUT_OFF);
  const fault = await faultOf(() => end(one, id));
  expect(fault.message).toMatch(/cut off/);
  expect(fault.retryAfter).toBeGreaterThan(0);
  expect(fault.retryAfter).toBeLessThanOrEqual(60 - CUT_OFF);
  skip(fault.retryAfter ?? 0);
  await end(one, id);
  // The replica that was cut off accepts no token any more.
  expect((await faultOf(() => refuses(two, id))).code).toBe('store_unavailable');
});
