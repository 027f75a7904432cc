import { printable } from '../client/printable.ts';
import { type Command, EXIT, writeJson } from './command.ts';
import { PROFILE_OPTION, profileName, readProfile, withClient } from './profile.ts';

export const command: Command = {
  name: 'whoami',
  summary: 'tells who is signed in, for what and until when',
  usage: ['gatehouse whoami'],
  options: PROFILE_OPTION,
  async run(context) {
    const name = profileName(context);
    const profile = readProfile(context, name);
    const { said, grant } = await withClient(context, name, profile, async (client) => ({
      said: await client.whoami(),
      grant: await client.grant(),
    }));
    if (context.json) writeJson(context, said);
    else {
      const minutes = Math.max(0, Math.floor(((grant?.expires ?? 0) - Date.now() / 1_000) / 60));
      const lines = [
        ['identity', said['identity']],
        ['client', said['application']],
        ['scope', said['scope']],
        ['at', profile.url],
        ['token', `good for ${minutes} min more`],
        ['grant', `until ${String(said['expires_ISO8601'])}`],
      ];
      for (const [word, value] of lines) context.stdout(`${String(word).padEnd(9)} ${printable(value)}\n`);
    }
    return EXIT.ok;
  },
};
