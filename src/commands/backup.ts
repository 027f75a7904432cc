import { resolve } from 'node:path';
import { openKeyedAuthenticator } from '../server/keys.ts';
import { openEmbeddedStore } from '../stores/embedded/store.ts';
import { CONFIG_OPTIONS, type Command, CommandError, EXIT, writeJson } from './command.ts';
import { QUIET_OPTION, withProgressLine } from './progress.ts';
import { loadCommandSettings } from './settings.ts';

export const command: Command = {
  name: 'backup',
  summary: 'copies the embedded store to a file, while gatehouse runs',
  usage: ['gatehouse backup [--config FILE] TO'],
  options: { ...CONFIG_OPTIONS, quiet: QUIET_OPTION },
  positionals: { min: 1, max: 1, complete: ['file'] },
  notes: [
    'The file is created atomically with mode 0600 and never replaces another one.',
    'A MAC protects it, with a key from keys.file; restore verifies the MAC.',
    'It contains no keys and no usable token. Keep a copy of keys.file in a different place: restore needs both.',
  ],
  async run(context) {
    const { settings } = loadCommandSettings(context);
    const { type, path, mapSize } = settings.store;
    if (type !== 'embedded')
      throw new CommandError(
        'store.type is redis; back up the Redis server with its own tools (to migrate from the embedded store, run backup with the old configuration)',
        EXIT.configuration,
      );
    const target = resolve(context.cwd, context.positionals[0] ?? '');
    const now = (): number => Date.now() / 1_000;
    const authenticator = openKeyedAuthenticator(
      settings,
      'put the key file of this store there; a backup is made with its keys',
    );
    // The role `worker` takes no lock, and sees what the running gatehouse has flushed.
    const store = await openEmbeddedStore({ path, mapSize, role: 'worker', now, authenticator });
    try {
      await withProgressLine(context, (report) => store.backup(target, report));
    } finally {
      await store.close();
    }
    const { file } = settings.keys;
    if (context.json) writeJson(context, { backup: target, store: path, keys: file });
    else {
      context.stdout(`${target}: backup of the store in ${path}\n`);
      context.stdout(`It contains no keys. Keep a copy of ${file} too, in a different safe place.\n`);
    }
  },
};
