import { existsSync } from 'node:fs';
import { longestGrant } from '../config/lifetimes.ts';
import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { KEEP_FOREVER, KEYS_NOTE, type Store } from '../ports/store.ts';
import { type Keyring, openKeyring } from '../tokens/keyring.ts';
import {
  type KeyringFile,
  newKeyring,
  readKeyringFile,
  retireTooSoon,
  writeKeyringFile,
} from '../tokens/keyring-file.ts';
import { StartError } from './start-error.ts';

/** Makes the key file when it is missing and the store is empty: a fresh installation. Never beside grants that older keys sealed. */
export async function ensureKeyFile(settings: Settings, store: Store): Promise<void> {
  const { file, algorithm } = settings.keys;
  if (existsSync(file)) return;
  if (settings.store.type === 'redis')
    throw new StartError([
      `keys.file: ${file} is missing; replicas that share a Redis share one key file: make it once by \`gatehouse keys new\` and give every replica a copy`,
    ]);
  if (!(await store.isEmpty()))
    throw new StartError([
      `keys.file: ${file} is missing, but the store holds grants made with other keys; put the key file back, or start with an empty store`,
    ]);
  writeKeyringFile(file, newKeyring(algorithm), { replace: false });
}

/** The key file as it is now. Read once by whoever uses it for several things: it may change at any time. */
export function readKeys(
  { keys: { file } }: Settings,
  /** What to do where it is missing: new keys do not fit a store or a backup that exists. */
  whenMissing = 'put the key file of this store back',
): KeyringFile {
  if (!existsSync(file)) throw new StartError([`keys.file: ${file} is missing; ${whenMissing}`]);
  try {
    return readKeyringFile(file);
  } catch (error) {
    throw unusable(file, error);
  }
}

const unusable = (file: string, error: unknown): StartError =>
  error instanceof Fault
    ? new StartError([`keys.file: ${error.message}`], { cause: error })
    : new StartError([`keys.file: ${file} cannot be used (${(error as Error).name})`]);

/**
 * Opens the keyring and holds it against the fingerprints in the store. Other keys beside grants would refuse
 * every client its refresh, and blame the client for it; so they are refused here, before anybody asks.
 */
export async function openKeys(
  settings: Settings,
  store: Store,
  now: Epoch,
  file = readKeys(settings),
): Promise<Keyring> {
  let keyring: Keyring;
  try {
    keyring = openKeyring(file);
    keyring.current(now);
  } catch (error) {
    throw unusable(settings.keys.file, error);
  }
  await compareWithStore(settings, store, keyring, now);
  return keyring;
}

/** What an operator should know about keys that work today. */
export const keyWarnings = (settings: Settings, file: KeyringFile): string[] =>
  retireTooSoon(file, longestGrant(settings)).map((warning) => `${settings.keys.file}: ${warning}`);

const write = (fingerprint: string, retireAt: Epoch): string =>
  `${fingerprint} ${Number.isFinite(retireAt) ? retireAt : 'never'}`;

async function compareWithStore(
  settings: Settings,
  store: Store,
  keyring: Keyring,
  now: Epoch,
): Promise<void> {
  const current = Object.fromEntries(
    [...keyring.fingerprints].map(([kid, { fingerprint, retireAt }]) => [kid, write(fingerprint, retireAt)]),
  );
  for (let tries = 0; tries < 16; tries += 1) {
    const found = await store.notes.read(KEYS_NOTE);
    if (found === undefined) {
      if (!(await store.isEmpty()))
        throw new StartError([
          `keys.file: the store holds grants, but does not say of which keys; restore it from a backup`,
        ]);
      if ((await store.notes.create(KEYS_NOTE, current, KEEP_FOREVER)) === 'created') return;
      continue;
    }
    const problems = Object.entries(found.record).flatMap(([kid, note]) => differs(kid, note, keyring, now));
    if (problems.length > 0)
      throw new StartError(
        problems.map(
          (problem) =>
            `keys.file: ${settings.keys.file} ${problem}; these are not the keys this store was written under`,
        ),
      );
    if (JSON.stringify(found.record) === JSON.stringify(current)) return;
    if ((await store.notes.replace(KEYS_NOTE, found.version, current, KEEP_FOREVER)) === 'replaced') return;
  }
  throw new Fault('overloaded', 'the key fingerprints in the store are being changed by somebody else');
}

function differs(kid: string, note: string, keyring: Keyring, now: Epoch): string[] {
  const [fingerprint, retireAt] = note.split(' ');
  const key = keyring.fingerprints.get(kid);
  if (key === undefined)
    return retireAt !== 'never' && Number(retireAt) <= now ? [] : [`lacks the key ${kid}`];
  return key.fingerprint === fingerprint ? [] : [`has another key under the name ${kid}`];
}
