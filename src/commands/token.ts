import { type Command, EXIT, UsageError, writeJson } from './command.ts';
import { PROFILE_OPTION, withProfile } from './profile.ts';

export const command: Command = {
  name: 'token',
  summary: 'prints an access token of the last login, refreshed when it is about to expire',
  usage: ['gatehouse token', 'curl -H "Authorization: Bearer $(gatehouse token)" URL'],
  options: {
    'valid-for': { type: 'string', value: 'SECONDS', help: 'refresh it when it expires sooner than this' },
    ...PROFILE_OPTION,
  },
  notes: [
    'Concurrent calls are safe: one of them refreshes, the others use its result.',
    'Exit code 77 when there is no valid grant: run gatehouse login.',
  ],
  async run(context) {
    const validFor = context.option('valid-for');
    if (validFor !== undefined && !/^\d{1,8}$/.test(validFor))
      throw new UsageError('gatehouse token: --valid-for must be a number of seconds');
    await withProfile(context, async (client) => {
      const token = await client.token(validFor === undefined ? {} : { validFor: Number(validFor) });
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
