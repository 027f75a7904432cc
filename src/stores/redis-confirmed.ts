import { Fault } from '../ports/fault.ts';
import type { RedisClient } from './redis-client.ts';

export interface ConfirmOptions {
  /** A connection for nothing else: WAIT holds up whatever comes behind it. */
  readonly client: RedisClient;
  /** How many replicas must hold a write before it is answered. */
  readonly replicas: number;
  /** Milliseconds they are given. */
  readonly timeout: number;
}

interface Waiting {
  readonly work: () => Promise<unknown>;
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: unknown) => void;
}

const MAX_WAITING = 10_000;

/**
 * Runs scripts that write, and answers when enough replicas hold what they wrote (WAIT). Those that come while one
 * batch waits are the next batch, so waiting costs one round trip for all of them.
 *
 * A write that was not confirmed has happened all the same and may yet be lost: it is a fault, and whoever tries
 * again finds its own version in place, or a record that judges the same.
 */
export function confirmedClient({ client, replicas, timeout }: ConfirmOptions): RedisClient {
  let queue: Waiting[] = [];
  let running = false;
  // A WAIT that was sent again by the next connection is about the server it leads to, which after a failover is another.
  let broken = 0;
  client.redis.on('close', () => {
    broken += 1;
  });

  const batch = async (these: readonly Waiting[]): Promise<void> => {
    const brokenBefore = broken;
    const outcomes = await Promise.allSettled(these.map(({ work }) => work()));
    let unconfirmed: unknown;
    try {
      const holders = await client.ask((redis) => redis.wait(replicas, timeout));
      if (holders < replicas)
        unconfirmed = new Fault(
          'store_unavailable',
          `Redis: ${holders} of ${replicas} replicas hold the write`,
        );
      else if (broken !== brokenBefore)
        unconfirmed = new Fault(
          'store_unavailable',
          'Redis: the connection broke before the write was confirmed',
        );
    } catch (error) {
      unconfirmed = error;
    }
    for (const [index, outcome] of outcomes.entries()) {
      const one = these[index];
      if (outcome.status === 'rejected') one?.reject(outcome.reason);
      else if (unconfirmed !== undefined) one?.reject(unconfirmed);
      else one?.resolve(outcome.value);
    }
  };
  const drain = async (): Promise<void> => {
    running = true;
    while (queue.length > 0) {
      const these = queue;
      queue = [];
      await batch(these);
    }
    running = false;
  };
  return {
    ...client,
    run: (script, keys, args) =>
      new Promise((resolve, reject) => {
        if (queue.length >= MAX_WAITING)
          return reject(new Fault('overloaded', 'too many writes wait to be confirmed'));
        queue.push({ work: () => client.run(script, keys, args), resolve, reject });
        if (!running) void drain();
      }),
  };
}
