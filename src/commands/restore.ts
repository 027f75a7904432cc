import { resolve } from 'node:path';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { openCheckedKeyring, openKeyedAuthenticator } from '../server/keys.ts';
import { restoreBackup } from '../stores/embedded/backup.ts';
import { openEmbeddedStore } from '../stores/embedded/store.ts';
import { createRecordAuthenticator } from '../tokens/record-mac.ts';
import { CONFIG_OPTIONS, type Command, type CommandContext, writeJson } from './command.ts';
import { QUIET_OPTION, withProgressLine } from './progress.ts';
import { migrateToRedis } from './restore/migrate-to-redis.ts';
import { loadCommandSettings } from './settings.ts';

export const command: Command = {
  name: 'restore',
  summary: 'restores a backup into a new embedded store, or into Redis',
  usage: ['gatehouse restore [--config FILE] FROM'],
  options: {
    ...CONFIG_OPTIONS,
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
    const restore = settings.store.type === 'redis' ? restoreToRedis : restoreToFolder;
    await restore(context, settings, from);
  },
};

type Restore = (context: CommandContext, settings: Settings, from: string) => Promise<void>;

const restoreToFolder: Restore = async (context, settings, from) => {
  const { path } = settings.store;
  const authenticator = openKeyedAuthenticator(
    settings,
    'put the key file from the time of the backup there; the backup is verified with it',
  );
  const { records, refused } = await withProgressLine(context, (report) =>
    restoreBackup({ from, path, authenticator, report }),
  );
  const keyProblems = await checkKeys(settings);
  const warnings = [...listWarnings(refused), ...keyProblems];
  if (context.json) return writeJson(context, { restored: path, records, refused, warnings });
  context.stdout(`${path}: restored ${records} records\n`);
  for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
  if (keyProblems.length > 0) return;
  context.stdout(`The key file matches.${warnings.length === 0 ? ' You can start gatehouse now.' : ''}\n`);
};

const restoreToRedis: Restore = async (context, settings, from) => {
  const result = await withProgressLine(context, (report) => migrateToRedis({ settings, from, report }));
  const { grants, devices, userCodes, revocations, present, refused } = result;
  const warnings = listWarnings(refused);
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

const listWarnings = (refused: number): readonly string[] =>
  refused === 0
    ? []
    : [
        `${refused} records fail authentication and are treated as absent: they were modified, or their keys are not in keys.file`,
      ];

const now = (): number => Date.now() / 1_000;

/** Problems with the keys that would prevent the start. */
async function checkKeys(settings: Settings): Promise<readonly string[]> {
  const { path, mapSize } = settings.store;
  // The key fingerprints can be read without keys.
  const authenticator = createRecordAuthenticator({ now });
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
