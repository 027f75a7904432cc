import { Fault } from '../../ports/fault.ts';
import { toRedisFault } from './client.ts';

/** Between two loads of the snapshot; and loading takes a twentieth of the time at most. */
const MIN_INTERVAL_MS = 2_000;
const DURATION_FACTOR = 20;
/** Time synchronization adjusts clocks by less than this. */
const CLOCK_STEP_MS = 1_000;

type ReloadState =
  | { readonly kind: 'idle'; readonly notBefore: number }
  | { readonly kind: 'loading'; readonly done: Promise<void> };

/**
 * Log ids are times of the server. A position ahead of its clock means that the clock was set back, or that another program
 * wrote to the log; new entries then get lower ids and are not read. Until the clock has passed the position, and once
 * after that, the snapshot is loaded repeatedly.
 */
export function createSnapshotReloader(load: () => Promise<void>, onFault: (fault: Fault) => void) {
  let isNeeded = false;
  let state: ReloadState = { kind: 'idle', notBefore: Number.NEGATIVE_INFINITY };

  const reload = async (): Promise<void> => {
    const startedAt = performance.now();
    let notBefore = startedAt;
    try {
      await load();
      const endedAt = performance.now();
      notBefore = endedAt + Math.max(MIN_INTERVAL_MS, DURATION_FACTOR * (endedAt - startedAt));
    } catch (error) {
      isNeeded = true;
      onFault(toRedisFault(error));
    }
    state = { kind: 'idle', notBefore };
  };
  const observe = (position: string, serverTime: number): void => {
    isNeeded ||= isAhead(position, serverTime);
  };
  return {
    /** Notes whether the position is ahead of the server's clock (milliseconds). */
    observe,
    reloadIfNeeded(position: string, serverTime: number): void {
      observe(position, serverTime);
      if (!isNeeded || state.kind === 'loading' || performance.now() < state.notBefore) return;
      isNeeded = isAhead(position, serverTime);
      if (isAhead(position, serverTime + CLOCK_STEP_MS))
        onFault(
          new Fault(
            'store_corrupt',
            'Redis: the revocation log is ahead of the server clock; the clock was set back, or another program writes to the log',
          ),
        );
      state = { kind: 'loading', done: reload() };
    },
    settle: async (): Promise<void> => (state.kind === 'loading' ? state.done : undefined),
  };
}

const isAhead = (position: string, serverTime: number): boolean => Number(position.split('-', 1)[0]) > serverTime;
