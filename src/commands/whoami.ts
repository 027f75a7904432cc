import type { Client } from '../client/client.ts';
import { OAuthError } from '../client/errors.ts';
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
      const names = await fetchNames(client);
      const grant = await client.grant();
      if (context.json) return writeJson(context, { ...verification, ...names });
      const expires = grant?.expires ?? 0;
      const minutes = Math.max(0, Math.floor((expires - Date.now() / 1_000) / 60));
      const lines = [
        ['name', names.username],
        ['email', names.email],
        ['identity', verification['identity']],
        ['client', verification['application']],
        ['scope', verification['scope']],
        ['at', profile.url],
        ['token', `until ${formatTime(expires)} (${minutes} min)`],
        ['grant', `until ${String(verification['expires_ISO8601'])}`],
      ];
      for (const [label, value] of lines)
        if (value !== undefined) context.stdout(`${String(label).padEnd(9)} ${printable(value)}\n`);
    });
    return EXIT.ok;
  },
};

/** Authorize/Verify has no name. */
async function fetchNames(client: Client): Promise<{ readonly username?: string; readonly email?: string }> {
  try {
    const { username, email } = await client.introspect();
    return {
      ...(typeof username === 'string' && { username }),
      ...(typeof email === 'string' && { email }),
    };
  } catch (error) {
    // An earlier version lets only configured callers introspect tokens.
    if (error instanceof OAuthError) return {};
    throw error;
  }
}

const formatTime = (seconds: number): string =>
  new Date(seconds * 1_000).toISOString().replace(/\.\d+Z$/, 'Z');
