import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Grant } from '../../src/domain/grant.ts';
import { type EmbeddedStore, openEmbedded } from '../../src/stores/embedded.ts';
import { spawnChild } from './child-process.ts';
import { anAuthenticator } from './record-keys.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';

export const NOW = 1_800_000_000;
export const LATER = NOW + 3600;

export const aGrant = (changes: Partial<Grant> = {}): Grant => ({
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

/** A clock that stands until it is moved. */
export function aClock(start = NOW): { now: () => number; at: (time: number) => void } {
  let time = start;
  return {
    now: () => time,
    at: (moment) => {
      time = moment;
    },
  };
}

export type TestFolder = Pick<TempFolder, 'path' | 'remove'>;
export const aFolder = (): TempFolder => tempFolder('store');

export const openOwner = (path: string, now: () => number = () => NOW): Promise<EmbeddedStore> =>
  openEmbedded({ path, mapSize: 2 ** 30, role: 'owner', now, authenticator: anAuthenticator() });

export interface Child {
  /** The next line it prints; undefined when it has ended. */
  line(): Promise<string | undefined>;
  /** Everything it still prints. */
  rest(): Promise<readonly string[]>;
  kill(): Promise<void>;
  say(text: string): void;
}

/** Runs one of the small programs of `store-child.ts` in its own process. */
export function storeChild(...words: readonly string[]): Child {
  const child = spawnChild([process.execPath, join(import.meta.dirname, 'store-child.ts'), ...words]);
  const lines = createInterface({ input: child.process.stdout })[Symbol.asyncIterator]();
  const line = async (): Promise<string | undefined> => {
    const { done, value } = await lines.next();
    return done === true ? undefined : value;
  };
  return {
    line,
    async rest() {
      const all: string[] = [];
      for (let next = await line(); next !== undefined; next = await line()) all.push(next);
      return all;
    },
    kill: async () => void (await child.stop('SIGKILL')),
    say: (text) => child.write(`${text}\n`),
  };
}
