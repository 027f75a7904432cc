import { Fault } from '../../ports/fault.ts';
import { createBatcher } from './batch.ts';
import type { RedisClient } from './client.ts';

const MAX_PENDING = 10_000;

/**
 * Runs scripts that write, and resolves when enough replicas have acknowledged the writes (WAIT). Scripts that arrive while
 * one batch waits form the next batch, so that they share one WAIT.
 *
 * An unconfirmed write has happened and may still be lost: it is a fault, and a retry finds its own version in place, or a
 * record that leads to the same decision.
 *
 * `client`: a connection of its own, since WAIT blocks the commands behind it. `timeout`: milliseconds to wait for replicas.
 */
export function createReplicatedClient(client: RedisClient, replicas: number, timeout: number): RedisClient {
  let pending = 0;
  let disconnects = 0;
  client.redis.on('close', () => {
    disconnects += 1;
  });

  const confirm = async (disconnectsBefore: number): Promise<void> => {
    const acknowledged = await client.execute((redis) => redis.wait(replicas, timeout));
    if (acknowledged < replicas)
      throw new Fault('store_unavailable', `Redis: ${acknowledged} of ${replicas} replicas hold the write`);
    // ioredis sends WAIT again after a reconnect, perhaps to another server.
    if (disconnects !== disconnectsBefore)
      throw new Fault('store_unavailable', 'Redis: the connection broke before the write was confirmed');
  };
  const runConfirmed = createBatcher(MAX_PENDING, async (writes: readonly (() => Promise<unknown>)[]) => {
    const disconnectsBefore = disconnects;
    const outcomes = await Promise.allSettled(writes.map((write) => write()));
    const [confirmation] = await Promise.allSettled([confirm(disconnectsBefore)]);
    return outcomes.map((outcome) =>
      outcome.status === 'fulfilled' && confirmation.status === 'rejected' ? confirmation : outcome,
    );
  });
  return {
    ...client,
    async runScript(script, keys, args) {
      if (pending >= MAX_PENDING) throw new Fault('overloaded', 'too many writes are waiting for confirmation');
      pending += 1;
      const outcome = await runConfirmed(() => client.runScript(script, keys, args));
      pending -= 1;
      if (outcome.status === 'rejected') throw outcome.reason;
      return outcome.value;
    },
  };
}
