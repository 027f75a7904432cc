import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Grant } from '../../src/domain/grant.ts';
import { type EmbeddedStore, openEmbeddedStore } from '../../src/stores/embedded/store.ts';
import { spawnChild } from './child-process.ts';
import { testAuthenticator } from './record-keys.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';

export const NOW = 1_800_000_000;
export const LATER = NOW + 3600;

export const testGrant = (changes: Partial<Grant> = {}): Grant => ({
  id: 'grant-1',
  clientId: 'reporting-tool',
  identity: 'corp:{3f2504e0-4f89-11d3-9a0c-0305e82c3301}',
  grantType: 'certificate',
  scope: 'reports:read,write;archive',
  issuedAt: NOW,
  refreshUntil: NOW + 90 * 86_400,
  generation: 1,
  rotatedAt: NOW + 0.123,
  accessExpires: NOW + 3600,
  keys: { signing: 'sig-2027-01', sealing: 'seal-2027-01' },
  ...changes,
});

/** A clock that the test sets. */
export function testClock(start = NOW): { now: () => number; at: (time: number) => void } {
  let time = start;
  return {
    now: () => time,
    at: (moment) => {
      time = moment;
    },
  };
}

export type TestFolder = Pick<TempFolder, 'path' | 'remove'>;
export const storeTempFolder = (): TempFolder => tempFolder('store');

export const openOwnerStore = (path: string, now: () => number = () => NOW): Promise<EmbeddedStore> =>
  openEmbeddedStore({ path, mapSize: 2 ** 30, role: 'owner', now, authenticator: testAuthenticator() });

export interface StoreChild {
  /** The next line of output; undefined after exit. */
  nextLine(): Promise<string | undefined>;
  /** All further lines until exit. */
  remainingLines(): Promise<readonly string[]>;
  kill(): Promise<void>;
  send(text: string): void;
}

/** Runs one of the programs in `store-child.ts`. */
export function startStoreChild(...args: readonly string[]): StoreChild {
  const child = spawnChild([process.execPath, join(import.meta.dirname, 'store-child.ts'), ...args]);
  const lines = createInterface({ input: child.process.stdout })[Symbol.asyncIterator]();
  const nextLine = async (): Promise<string | undefined> => {
    const { done, value } = await lines.next();
    return done === true ? undefined : value;
  };
  return {
    nextLine,
    async remainingLines() {
      const all: string[] = [];
      for (let next = await nextLine(); next !== undefined; next = await nextLine()) all.push(next);
      return all;
    },
    kill: async () => void (await child.stop('SIGKILL')),
    send: (text) => child.write(`${text}\n`),
  };
}
