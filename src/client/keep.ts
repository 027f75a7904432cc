import type { KeptGrant } from './grant.ts';

/** Where a client keeps its grant. */
export interface TokenKeep {
  read(): Promise<KeptGrant | undefined>;
  /**
   * One at a time, among all who share this place. `put` keeps the next grant (or forgets it) and has done so when it
   * resolves: a refresh token is spent by its use, so its successor must be safe before anybody goes on.
   */
  exclusively<T>(work: (kept: KeptGrant | undefined, put: Put) => Promise<T>): Promise<T>;
}

export type Put = (next: KeptGrant | undefined) => Promise<void>;

/** For one process: gone with it. */
export function memoryKeep(): TokenKeep {
  let kept: KeptGrant | undefined;
  const turns = inTurn();
  return {
    read: async () => kept,
    exclusively: (work) =>
      turns(() =>
        work(kept, async (next) => {
          kept = next;
        }),
      ),
  };
}

/** Runs one after the other, whatever becomes of each. */
export function inTurn(): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const run = last.then(work, work);
    last = run.catch(() => undefined);
    return run;
  };
}
