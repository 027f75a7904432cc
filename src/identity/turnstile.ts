import { Fault } from '../ports/fault.ts';

export interface TurnstileTerms {
  readonly atOnce: number;
  readonly waiting: number;
  /** What is said to whoever finds no place to wait. */
  readonly full: string;
  /** Nobody waits longer than this, and what is said then. Left out: as long as those before take. */
  readonly limit?: { readonly ms: number; readonly late: string };
}

/** Lets so many through at once and so many wait; whoever comes beyond, or waits too long, is told to come back. */
export function turnstile({
  atOnce,
  waiting,
  full,
  limit,
}: TurnstileTerms): <T>(work: () => Promise<T>) => Promise<T> {
  const queue: (() => void)[] = [];
  let running = 0;
  const turn = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const enter = (): void => {
        clearTimeout(timer);
        resolve();
      };
      const timer =
        limit &&
        setTimeout(() => {
          queue.splice(queue.indexOf(enter), 1);
          reject(overloaded(limit.late));
        }, limit.ms);
      queue.push(enter);
    });
  return async (work) => {
    if (running < atOnce) running += 1;
    else if (queue.length < waiting) await turn();
    else throw overloaded(full);
    try {
      return await work();
    } finally {
      // A place is handed on, not given back, while somebody waits.
      const next = queue.shift();
      if (next === undefined) running -= 1;
      else next();
    }
  };
}

const overloaded = (why: string): Fault => new Fault('overloaded', why, { retryAfter: 2 });
