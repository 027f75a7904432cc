import { expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { eventually, expectFault, PARTITION_SECONDS, revocationsOnRedis } from './revocation-harness.ts';

const { relay, advance, open, openThroughRelay, revoke, isRefused } = revocationsOnRedis();

test('V05 while Redis is unreachable a revocation fails, and the token stays valid', async () => {
  const first = await openThroughRelay({ commandTimeout: 250 });
  const id = randomGrantId();
  relay().set('refuse');
  const fault = await expectFault(() => revoke(first, id));
  expect(fault.code).toBe('store_unavailable');
  expect(isRefused(first, id)).toBe(false);
});

test('S02 while Redis is unreachable tokens are verified from memory for `maxStaleness`, then none is accepted until it recovers', async () => {
  const first = await openThroughRelay({ commandTimeout: 250 });
  const id = randomGrantId();
  await revoke(first, id);
  relay().set('refuse');
  advance(50 - first.revocations.staleness());
  expect([isRefused(first, id), isRefused(first, randomGrantId())]).toEqual([true, false]);
  // The lease starts at the last confirmed heartbeat.
  advance(60.001 - first.revocations.staleness());
  expect((await expectFault(() => isRefused(first, id))).code).toBe('store_unavailable');
  expect((await expectFault(() => first.probe())).code).toBe('store_unavailable');
  relay().set('pass');
  await eventually(() => expect(isRefused(first, id)).toBe(true));
  await eventually(() => first.probe());
});

test('V07 a replica that was partitioned learns of revocations when it reconnects', async () => {
  const [first, second] = [await open(), await openThroughRelay()];
  relay().set('black hole');
  advance(PARTITION_SECONDS);
  const ids = Array.from({ length: 20 }, randomGrantId);
  for (const id of ids) await revoke(first, id);
  expect(ids.filter((id) => !isRefused(first, id))).toEqual([]);
  relay().set('pass');
  await eventually(() => expect(ids.filter((id) => !isRefused(second, id))).toEqual([]));
});

test('with `ack: everywhere` a revocation waits for the lease of a partitioned replica', async () => {
  const first = await open({ ack: 'everywhere' });
  const second = await openThroughRelay({ ack: 'everywhere' });
  const id = randomGrantId();
  await revoke(first, randomGrantId());
  relay().set('refuse');
  advance(PARTITION_SECONDS);
  const fault = await expectFault(() => revoke(first, id));
  expect(fault.message).toMatch(/cut off/);
  expect(fault.retryAfter).toBeGreaterThan(0);
  expect(fault.retryAfter).toBeLessThanOrEqual(60 - PARTITION_SECONDS);
  advance(fault.retryAfter ?? 0);
  await revoke(first, id);
  // The partitioned replica no longer accepts any token.
  expect((await expectFault(() => isRefused(second, id))).code).toBe('store_unavailable');
});
