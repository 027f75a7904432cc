import type { ClientAccount } from './client-accounts.ts';

/** Requests in one iteration of the event loop before the clock is read at all. */
const UNMEASURED = 32;
/** How long the requests of one iteration may take before the others wait for their turn. */
const ITERATION_MS = 5;
/** How long a turn takes, at least one request. */
const TURN_MS = 1;

type Task = () => void;

/**
 * Bounds the work of one iteration of the event loop over all connections. What is beyond that waits, and networks take turns: a
 * network that sends more than the process can serve delays itself, and others only by one turn.
 */
export class TurnQueue {
  #count = 0;
  /** Undefined: not measured yet. */
  #endsAt: number | undefined = undefined;
  readonly #waiting = new Map<ClientAccount, Task[]>();

  /** A request is about to be served. True: the turn is over after it. */
  count(): boolean {
    this.#count += 1;
    if (this.#count < UNMEASURED) return false;
    if (this.#endsAt !== undefined) return performance.now() > this.#endsAt;
    this.#measure();
    return false;
  }

  #measure(): void {
    this.#endsAt = performance.now() + ITERATION_MS;
    setImmediate(this.#endIteration);
  }

  /** Nothing more may be served in this iteration of the event loop, except by a task in its turn. */
  get isOver(): boolean {
    return this.#endsAt !== undefined && performance.now() > this.#endsAt;
  }

  /** Calls the task when it is the turn of this network. It must not throw. */
  defer(account: ClientAccount, task: Task): void {
    const tasks = this.#waiting.get(account);
    if (tasks !== undefined) {
      tasks.push(task);
      return;
    }
    this.#waiting.set(account, [task]);
    if (this.#endsAt === undefined) this.#measure();
  }

  readonly #endIteration = (): void => {
    const endsAt = performance.now() + ITERATION_MS;
    while (this.#waiting.size > 0) {
      const now = performance.now();
      if (now > endsAt) break;
      this.#endsAt = now + TURN_MS;
      this.#runNext();
    }
    this.#count = 0;
    this.#endsAt = undefined;
    if (this.#waiting.size > 0) this.#measure();
  };

  #runNext(): void {
    for (const [account, tasks] of this.#waiting) {
      // It comes last in the next round.
      this.#waiting.delete(account);
      const task = tasks.shift();
      if (tasks.length > 0) this.#waiting.set(account, tasks);
      const startedAt = performance.now();
      task?.();
      account.addTime(performance.now() - startedAt);
      return;
    }
  }
}

/** Of this process. */
export const turnQueue = new TurnQueue();
