import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Settings } from '../config/schema.ts';
import { openKeys, readKeys } from '../gateway/keys.ts';
import { StartError } from '../gateway/start-error.ts';
import { openEmbedded, restoreEmbedded } from '../stores/embedded.ts';
import type { MacState } from '../stores/embedded-backup-mac.ts';
import { openKeyring } from '../tokens/keyring.ts';
import { type RecordMac, recordMac } from '../tokens/record-mac.ts';
import { CONFIG_OPTIONS, type Command, type Context, EXIT, writeJson } from './command.ts';
import { settingsFor } from './settings.ts';

export const command: Command = {
  name: 'restore',
  summary: 'puts a backup in place of an embedded store that does not exist yet, or into Redis',
  usage: ['gatehouse restore [--config FILE] [--unauthenticated] FROM'],
  options: {
    ...CONFIG_OPTIONS,
    unauthenticated: {
      type: 'boolean',
      help: 'restore without verifying the MAC: only for backups made before backups had one',
    },
  },
  words: { least: 1, most: 1 },
  notes: [
    'Stop gatehouse first, and move an old store away: nothing is overwritten. The backup is checked to its last record.',
    'Put the key file of that time back at keys.file first: the MAC of the backup is verified with it, and without it no grant of the backup can be used.',
    'What was revoked after the backup was made is not revoked in it.',
    'With store.type: redis its records are put into Redis, for the move there: again and again if need be, and never over newer ones.',
  ],
  async run(context) {
    const loaded = await settingsFor(context);
    if (typeof loaded === 'number') return loaded;
    const { settings } = loaded;
    if (settings.store.type === 'redis') return moveIntoRedis(context, settings);
    const from = resolve(context.cwd, context.words[0] ?? '');
    const unauthenticated = isUnauthenticated(context);
    const authenticator = authenticatorOf(settings);
    if (authenticator instanceof StartError && !unauthenticated) {
      for (const problem of authenticator.problems) context.stderr(`gatehouse: ${problem}\n`);
      return EXIT.configuration;
    }
    const { records, refused, mac } = await restoreEmbedded({
      from,
      path: settings.store.path,
      authenticator: authenticator instanceof StartError ? undefined : authenticator,
      unauthenticated,
    });
    const keys = await keyProblems(settings);
    const warnings = [...(unauthenticated ? [unverified(mac)] : []), ...refusedRecords(refused), ...keys];
    if (context.json) writeJson(context, { restored: settings.store.path, records, refused, mac, warnings });
    else {
      context.stdout(`${settings.store.path}: restored, ${records} records\n`);
      for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
      if (keys.length === 0)
        context.stdout(`The key file fits.${warnings.length === 0 ? ' Start gatehouse now.' : ''}\n`);
    }
    return EXIT.ok;
  },
};

const isUnauthenticated = (context: Context): boolean => context.flag('unauthenticated');

/** With `--unauthenticated`: what that means for this backup. */
const unverified = (mac: MacState): string => UNVERIFIED[mac];
const UNVERIFIED: Readonly<Record<MacState, string>> = {
  right: 'its MAC is right, so --unauthenticated is not needed for this backup',
  wrong:
    'nothing was verified, and the MAC of this backup is WRONG: it was altered since it was made. Use another backup, unless you know who altered it',
  absent:
    'nothing was verified: this backup has no MAC. It was made before backups had one, or its end was cut off or altered',
  unknown_key:
    'nothing was verified: this backup has a MAC, made with a key that keys.file does not have. Put the key file of that time there and restore without --unauthenticated',
  not_checked:
    'nothing was verified: this backup has a MAC, but keys.file cannot be read. Put the key file of that time there and restore without --unauthenticated',
};

const refusedRecords = (count: number): readonly string[] =>
  count === 0
    ? []
    : [
        `${count} records fail authentication and are treated as absent: they were altered, their keys are not in keys.file, or they have no MAC and store.unauthenticatedRecords is refuse`,
      ];

const now = (): number => Date.now() / 1_000;

/** With the keys that the backup was made with, or what is wrong with them. */
function authenticatorOf(settings: Settings): RecordMac | StartError {
  const authenticator = recordMac({ now, unauthenticated: settings.store.unauthenticatedRecords });
  try {
    authenticator.use(
      openKeyring(readKeys(settings, 'put the key file of that time there; the backup is verified with it')),
    );
    return authenticator;
  } catch (error) {
    if (error instanceof StartError) return error;
    throw error;
  }
}

/** From the embedded store, by way of its backup. */
async function moveIntoRedis(context: Context, settings: Settings): Promise<number> {
  const from = resolve(context.cwd, context.words[0] ?? '');
  const { move } = await import('../gateway/move.ts');
  try {
    const moved = await move({
      settings,
      from,
      unauthenticated: isUnauthenticated(context),
      onProgress: (records) => context.stderr(`${records.toLocaleString('en')} records so far\n`),
    });
    const { grants, devices, userCodes, revocations, present, refused, mac } = moved;
    const warnings = [...(isUnauthenticated(context) ? [unverified(mac)] : []), ...refusedRecords(refused)];
    if (context.json) writeJson(context, { from, ...moved, warnings });
    else {
      context.stdout(
        `Redis: ${grants} grants, ${devices} device requests, ${userCodes} typed codes and ${revocations} revocations of ${from}\n`,
      );
      if (present > 0) context.stdout(`${present} of them were there already, as new or newer\n`);
      for (const warning of warnings) context.stderr(`warning: ${warning}\n`);
      context.stdout(
        'The key file fits. If the old gatehouse still runs, stop it, then back up and restore once more: what has changed meanwhile goes over too. Then start gatehouse with this configuration.\n',
      );
    }
    return EXIT.ok;
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    for (const problem of error.problems) context.stderr(`gatehouse: ${problem}\n`);
    return EXIT.configuration;
  }
}

/** Would gatehouse start with these keys? Better asked now than at the start. */
async function keyProblems(settings: Settings): Promise<readonly string[]> {
  if (!existsSync(settings.keys.file))
    return [
      `keys.file: ${settings.keys.file} is missing, and a backup holds no keys; put the key file of that time there before you start gatehouse`,
    ];
  const { path, mapSize, unauthenticatedRecords: unauthenticated } = settings.store;
  // The fingerprints of the keys are a note that is read without them.
  const authenticator = recordMac({ now, unauthenticated });
  const store = await openEmbedded({ path, mapSize, role: 'owner', now, authenticator });
  try {
    await openKeys(settings, store, now());
    return [];
  } catch (error) {
    if (error instanceof StartError) return error.problems;
    throw error;
  } finally {
    await store.close();
  }
}
