import { existsSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import { createLogger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import { KEEP_FOREVER, KEYS_NOTE, MOVE_NOTE } from '../ports/store.ts';
import { type OpenedBackup, openBackup } from '../stores/embedded-backup.ts';
import type { MacState } from '../stores/embedded-backup-mac.ts';
import type { RedisStore } from '../stores/redis.ts';
import { type Imported, importRecords, importRevocations } from '../stores/redis-import.ts';
import { openKeyring } from '../tokens/keyring.ts';
import { recordMac } from '../tokens/record-mac.ts';
import { openKeys, readKeys } from './keys.ts';
import { openSharedAsItIs } from './open-store.ts';
import { StartError } from './start-error.ts';

export interface MoveOptions {
  /** With `store.type: redis`. */
  readonly settings: Settings;
  /** A backup of the embedded store. */
  readonly from: string;
  /** The MAC of the backup is not looked at; its records are verified one by one all the same. */
  readonly unauthenticated?: boolean;
  readonly onProgress?: (records: number) => void;
}

export interface Moved extends Imported {
  /** Records that failed authentication, in the backup or in Redis. */
  readonly refused: number;
  /** Of the backup. */
  readonly mac: MacState;
}

/** Nobody waits for a single answer, and many are under way. */
const COMMAND_MS = 10_000;

const now = (): number => Date.now() / 1_000;

/**
 * Puts a backup of the embedded store into Redis. Interrupted, it is begun again; done again, it changes nothing; and
 * it never sets back what is newer there. While it is under way no gatehouse starts on that Redis.
 */
export async function move(options: MoveOptions): Promise<Moved> {
  const { settings, from, unauthenticated = false, onProgress = () => {} } = options;
  const { file } = settings.keys;
  if (!existsSync(file))
    throw new StartError([
      `keys.file: ${file} is missing; put the key file of the embedded store there, and give every replica a copy`,
    ]);
  let refused = 0;
  const authenticator = recordMac({
    now,
    unauthenticated: settings.store.unauthenticatedRecords,
    onRefused: () => {
      refused += 1;
    },
  });
  authenticator.use(openKeyring(readKeys(settings)));
  // Records get a MAC for their new place, so whatever comes from the file, none that fails is taken along.
  const records: RecordAuthenticator = {
    ...authenticator,
    check(...record) {
      try {
        return authenticator.check(...record);
      } catch (error) {
        // Its key is lost, which is what the backup is read without its MAC for: no token of such a grant works.
        if (!unauthenticated || !(error instanceof Fault)) throw error;
        refused += 1;
        return 'refused';
      }
    },
  };
  const backup = await openBackup(from, { now, authenticator: records, unauthenticated });
  try {
    // A server that is away ends the command: there is somebody to hear it.
    const store = await openSharedAsItIs({
      settings,
      log: createLogger({ level: 'error', format: 'json', write: () => {} }),
      now,
      authenticator,
      commandTimeout: COMMAND_MS,
      onWaiting: async (fault) => {
        throw fault;
      },
    });
    try {
      return { ...(await moveInto(store, backup, settings, onProgress)), refused, mac: backup.mac };
    } finally {
      await store.close();
    }
  } finally {
    await backup.close();
  }
}

async function moveInto(
  store: RedisStore,
  backup: OpenedBackup,
  settings: Settings,
  onProgress: (records: number) => void,
): Promise<Imported> {
  const isNew = await receive(store, backup);
  await openKeys(settings, store, now());
  const revocations = await importRevocations(store, backup.records('revocations'));
  const records = await importRecords(store, backup.records('grants', 'devices', 'userCodes'), onProgress);
  // A new store refuses what was issued before it, for it cannot know what was revoked; of this one we know.
  if (isNew) await store.revocations.vouch();
  await note(store, MOVE_NOTE, { state: 'ended' });
  return { ...records, revocations };
}

/** Is it empty, or a move of this house that was interrupted? Throws when it is somebody else's. */
async function receive(store: RedisStore, backup: OpenedBackup): Promise<boolean> {
  const notes = new Map<string, Readonly<Record<string, string>>>();
  for await (const { id, record } of backup.records('notes'))
    notes.set(id, record as Readonly<Record<string, string>>);
  const ours = notes.get(KEYS_NOTE);
  if (ours === undefined) throw new StartError(['the backup does not say of which keys its grants are']);
  const theirs = await store.notes.read(KEYS_NOTE);
  const moving = await store.notes.read(MOVE_NOTE);
  if (theirs === undefined && !(await store.isEmpty()))
    throw new StartError(['store.url: this Redis holds grants, but does not say of which keys']);
  if (theirs !== undefined && !isSameHouse(ours, theirs.record))
    throw new StartError([
      'store.url: this Redis holds the grants of another gatehouse, made with other keys; give store.prefix another value, or another Redis',
    ]);
  const isNew = theirs === undefined || moving?.record['state'] === 'begun' || (await store.isEmpty());
  if (isNew) await note(store, MOVE_NOTE, { state: 'begun' });
  if (theirs === undefined) await note(store, KEYS_NOTE, ours);
  return isNew;
}

/** A key in common, and none that has another secret under the same name. */
function isSameHouse(
  ours: Readonly<Record<string, string>>,
  theirs: Readonly<Record<string, string>>,
): boolean {
  const fingerprint = (text: string | undefined): string | undefined => text?.split(' ', 1)[0];
  const common = Object.keys(ours).filter((kid) => theirs[kid] !== undefined);
  return common.length > 0 && common.every((kid) => fingerprint(ours[kid]) === fingerprint(theirs[kid]));
}

const MOST_RACES = 16;

export async function note(
  { notes }: Pick<RedisStore, 'notes'>,
  id: string,
  record: Readonly<Record<string, string>>,
): Promise<void> {
  for (let races = 0; races < MOST_RACES; races += 1) {
    if ((await notes.create(id, record, KEEP_FOREVER)) === 'created') return;
    const found = await notes.read(id);
    if (found === undefined) continue;
    if ((await notes.replace(id, found.version, record, KEEP_FOREVER)) === 'replaced') return;
  }
  throw new Fault(
    'overloaded',
    'the note about the move is being changed by somebody else; is another move running?',
  );
}
