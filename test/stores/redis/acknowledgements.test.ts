import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { createAckWaiter } from '../../../src/stores/redis/revocations.ts';

const peer = (id: string, applied: string) => ({ id, applied, heartbeatAt: 0, lease: 1_000 });
type Status = Parameters<ReturnType<typeof createAckWaiter>>[0];

test('a revocation waits for a replica that registered after another revocation asked for the replicas', async () => {
  const replies: PromiseWithResolvers<Status>[] = [];
  const requested = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const waitForAcks = createAckWaiter('own', 'reachable', () => {
    const reply = Promise.withResolvers<Status>();
    requested[replies.length]?.resolve();
    replies.push(reply);
    return reply.promise;
  });
  const old = peer('old', '1-0');
  const first = waitForAcks({ lastId: '2-0', now: 0, peers: [old] });
  await requested[0]?.promise;
  // Announced while the first read is under way, which does not know the new replica.
  let isAcknowledged = false;
  const second = waitForAcks({ lastId: '3-0', now: 0, peers: [old, peer('new', '2-0')] }).then(() => {
    isAcknowledged = true;
  });
  // Timers fire in order: by then the second has asked, after its delay of 2 ms.
  await sleep(10);
  replies[0]?.resolve({ lastId: '3-0', now: 0, peers: [peer('old', '3-0')] });
  await first;
  await Promise.race([requested[1]?.promise, second]);
  expect(isAcknowledged).toBe(false);
  replies[1]?.resolve({ lastId: '3-0', now: 0, peers: [peer('old', '3-0'), peer('new', '3-0')] });
  await second;
  expect(replies).toHaveLength(2);
});
