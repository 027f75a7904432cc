import { type Command, EXIT, writeJson } from './command.ts';
import { PROFILE_OPTION, removeProfile, withProfile } from './profile.ts';

export const command: Command = {
  name: 'logout',
  summary: 'revokes the grant of the last login and removes its tokens from this machine',
  usage: ['gatehouse logout'],
  options: {
    forget: { help: 'only remove the tokens from this machine; the grant stays valid on the server' },
    ...PROFILE_OPTION,
  },
  notes: ['If the server is unreachable, nothing is removed (exit code 69): try again, or use --forget.'],
  async run(context) {
    const isLocal = context.flag('forget');
    const { name, revoked } = await withProfile(context, async (client, profile) => {
      const wasRevoked = isLocal ? await client.forget().then(() => false) : await client.logout();
      return { name: profile.name, revoked: wasRevoked };
    });
    removeProfile(context, name);
    if (context.json) writeJson(context, { profile: name, revoked });
    else if (revoked) context.stdout('Signed out. The grant is revoked.\n');
    else context.stdout(isLocal ? 'The tokens are removed from this machine.\n' : 'There was no grant to revoke.\n');
    return EXIT.ok;
  },
};
