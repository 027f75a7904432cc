import { setTimeout as pause } from 'node:timers/promises';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { Store } from '../ports/store.ts';

const PAGE_SIZE = 200;
const PAUSE_MS = 20;
const RETRY_MS = 60_000;

export interface RewriteGrantsOptions {
  readonly store: Pick<Store, 'grants' | 'grantIndex'>;
  readonly log: Logger;
  /** Grants without a MAC that this process has accepted so far. */
  readonly countAccepted: () => number;
  readonly retryMs?: number;
}

/**
 * Reads every grant once in the background. The store adds a missing MAC on read, so that idle grants have one before
 * `store.unauthenticatedRecords` is set to `refuse`. Device requests and user codes expire within minutes.
 */
export function rewriteGrants({ store, log, countAccepted, retryMs = RETRY_MS }: RewriteGrantsOptions): {
  stop(): Promise<void>;
} {
  const controller = new AbortController();
  const { signal } = controller;

  const rewriteAll = async (): Promise<number> => {
    let grants = 0;
    for (let after: string | undefined; !signal.aborted; ) {
      const page = await store.grantIndex.list({ limit: PAGE_SIZE, ...(after !== undefined && { after }) });
      // Records without a MAC may have any content.
      const ids = page.grants.map(({ id }) => id).filter((id) => typeof id === 'string');
      await Promise.all(ids.map((id) => store.grants.read(id)));
      grants += page.grants.length;
      after = page.next;
      if (after === undefined) break;
      await pause(PAUSE_MS, undefined, { signal, ref: false });
    }
    return grants;
  };
  /** A write may fail silently: only a pass without unauthenticated grants proves that all have a MAC. */
  const completePass = async (): Promise<boolean> => {
    const before = countAccepted();
    const grants = await rewriteAll();
    if (countAccepted() !== before) return false;
    if (!signal.aborted)
      log.info('store_records_authenticated', {
        grants,
        note: 'every grant has a MAC now; once all replicas run this version, remove store.unauthenticatedRecords',
      });
    return true;
  };
  const run = async (): Promise<void> => {
    for (let passes = 0; !signal.aborted; passes += 1) {
      try {
        if (await completePass()) return;
        // The second pass, which normally confirms the first, starts at once.
        if (passes === 0) continue;
      } catch (error) {
        // An unreachable store is reported elsewhere.
        const isUnreachable = error instanceof Fault && error.code === 'store_unavailable';
        if (!isUnreachable && !signal.aborted) log.error('store_error', errorFields(error));
      }
      await pause(retryMs, undefined, { signal, ref: false });
    }
  };
  const running = run().catch((error: unknown) => {
    if (!signal.aborted) throw error;
  });
  return {
    async stop() {
      controller.abort();
      await running;
    },
  };
}
