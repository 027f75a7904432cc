import { type Command, EXIT, UsageError, writeJson } from './command.ts';
import { PROFILE_OPTION, profileName, readProfile, withClient } from './profile.ts';

export const command: Command = {
  name: 'token',
  summary: 'prints an access token of the last login, renewed when it is near its end',
  usage: ['gatehouse token', 'curl -H "Authorization: Bearer $(gatehouse token)" URL'],
  options: {
    'valid-for': { type: 'string', value: 'SECONDS', help: 'renew it when it is good for less than that' },
    ...PROFILE_OPTION,
  },
  notes: [
    'Any number of shells may call it at once: one of them renews, the others take what it got.',
    'Exit code 77 when there is no grant, or it has ended: run gatehouse login.',
  ],
  async run(context) {
    const given = context.option('valid-for');
    if (given !== undefined && !/^\d{1,8}$/.test(given))
      throw new UsageError('gatehouse token: --valid-for is a number of seconds');
    const name = profileName(context);
    await withClient(context, name, readProfile(context, name), async (client) => {
      const token = await client.token(given === undefined ? {} : { validFor: Number(given) });
      if (!context.json) return context.stdout(`${token}\n`);
      const grant = await client.grant();
      writeJson(context, {
        access_token: token,
        token_type: 'Bearer',
        expires: Math.floor(grant?.expires ?? 0),
        scope: grant?.scope,
      });
    });
    return EXIT.ok;
  },
};
