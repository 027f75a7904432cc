import type { Fault } from '../ports/fault.ts';

/** What an operator hears of a server that goes away and comes back. */
export interface PresenceOptions {
  /** Once when it goes, then a reminder at most once a minute; `seconds` since it went. */
  readonly onAway?: ((why: string, seconds: number) => void) | undefined;
  /** It is there again, and was away for so long. */
  readonly onBack?: ((seconds: number) => void) | undefined;
  /** What else went wrong, each kind at most once a minute. */
  readonly onFault?: ((fault: Fault) => void) | undefined;
  /** Milliseconds, of a clock that only goes on. */
  readonly now?: () => number;
}

export interface Presence {
  readonly failed: (fault: Fault) => void;
  /** The server answered a beat, and all it has announced is known here. */
  readonly answered: () => void;
}

const REMIND_MS = 60_000;
/** One connection may fail while another is answered: it is back when nothing has failed for so long. */
export const SETTLED_MS = 2_000;

export function presence({
  onAway,
  onBack,
  onFault,
  now = () => performance.now(),
}: PresenceOptions): Presence {
  const told = new Map<string, number>();
  let away: { readonly since: number; readonly failedAt: number; readonly answeredAt?: number } | undefined;
  const isDue = (kind: string, at: number): boolean => {
    if (at - (told.get(kind) ?? Number.NEGATIVE_INFINITY) < REMIND_MS) return false;
    told.set(kind, at);
    return true;
  };
  return {
    failed(fault) {
      const at = now();
      if (fault.code !== 'store_unavailable') {
        if (isDue(fault.code, at)) onFault?.(fault);
        return;
      }
      if (away === undefined) told.delete(fault.code);
      away = { since: away?.since ?? at, failedAt: at };
      if (isDue(fault.code, at)) onAway?.(fault.message.replace(/^Redis: /, ''), (at - away.since) / 1_000);
    },
    answered() {
      if (away === undefined) return;
      const at = now();
      const { since, failedAt, answeredAt = at } = away;
      away = { since, failedAt, answeredAt };
      if (at - failedAt < SETTLED_MS) return;
      away = undefined;
      onBack?.((answeredAt - since) / 1_000);
    },
  };
}
