import type { LookupFunction } from 'node:net';

type LookupCallback = Parameters<LookupFunction>[2];

interface Lookup {
  readonly key: string;
  readonly start: (callback: LookupCallback) => void;
  readonly callbacks: LookupCallback[];
  readonly requestedAt: number;
}

/**
 * Resolves one name at a time. The runtime resolves two at a time for the whole process (half of libuv's threads), and a name server
 * can take many seconds: names that clients choose must not delay those of upstreams and stores.
 *
 * Lookups of the same name share one result. `maxWaiting` names wait, each for `maxWaitMs` at most: after that, nothing waits for
 * the result any more.
 */
export function createLookupQueue(lookup: LookupFunction, maxWaiting: number, maxWaitMs: number): LookupFunction {
  /** The running lookup and those that wait, by name and options. */
  const lookups = new Map<string, Lookup>();
  let waiting: Lookup[] = [];
  let isRunning = false;

  const settle = ({ key, callbacks }: Lookup, result: Parameters<LookupCallback>): void => {
    lookups.delete(key);
    for (const callback of callbacks) queueMicrotask(() => callback(...result));
  };
  const dropExpired = (): void => {
    const now = performance.now();
    const expired = waiting.filter(({ requestedAt }) => now - requestedAt >= maxWaitMs);
    if (expired.length === 0) return;
    waiting = waiting.filter((one) => !expired.includes(one));
    for (const one of expired) settle(one, createFailure('the name was not resolved in time'));
  };
  const startNext = (): void => {
    dropExpired();
    const next = waiting.shift();
    isRunning = next !== undefined;
    if (next === undefined) return;
    const finish: LookupCallback = (...result) => {
      if (lookups.get(next.key) !== next) return;
      settle(next, result);
      startNext();
    };
    try {
      next.start(finish);
    } catch (error) {
      finish(error as NodeJS.ErrnoException, []);
    }
  };

  return (hostname, options, callback) => {
    const key = `${hostname} ${JSON.stringify(options)}`;
    const known = lookups.get(key);
    if (known !== undefined && known.callbacks.length < maxWaiting) return void known.callbacks.push(callback);
    if (waiting.length >= maxWaiting) dropExpired();
    if (known !== undefined || waiting.length >= maxWaiting) {
      queueMicrotask(() => callback(...createFailure('too many names are being resolved')));
      return;
    }
    const added: Lookup = {
      key,
      start: (finish) => lookup(hostname, options, finish),
      callbacks: [callback],
      requestedAt: performance.now(),
    };
    lookups.set(key, added);
    waiting.push(added);
    if (!isRunning) startNext();
  };
}

/** A temporary failure (getaddrinfo). */
const createFailure = (message: string): Parameters<LookupCallback> => [
  Object.assign(new Error(message), { code: 'EAI_AGAIN' }),
  [],
];
