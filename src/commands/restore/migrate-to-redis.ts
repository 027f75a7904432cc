import type { Settings } from '../../config/schema.ts';
import { StartError } from '../../lib/start-error.ts';
import { createLogger } from '../../observability/logger.ts';
import { Fault } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';
import { KEEP_FOREVER, KEYS_NOTE, MIGRATION_NOTE } from '../../ports/store.ts';
import { openCheckedKeyring, openKeyedAuthenticator } from '../../server/keys.ts';
import { openRedisUnchecked } from '../../server/open-store.ts';
import { type OpenedBackup, openBackup } from '../../stores/embedded/backup.ts';
import { type ImportResult, importRecords, importRevocations } from '../../stores/redis/import.ts';
import type { RedisStore } from '../../stores/redis/store.ts';

interface MigrationOptions {
  /** With `store.type: redis`. */
  readonly settings: Settings;
  /** A backup of the embedded store. */
  readonly from: string;
  readonly report?: ReportProgress;
}

/** Longer than for a server: many commands are in flight. */
const COMMAND_TIMEOUT_MS = 10_000;

const now = (): number => Date.now() / 1_000;

/**
 * Imports a backup of the embedded store into Redis. It is idempotent, can be repeated after an interruption, and never
 * replaces newer records. Until it is complete, gatehouse does not start with this Redis.
 */
export async function migrateToRedis(options: MigrationOptions) {
  const { settings, from, report = () => {} } = options;
  // Records that failed authentication, in the backup or in Redis.
  let refused = 0;
  const authenticator = openKeyedAuthenticator(
    settings,
    'put the key file of the embedded store there, and copy it to every replica',
    () => {
      refused += 1;
    },
  );
  // Records get a new MAC for Redis, so a record that fails verification must not be imported.
  const backup = await openBackup(from, now, { authenticator, report });
  try {
    // An interactive command fails instead of retrying.
    const store = await openRedisUnchecked({
      settings,
      log: createLogger({ level: 'error', format: 'json', write: () => {} }),
      now,
      authenticator,
      commandTimeout: COMMAND_TIMEOUT_MS,
      onUnreachable: async (fault) => {
        throw fault;
      },
    });
    try {
      return { ...(await importBackup(store, backup, settings, report)), refused };
    } finally {
      await store.close();
    }
  } finally {
    await backup.close();
  }
}

async function importBackup(
  store: RedisStore,
  backup: OpenedBackup,
  settings: Settings,
  report: ReportProgress,
): Promise<ImportResult> {
  const reportImport = (step: string, total: number) => (done: number) =>
    report({ step, unit: 'records', done, total });
  const isNew = await prepareTarget(store, backup);
  await openCheckedKeyring(settings, store, now());
  const revocations = await importRevocations(
    store,
    backup.records('revocations'),
    reportImport('importing the revocations', backup.countRecords('revocations')),
  );
  const kinds = ['grants', 'devices', 'userCodes'] as const;
  const records = await importRecords(
    store,
    backup.records(...kinds),
    reportImport('importing the records', backup.countRecords(...kinds)),
  );
  // A new store rejects tokens issued before it, since it cannot know their revocations; here they were imported.
  if (isNew) await store.revocations.acceptEarlierTokens();
  await writeNote(store, MIGRATION_NOTE, { state: 'ended' });
  return { ...records, revocations };
}

/** True for an empty target or an interrupted migration. Throws when it belongs to another installation. */
async function prepareTarget(store: RedisStore, backup: OpenedBackup): Promise<boolean> {
  const notes = new Map<string, Readonly<Record<string, string>>>();
  for await (const { id, record } of backup.records('notes')) notes.set(id, record as Readonly<Record<string, string>>);
  const backupKeys = notes.get(KEYS_NOTE);
  if (backupKeys === undefined) throw new StartError(['the backup has no key fingerprints; use another backup']);
  const redisKeys = await store.notes.read(KEYS_NOTE);
  const migration = await store.notes.read(MIGRATION_NOTE);
  if (redisKeys === undefined && !(await store.isEmpty()))
    throw new StartError([
      'store.url: this Redis holds grants, but no key fingerprints; use an empty Redis or another store.prefix',
    ]);
  if (redisKeys !== undefined && !hasMatchingKeys(backupKeys, redisKeys.record))
    throw new StartError([
      'store.url: this Redis holds grants of another gatehouse installation with other keys; use another store.prefix or another Redis',
    ]);
  const isNew = redisKeys === undefined || migration?.record['state'] === 'begun' || (await store.isEmpty());
  if (isNew) await writeNote(store, MIGRATION_NOTE, { state: 'begun' });
  if (redisKeys === undefined) await writeNote(store, KEYS_NOTE, backupKeys);
  return isNew;
}

/** At least one common key, and no key id with different secrets. */
function hasMatchingKeys(
  backupKeys: Readonly<Record<string, string>>,
  redisKeys: Readonly<Record<string, string>>,
): boolean {
  const fingerprint = (text: string | undefined): string | undefined => text?.split(' ', 1)[0];
  const sharedKids = Object.keys(backupKeys).filter((kid) => redisKeys[kid] !== undefined);
  return (
    sharedKids.length > 0 && sharedKids.every((kid) => fingerprint(backupKeys[kid]) === fingerprint(redisKeys[kid]))
  );
}

const MAX_ATTEMPTS = 16;

export async function writeNote(
  { notes }: Pick<RedisStore, 'notes'>,
  id: string,
  record: Readonly<Record<string, string>>,
): Promise<void> {
  for (let attempts = 0; attempts < MAX_ATTEMPTS; attempts += 1) {
    if ((await notes.create(id, record, KEEP_FOREVER)) === 'created') return;
    const found = await notes.read(id);
    if (found === undefined) continue;
    if ((await notes.replace(id, found.version, record, KEEP_FOREVER)) === 'replaced') return;
  }
  throw new Fault('overloaded', 'the migration note is being changed concurrently; is another migration running?');
}
