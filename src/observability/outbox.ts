/**
 * Things on their way to somebody who may be slow or away: handed over in their order, several at once, tried again
 * with growing pauses, and bounded. Whoever puts something in never waits.
 */
export interface Outbox<T> {
  put(item: T): void;
  /** Those that wait, also those being handed over. */
  pending(): number;
  /** The last attempt failed, or there is no room left. */
  isBlocked(): boolean;
  /** Hands over what is left, within this time. Tells how many were not. */
  close(withinMs: number): Promise<number>;
}

export interface OutboxOptions<T> {
  /** Resolves when they are in other hands. Has an end of its own. */
  readonly deliver: (items: readonly T[]) => Promise<void>;
  readonly most: number;
  /** Most at once. */
  readonly batch: number;
  /** How long more may come before a delivery begins. */
  readonly lingerMs?: number;
  /** After so many attempts they are given up; left out, never. */
  readonly tries?: number;
  /** Those that are lost first when there is no room. */
  readonly isLesser?: (item: T) => boolean;
  readonly onLost?: (count: number) => void;
  readonly onFailure?: (error: unknown, failures: number) => void;
  readonly onRecovered?: (failures: number) => void;
  readonly pauseMs?: { readonly first: number; readonly longest: number };
}

interface Entry<T> {
  readonly at: number;
  readonly item: T;
}

export function createOutbox<T>(options: OutboxOptions<T>): Outbox<T> {
  const {
    deliver,
    most,
    batch,
    lingerMs = 0,
    tries = Number.POSITIVE_INFINITY,
    isLesser = () => false,
  } = options;
  const { first, longest } = options.pauseMs ?? { first: 500, longest: 30_000 };
  const greater = line<Entry<T>>();
  const lesser = line<Entry<T>>();
  let count = 0;
  let inHand: readonly T[] = [];
  let failures = 0;
  let running = false;
  let closing = false;
  let wake = (): void => {};
  let idle = Promise.resolve();

  const take = (): T[] => {
    const taken: T[] = [];
    while (taken.length < batch) {
      const a = greater.first();
      const b = lesser.first();
      const from = a === undefined || (b !== undefined && b.at < a.at) ? lesser : greater;
      const entry = from.take();
      if (entry === undefined) break;
      taken.push(entry.item);
    }
    return taken;
  };
  const pause = (ms: number): Promise<void> =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      // A process that wants to end does not wait for a pause.
      timer.unref();
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  /** Half of it is chance: many that lost the same receiver do not come back at the same moment. */
  const pauseAfter = (failed: number): number =>
    Math.min(longest, first * 2 ** Math.min(failed - 1, 30)) * (0.5 + Math.random() / 2);

  const attempt = async (): Promise<boolean> => {
    try {
      await deliver(inHand);
      inHand = [];
      const before = failures;
      failures = 0;
      if (before > 0) options.onRecovered?.(before);
      return true;
    } catch (error) {
      failures += 1;
      options.onFailure?.(error, failures);
      if (failures < tries) return false;
      options.onLost?.(inHand.length);
      inHand = [];
      failures = 0;
      return true;
    }
  };
  const run = async (): Promise<void> => {
    if (lingerMs > 0 && !closing) await pause(lingerMs);
    for (;;) {
      if (inHand.length === 0) inHand = take();
      if (inHand.length === 0) break;
      if (await attempt()) continue;
      if (closing) break;
      await pause(pauseAfter(failures));
    }
    running = false;
  };
  const start = (): void => {
    if (running) return;
    running = true;
    idle = run();
  };
  const pending = (): number => greater.size() + lesser.size() + inHand.length;

  return {
    put(item) {
      const entry = { at: count, item };
      count += 1;
      (isLesser(item) ? lesser : greater).add(entry);
      if (pending() > most && (lesser.take() ?? greater.take()) !== undefined) options.onLost?.(1);
      start();
    },
    pending,
    // Lesser ones make room for what comes: as many of them as strangers like to cause block nothing.
    isBlocked: () => failures > 0 || greater.size() + inHand.length >= most,
    async close(withinMs) {
      closing = true;
      wake();
      const late = Promise.withResolvers<void>();
      const timer = setTimeout(late.resolve, withinMs);
      await Promise.race([idle, late.promise]);
      clearTimeout(timer);
      return pending();
    },
  };
}

/** First in, first out, without moving the rest at each step. */
function line<E>() {
  let items: E[] = [];
  let head = 0;
  return {
    add: (item: E): void => void items.push(item),
    first: (): E | undefined => items[head],
    take(): E | undefined {
      const item = items[head];
      if (item === undefined) return undefined;
      head += 1;
      if (head > 1_000 && head * 2 > items.length) {
        items = items.slice(head);
        head = 0;
      }
      return item;
    },
    size: (): number => items.length - head,
  };
}
