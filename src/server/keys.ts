import { existsSync } from 'node:fs';
import { getLongestGrantLifetime } from '../config/lifetimes.ts';
import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/grant.ts';
import { StartError } from '../lib/start-error.ts';
import { Fault } from '../ports/fault.ts';
import { KEEP_FOREVER, KEYS_NOTE, type Store } from '../ports/store.ts';
import { type Keyring, openKeyring, openSealingKeys } from '../tokens/keyring.ts';
import {
  createKeyringFile,
  findEarlyRetirements,
  type KeyringFile,
  readKeyringFile,
  writeKeyringFile,
} from '../tokens/keyring-file.ts';
import { createRecordAuthenticator, type KeyedRecordAuthenticator } from '../tokens/record-mac.ts';

/** Creates a missing key file, but only for an empty store: existing grants need the keys they were sealed with. */
export async function ensureKeyFile(settings: Settings, store: Store): Promise<void> {
  const { file, algorithm } = settings.keys;
  if (existsSync(file)) return;
  if (settings.store.type === 'redis')
    throw new StartError([
      `keys.file: ${file} is missing; replicas that share a Redis need the same key file: create it once with \`gatehouse keys new\` and copy it to every replica`,
    ]);
  if (!(await store.isEmpty()))
    throw new StartError([
      `keys.file: ${file} is missing, but the store holds grants made with other keys; put the key file back, or start with an empty store`,
    ]);
  writeKeyringFile(file, createKeyringFile(algorithm), { replace: false });
}

/** The current key file. Read it once per build: it may change at any time. */
export function readKeyFile(
  { keys: { file } }: Settings,
  /** What to do when the file is missing. */
  hint = 'put the key file of this store back',
): KeyringFile {
  if (!existsSync(file)) throw new StartError([`keys.file: ${file} is missing; ${hint}`]);
  try {
    return readKeyringFile(file);
  } catch (error) {
    throw toStartError(file, error);
  }
}

const toStartError = (file: string, error: unknown): StartError =>
  error instanceof Fault
    ? new StartError([`keys.file: ${error.message}`], { cause: error })
    : new StartError([`keys.file: ${file} cannot be used (${(error as Error).name})`]);

/** Verifies records with the keys of the key file; for commands that open a store. */
export function openKeyedAuthenticator(
  settings: Settings,
  hint: string,
  onRefused?: () => void,
): KeyedRecordAuthenticator {
  const authenticator = createRecordAuthenticator({
    now: () => Date.now() / 1_000,
    ...(onRefused && { onRefused }),
  });
  authenticator.setKeyring(openSealingKeys(readKeyFile(settings, hint)));
  return authenticator;
}

export async function openFileKeyring(settings: Settings, file: KeyringFile, now: Epoch): Promise<Keyring> {
  try {
    const keyring = await openKeyring(file);
    keyring.current(now);
    return keyring;
  } catch (error) {
    throw toStartError(settings.keys.file, error);
  }
}

/** Opens the keyring and records it in the store. */
export async function openCheckedKeyring(settings: Settings, store: Store, now: Epoch): Promise<Keyring> {
  const keyring = await openFileKeyring(settings, readKeyFile(settings), now);
  await recordKeys(settings, store, keyring, now);
  return keyring;
}

export const listKeyWarnings = (settings: Settings, file: KeyringFile): string[] =>
  findEarlyRetirements(file, getLongestGrantLifetime(settings)).map((warning) => `${settings.keys.file}: ${warning}`);

/**
 * Compares the keys with the fingerprints in the store, and records new ones there. With other keys than those of the
 * stored grants, every refresh would fail as if the client were at fault.
 */
export async function recordKeys(settings: Settings, store: Store, keyring: Keyring, now: Epoch): Promise<void> {
  const current = Object.fromEntries(
    [...keyring.fingerprints].map(([kid, { fingerprint, retireAt }]) => [
      kid,
      `${fingerprint} ${Number.isFinite(retireAt) ? retireAt : 'never'}`,
    ]),
  );
  for (let attempts = 0; attempts < 16; attempts += 1) {
    const { stored, problems } = await compareWithStore(settings, store, keyring, now);
    if (problems.length > 0) throw new StartError([...problems]);
    if (stored === undefined) {
      if ((await store.notes.create(KEYS_NOTE, current, KEEP_FOREVER)) === 'created') return;
      continue;
    }
    if (JSON.stringify(stored.record) === JSON.stringify(current)) return;
    if ((await store.notes.replace(KEYS_NOTE, stored.version, current, KEEP_FOREVER)) === 'replaced') return;
  }
  throw new Fault('overloaded', 'the key fingerprints in the store are being changed concurrently');
}

/** `problems`: why these are not the keys of the store. `stored`: the fingerprints in it. */
export async function compareWithStore(
  { keys: { file } }: Settings,
  store: Pick<Store, 'notes' | 'isEmpty'>,
  keyring: Keyring,
  now: Epoch,
) {
  const stored = await store.notes.read(KEYS_NOTE);
  const mismatches = Object.entries(stored?.record ?? {}).flatMap(([kid, entry]) =>
    findMismatch(kid, entry, keyring, now),
  );
  const isIncomplete = stored === undefined && !(await store.isEmpty());
  return {
    stored,
    problems: isIncomplete
      ? ['keys.file: the store holds grants, but no key fingerprints; restore it from a backup']
      : mismatches.map(
          (mismatch) => `keys.file: ${file} ${mismatch}; these are not the keys that this store was written with`,
        ),
  };
}

function findMismatch(kid: string, entry: string, keyring: Keyring, now: Epoch): string[] {
  const [fingerprint, retireAt] = entry.split(' ');
  const key = keyring.fingerprints.get(kid);
  if (key === undefined) return retireAt !== 'never' && Number(retireAt) <= now ? [] : [`lacks the key ${kid}`];
  return key.fingerprint === fingerprint ? [] : [`has a different key with the id ${kid}`];
}
