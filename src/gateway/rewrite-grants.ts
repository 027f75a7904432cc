import { setTimeout as pause } from 'node:timers/promises';
import type { Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { Store } from '../ports/store.ts';

const PAGE = 200;
const PAUSE_MS = 20;
const AGAIN_MS = 60_000;

export interface RewritingOptions {
  readonly store: Pick<Store, 'grants' | 'grantIndex'>;
  readonly log: Logger;
}

/**
 * Reads every grant once in the background. The store rewrites those without a MAC when they are read, so that idle grants
 * have one too before `store.unauthenticatedRecords` is set to `refuse`. Device requests and typed codes end by themselves
 * within minutes.
 */
export function rewriteGrants({ store, log }: RewritingOptions): { stop(): Promise<void> } {
  const stopping = new AbortController();
  const { signal } = stopping;

  const once = async (): Promise<number> => {
    let grants = 0;
    for (let after: string | undefined; !signal.aborted; ) {
      const page = await store.grantIndex.list({ limit: PAGE, ...(after !== undefined && { after }) });
      await Promise.all(page.grants.map(({ id }) => store.grants.read(id)));
      grants += page.grants.length;
      after = page.next;
      if (after === undefined) break;
      await pause(PAUSE_MS, undefined, { signal, ref: false });
    }
    return grants;
  };
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      try {
        const grants = await once();
        if (!signal.aborted)
          log.info('store_records_authenticated', {
            grants,
            note: 'every grant has a MAC now; once all replicas run this version, set store.unauthenticatedRecords to refuse',
          });
        return;
      } catch (error) {
        // The store is unreachable, or a key is missing here; both are reported elsewhere.
        if (!(error instanceof Fault)) throw error;
        await pause(AGAIN_MS, undefined, { signal, ref: false });
      }
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
