import type { LookupFunction } from 'node:net';

/**
 * Resolves one name at a time. The runtime resolves two at a time for the whole process (half of libuv's threads), and a name server
 * can take many seconds: names that clients choose must not delay those of upstreams and stores.
 */
export function createLookupQueue(lookup: LookupFunction, maxWaiting: number): LookupFunction {
  const waiting: (() => void)[] = [];
  let isRunning = false;
  const startNext = (): void => {
    const start = waiting.shift();
    isRunning = start !== undefined;
    start?.();
  };
  return (hostname, options, callback) => {
    const start = (): void =>
      lookup(hostname, options, (...result) => {
        startNext();
        callback(...result);
      });
    if (waiting.length >= maxWaiting) {
      const error = Object.assign(new Error('too many names are being resolved'), { code: 'EAI_AGAIN' });
      queueMicrotask(() => callback(error, []));
      return;
    }
    waiting.push(start);
    if (!isRunning) startNext();
  };
}
