import type { House } from '../support/house.ts';

/**
 * Resolves when `count` no longer changes. Gateway, upstream and clients share this process: whatever could still be
 * moved between their sockets is moved while further requests are served.
 */
export async function settled(count: () => number, house: House, path: string): Promise<void> {
  let before: number;
  do {
    before = count();
    for (let requests = 0; requests < 20; requests += 1) await house.api(path);
  } while (count() === 0 || count() !== before);
}
