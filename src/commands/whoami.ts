import { printable } from '../lib/printable.ts';
import { type Command, EXIT, writeJson } from './command.ts';
import { PROFILE_OPTION, withProfile } from './profile.ts';

export const command: Command = {
  name: 'whoami',
  summary: 'shows the signed-in identity, its scope and its expiry',
  usage: ['gatehouse whoami'],
  options: PROFILE_OPTION,
  async run(context) {
    await withProfile(context, async (client, { profile }) => {
      const verification = await client.whoami();
      const grant = await client.grant();
      if (context.json) return writeJson(context, verification);
      const minutes = Math.max(0, Math.floor(((grant?.expires ?? 0) - Date.now() / 1_000) / 60));
      const lines = [
        ['identity', verification['identity']],
        ['client', verification['application']],
        ['scope', verification['scope']],
        ['at', profile.url],
        ['token', `valid for ${minutes} min`],
        ['grant', `until ${String(verification['expires_ISO8601'])}`],
      ];
      for (const [label, value] of lines) context.stdout(`${String(label).padEnd(9)} ${printable(value)}\n`);
    });
    return EXIT.ok;
  },
};
