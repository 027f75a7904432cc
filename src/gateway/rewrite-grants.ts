import { setTimeout as pause } from 'node:timers/promises';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { Store } from '../ports/store.ts';

const PAGE = 200;
const PAUSE_MS = 20;
const AGAIN_MS = 60_000;

export interface RewritingOptions {
  readonly store: Pick<Store, 'grants' | 'grantIndex'>;
  readonly log: Logger;
  /** How many grants without a MAC this process has accepted up to now. */
  readonly accepted: () => number;
  readonly againMs?: number;
}

/**
 * Reads every grant once in the background. The store rewrites those without a MAC when they are read, so that idle grants
 * have one too before `store.unauthenticatedRecords` is set to `refuse`. Device requests and typed codes end by themselves
 * within minutes.
 */
export function rewriteGrants({ store, log, accepted, againMs = AGAIN_MS }: RewritingOptions): {
  stop(): Promise<void>;
} {
  const stopping = new AbortController();
  const { signal } = stopping;

  const once = async (): Promise<number> => {
    let grants = 0;
    for (let after: string | undefined; !signal.aborted; ) {
      const page = await store.grantIndex.list({ limit: PAGE, ...(after !== undefined && { after }) });
      // Until they are refused, records without a MAC may be anything.
      const ids = page.grants.map(({ id }) => id).filter((id) => typeof id === 'string');
      await Promise.all(ids.map((id) => store.grants.read(id)));
      grants += page.grants.length;
      after = page.next;
      if (after === undefined) break;
      await pause(PAUSE_MS, undefined, { signal, ref: false });
    }
    return grants;
  };
  /** A store that cannot write now gives the grant as it is: only a pass that met none without a MAC shows that all have one. */
  const isDone = async (): Promise<boolean> => {
    const before = accepted();
    const grants = await once();
    if (accepted() !== before) return false;
    if (!signal.aborted)
      log.info('store_records_authenticated', {
        grants,
        note: 'every grant has a MAC now; once all replicas run this version, set store.unauthenticatedRecords to refuse',
      });
    return true;
  };
  const run = async (): Promise<void> => {
    for (let passes = 0; !signal.aborted; passes += 1) {
      try {
        if (await isDone()) return;
        // The next pass begins at once: as a rule it finds that this one has rewritten all.
        if (passes === 0) continue;
      } catch (error) {
        // That the store is unreachable is reported elsewhere.
        const isAway = error instanceof Fault && error.code === 'store_unavailable';
        if (!isAway && !signal.aborted) log.error('store_fault', errorFields(error));
      }
      await pause(againMs, undefined, { signal, ref: false });
    }
  };
  const running = run().catch((error: unknown) => {
    if (!signal.aborted) throw error;
  });
  return {
    async stop() {
      stopping.abort();
      await running;
    },
  };
}
