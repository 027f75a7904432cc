import { resolve } from 'node:path';
import { readKeys } from '../gateway/keys.ts';
import { StartError } from '../gateway/start-error.ts';
import { openEmbedded } from '../stores/embedded.ts';
import { openKeyring } from '../tokens/keyring.ts';
import { recordMac } from '../tokens/record-mac.ts';
import { CONFIG_OPTIONS, type Command, EXIT, writeJson } from './command.ts';
import { settingsFor } from './settings.ts';

export const command: Command = {
  name: 'backup',
  summary: 'copies the embedded store to a file, while gatehouse runs',
  usage: ['gatehouse backup [--config FILE] TO'],
  options: CONFIG_OPTIONS,
  words: { least: 1, most: 1 },
  notes: [
    'The copy appears whole or not at all, mode 0600, and replaces nothing.',
    'It has a MAC, made with a key of keys.file; restore verifies it.',
    'It holds no keys and no usable token. Keep a copy of keys.file apart from it: one is worthless without the other.',
  ],
  async run(context) {
    const loaded = await settingsFor(context);
    if (typeof loaded === 'number') return loaded;
    if (loaded.settings.store.type !== 'embedded') {
      context.stderr(
        'gatehouse: store.type is redis; back up the Redis server by its own means (a move from the embedded store begins with a backup under the old configuration)\n',
      );
      return EXIT.configuration;
    }
    const { store: where, keys } = loaded.settings;
    const to = resolve(context.cwd, context.words[0] ?? '');
    const now = (): number => Date.now() / 1_000;
    const authenticator = recordMac({ now, unauthenticated: where.unauthenticatedRecords });
    try {
      authenticator.use(
        openKeyring(
          readKeys(loaded.settings, 'put the key file of this store there; a backup is made with its keys'),
        ),
      );
    } catch (error) {
      if (!(error instanceof StartError)) throw error;
      for (const problem of error.problems) context.stderr(`gatehouse: ${problem}\n`);
      return EXIT.configuration;
    }
    // As one more worker beside those that serve: it takes no lock, and sees what they have flushed.
    const store = await openEmbedded({
      path: where.path,
      mapSize: where.mapSize,
      role: 'worker',
      now,
      authenticator,
    });
    try {
      await store.backup(to);
    } finally {
      await store.close();
    }
    if (context.json) writeJson(context, { backup: to, store: where.path, keys: keys.file });
    else {
      context.stdout(`${to}: the store of ${where.path}, as of now\n`);
      context.stdout(`It holds no keys. Keep a copy of ${keys.file} too, in another safe place.\n`);
    }
    return EXIT.ok;
  },
};
