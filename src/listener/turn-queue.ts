import type { Socket } from 'node:net';
import { type ClientAccount, clientAccounts } from './client-accounts.ts';

/** Requests in one iteration of the event loop before the clock is read at all. */
const UNMEASURED = 32;
/** How long the requests of one iteration may take before others wait for their turn, and how long the turns may take. */
const ITERATION_MS = 3;
/** The same while all connections are of one network: there is no one to take turns with but those that connect next. */
const ALONE_ITERATION_MS = 20;
/** How long a turn takes, at least one request. */
const TURN_MS = 0.5;
/** A socket has a buffer of some kilobytes for each TLS record that it has read, however small that is. */
const RECORD_OVERHEAD = 8;
/** Turns in one iteration. Between two of them, Node runs what the requests of the first have scheduled. */
const TURNS = 4;

interface Task {
  /** False: there is nothing to do any more. */
  readonly run: () => boolean;
  /** Milliseconds of work that it causes later. */
  readonly laterMs: number;
}

/**
 * Bounds the work of one iteration of the event loop over all connections. What is beyond that waits, and networks take turns: a
 * network that sends more than the process can serve delays itself, and others only by one turn. Iterations must be short, because
 * Node accepts one connection in each.
 */
export class TurnQueue {
  /** Whether clients of several networks are connected. */
  readonly #isShared: () => boolean;
  #count = 0;
  /** When the turn is over; undefined until it is measured. */
  #endsAt: number | undefined = undefined;
  #turnsEndAt = 0;
  #turnsLeft = 0;
  readonly #waiting = new Map<ClientAccount, Task[]>();

  constructor(isShared: () => boolean) {
    this.#isShared = isShared;
  }

  /** A request is about to be served. True: the turn is over after it. */
  count(): boolean {
    this.#count += 1;
    if (this.#count < UNMEASURED) return false;
    if (this.#endsAt !== undefined) return performance.now() > this.#endsAt;
    this.#measure(1);
    return false;
  }

  /** Nothing more may be served in this iteration of the event loop, except by a task in its turn. */
  get isOver(): boolean {
    return this.#endsAt !== undefined && performance.now() > this.#endsAt;
  }

  /** Calls `run` when it is the turn of this network. It must not throw. `laterMs`: the work that it causes later. */
  defer(account: ClientAccount, run: () => boolean, laterMs = 0): void {
    const tasks = this.#waiting.get(account);
    if (tasks !== undefined) {
      tasks.push({ run, laterMs });
      return;
    }
    this.#waiting.set(account, [{ run, laterMs }]);
    if (this.#endsAt === undefined) this.#measure(TURNS);
  }

  #measure(turns: number): void {
    this.#endsAt = performance.now() + (this.#isShared() ? ITERATION_MS : ALONE_ITERATION_MS);
    this.#turnsEndAt = 0;
    this.#turnsLeft = turns;
    for (let turn = 0; turn < turns; turn += 1) setImmediate(this.#takeTurn);
  }

  readonly #takeTurn = (): void => {
    const now = performance.now();
    if (this.#turnsEndAt === 0) this.#turnsEndAt = now + ITERATION_MS;
    this.#turnsLeft -= 1;
    try {
      if (now < this.#turnsEndAt) this.#runNext(now + TURN_MS);
    } finally {
      this.#endTurn();
    }
  };

  #endTurn(): void {
    if (this.#turnsLeft > 0) return;
    this.#count = 0;
    this.#endsAt = undefined;
    if (this.#waiting.size > 0) this.#measure(TURNS);
  }

  /** The turn of the network that has waited longest. */
  #runNext(endsAt: number): void {
    this.#endsAt = endsAt;
    for (const [account, tasks] of this.#waiting) {
      // It comes last in the next round.
      this.#waiting.delete(account);
      let done = 0;
      let isDue = true;
      // Many have nothing to do any more, because their connections are closed.
      try {
        while (isDue && done < tasks.length && performance.now() < endsAt) {
          const { run, laterMs } = tasks[done] as Task;
          done += 1;
          if (!run()) continue;
          isDue = false;
          this.#turnsEndAt -= laterMs;
        }
      } finally {
        this.#requeue(account, tasks.slice(done));
      }
      return;
    }
  }

  #requeue(account: ClientAccount, rest: readonly Task[]): void {
    if (rest.length === 0) return;
    // A task may have added another one.
    this.#waiting.set(account, [...rest, ...(this.#waiting.get(account) ?? [])]);
  }
}

/** What a connection holds that waits for its turn, with this many bytes of which the socket has given some. */
export const getWaitingBytes = (rest: number, { readableLength }: Socket): number =>
  rest + readableLength * RECORD_OVERHEAD;

/** The queue of this process. */
export const turnQueue = new TurnQueue(() => clientAccounts.networks > 1);
