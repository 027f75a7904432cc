import type { TestGateway } from '../support/test-gateway.ts';

/**
 * Resolves when `count` no longer changes. Gateway, upstream and clients share this process, so bytes still in transit
 * between their sockets are transferred while further requests are served.
 */
export async function waitUntilSettled(count: () => number, gateway: TestGateway, path: string): Promise<void> {
  let before: number;
  do {
    before = count();
    for (let requests = 0; requests < 20; requests += 1) await gateway.api(path);
  } while (count() === 0 || count() !== before);
}
