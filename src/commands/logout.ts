import { type Command, EXIT, writeJson } from './command.ts';
import { PROFILE_OPTION, profileName, readProfile, removeProfile, withClient } from './profile.ts';

export const command: Command = {
  name: 'logout',
  summary: 'ends the grant of the last login and removes its tokens from this machine',
  usage: ['gatehouse logout'],
  options: {
    forget: {
      type: 'boolean',
      help: 'only remove the tokens here, without a word to the server; the grant lives on there',
    },
    ...PROFILE_OPTION,
  },
  notes: ['When the server cannot be reached nothing is removed (exit code 69): try again, or use --forget.'],
  async run(context) {
    const name = profileName(context);
    const forget = context.flag('forget');
    const ended = await withClient(context, name, readProfile(context, name), async (client) => {
      if (!forget) return client.logout();
      await client.forget();
      return false;
    });
    removeProfile(context, name);
    if (context.json) writeJson(context, { profile: name, revoked: ended });
    else if (ended) context.stdout('Signed out. The grant is ended everywhere.\n');
    else context.stdout(forget ? 'The tokens are removed here.\n' : 'There was no grant to end.\n');
    return EXIT.ok;
  },
};
