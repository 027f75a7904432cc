import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { openCheckedKeyring, openKeyedAuthenticator } from '../server/keys.ts';
import { migrateToRedis } from '../server/migrate-to-redis.ts';
import type { MacState } from '../stores/embedded/backup-mac.ts';
import { openEmbeddedStore, restoreBackup } from '../stores/embedded/store.ts';
import { createRecordAuthenticator, type KeyedRecordAuthenticator } from '../tokens/record-mac.ts';
import { CONFIG_OPTIONS, type Command, type CommandContext, EXIT, writeJson } from './command.ts';
import { QUIET_OPTION, withProgressLine } from './progress.ts';
import { loadCommandSettings } from './settings.ts';

export const command: Command = {
  name: 'restore',
  summary: 'restores a backup into a new embedded store, or into Redis',
  usage: ['gatehouse restore [--config FILE] [--unauthenticated] FROM'],
  options: {
    ...CONFIG_OPTIONS,
    unauthenticated: {
      type: 'boolean',
      help: 'restore without verifying the MAC: only for backups made before backups had one',
    },
    quiet: QUIET_OPTION,
  },
  positionals: { min: 1, max: 1, complete: ['file'] },
  notes: [
    'Stop gatehouse first, and move an old store out of the way: nothing is overwritten. The whole backup is verified.',
    'First restore keys.file from the time of the backup: it verifies the MAC, and without it the grants cannot be used.',
    'Revocations made after the backup are not in it.',
    'With store.type: redis the records are imported into Redis, to migrate there. This can be repeated, and never replaces newer records.',
  ],
  async run(context) {
    const { settings } = loadCommandSettings(context);
    const from = resolve(context.cwd, context.positionals[0] ?? '');
    const isUnauthenticated = context.flag('unauthenticated');
    const restore = settings.store.type === 'redis' ? restoreToRedis : restoreToFolder;
    await restore(context, settings, from, isUnauthenticated);
    return EXIT.ok;
  },
};

type Restore = (
  context: CommandContext,
  settings: Settings,
  from: string,
  isUnauthenticated: boolean,
) => Promise<void>;

const restoreToFolder: Restore = async (context, settings, from, isUnauthenticated) => {
  const { path } = settings.store;
  const { records, refused, mac } = await withProgressLine(context, (report) =>
    restoreBackup({
      from,
      path,
      authenticator: openAuthenticator(settings, isUnauthenticated),
      unauthenticated: isUnauthenticated,
      report,
    }),
  );
  const keyProblems = await checkKeys(settings);
  const warnings = [...listWarnings(isUnauthenticated, mac, refused), ...keyProblems];
  if (context.json) return writeJson(context, { restored: path, records, refused, mac, warnings });
  context.stdout(`${path}: restored ${records} records\n`);
  for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
  if (keyProblems.length > 0) return;
  context.stdout(`The key file matches.${warnings.length === 0 ? ' You can start gatehouse now.' : ''}\n`);
};

const restoreToRedis: Restore = async (context, settings, from, isUnauthenticated) => {
  const result = await withProgressLine(context, (report) =>
    migrateToRedis({ settings, from, unauthenticated: isUnauthenticated, report }),
  );
  const { grants, devices, userCodes, revocations, present, refused, mac } = result;
  const warnings = listWarnings(isUnauthenticated, mac, refused);
  if (context.json) return writeJson(context, { from, ...result, warnings });
  context.stdout(
    `Redis: imported ${grants} grants, ${devices} device requests, ${userCodes} user codes and ${revocations} revocations from ${from}\n`,
  );
  if (present > 0) context.stdout(`${present} of them were already there in the same or a newer version\n`);
  for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
  context.stdout(
    'The key file matches. If the old gatehouse still runs, stop it, then back up and restore once more to include later changes. Then start gatehouse with this configuration.\n',
  );
};

const listWarnings = (isUnauthenticated: boolean, mac: MacState, refused: number): readonly string[] => [
  ...(isUnauthenticated ? [UNVERIFIED_TEXTS[mac]] : []),
  ...(refused === 0
    ? []
    : [
        `${refused} records fail authentication and are treated as absent: they were modified, their keys are not in keys.file, or they have no MAC and store.unauthenticatedRecords is refuse`,
      ]),
];

const UNVERIFIED_TEXTS: Readonly<Record<MacState, string>> = {
  valid: 'the MAC is valid: --unauthenticated is not needed for this backup',
  invalid:
    'the MAC was not enforced, and it is WRONG: the backup was modified. Use another backup, unless you know who modified it',
  absent:
    'not verified: this backup has no MAC. It was made before backups had one, or it was truncated or modified',
  unknown_key:
    'not verified: the MAC of this backup was made with a key that is not in keys.file. Put the key file from that time there and restore without --unauthenticated',
  not_checked:
    'not verified: this backup has a MAC, but keys.file cannot be read. Put the key file from that time there and restore without --unauthenticated',
};

const now = (): number => Date.now() / 1_000;

/** Undefined where the keys cannot be used, which only `--unauthenticated` permits. */
function openAuthenticator(
  settings: Settings,
  isUnauthenticated: boolean,
): KeyedRecordAuthenticator | undefined {
  try {
    return openKeyedAuthenticator(
      settings,
      'put the key file from the time of the backup there; the backup is verified with it',
    );
  } catch (error) {
    if (isUnauthenticated && error instanceof StartError) return undefined;
    throw error;
  }
}

/** Problems with the keys that would prevent the start. */
async function checkKeys(settings: Settings): Promise<readonly string[]> {
  if (!existsSync(settings.keys.file))
    return [
      `keys.file: ${settings.keys.file} is missing, and a backup contains no keys; put the key file from that time there before you start gatehouse`,
    ];
  const { path, mapSize, unauthenticatedRecords: unauthenticated } = settings.store;
  // The key fingerprints can be read without keys.
  const authenticator = createRecordAuthenticator({ now, unauthenticated });
  const store = await openEmbeddedStore({ path, mapSize, role: 'owner', now, authenticator });
  try {
    await openCheckedKeyring(settings, store, now());
    return [];
  } catch (error) {
    if (error instanceof StartError) return error.problems;
    throw error;
  } finally {
    await store.close();
  }
}
