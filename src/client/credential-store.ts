import type { StoredGrant } from './grant.ts';

/** Stores the grant of a client. */
export interface CredentialStore {
  read(): Promise<StoredGrant | undefined>;
  /**
   * Runs `work` exclusively among all processes that share the store. `save` stores or deletes the grant durably before
   * it resolves, because a refresh token is valid once.
   */
  withLock<T>(work: (stored: StoredGrant | undefined, save: SaveGrant) => Promise<T>): Promise<T>;
}

type SaveGrant = (next: StoredGrant | undefined) => Promise<void>;

/** Stores the grant in memory, for one process. */
export function memoryCredentialStore(): CredentialStore {
  let stored: StoredGrant | undefined;
  const runExclusive = createMutex();
  return {
    read: async () => stored,
    withLock: (work) =>
      runExclusive(() =>
        work(stored, async (next) => {
          stored = next;
        }),
      ),
  };
}

/** Runs functions one after the other, also after a failure. */
export function createMutex(): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const run = last.then(work, work);
    last = run.catch(() => undefined);
    return run;
  };
}
