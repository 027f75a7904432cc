import type { Client } from '../client/client.ts';
import { SERVICE_ACCOUNT_TOKEN_FILE } from '../client/service-account-token.ts';
import type { NonSettingVariable } from '../config/non-setting-variables.ts';
import { type Command, type CommandContext, UsageError, writeJson } from './command.ts';
import { PROFILE_OPTION, withProfile, withServiceAccount } from './profile.ts';
import { parseWebUrl } from './web-url.ts';

export const command: Command = {
  name: 'token',
  summary: 'prints an access token of the last login, refreshed when it is about to expire',
  usage: [
    'gatehouse token',
    'gatehouse token --service-account --url URL --client ID --scope SCOPE',
    'curl -H "Authorization: Bearer $(gatehouse token)" URL',
  ],
  options: {
    'valid-for': { value: 'SECONDS', help: 'refresh it when it expires sooner than this' },
    ...PROFILE_OPTION,
    'service-account': { help: 'exchange the service account token of this pod instead of using a login' },
    'token-file': {
      value: 'FILE',
      help: `that token (default: GATEHOUSE_TOKEN_FILE, or ${SERVICE_ACCOUNT_TOKEN_FILE})`,
    },
    url: { value: 'URL', help: 'with --service-account: the URL of gatehouse (GATEHOUSE_URL)' },
    client: { value: 'ID', help: 'with --service-account: the client_id of the integration (GATEHOUSE_CLIENT)' },
    scope: { value: 'SCOPE', help: 'with --service-account: the scope of the token (GATEHOUSE_SCOPE)' },
    cacert: { value: 'FILE', help: 'with --service-account: the CA to trust, PEM (GATEHOUSE_CACERT)' },
    service: { value: 'PATH', help: 'with --service-account: the path of the token service (default: /authsvc)' },
  },
  notes: [
    'With --service-account nothing is stored: each call exchanges the token, which works in a read-only container.',
    'Concurrent calls are safe: one of them refreshes, the others use its result.',
    'Exit code 77 when there is no valid grant: run gatehouse login.',
  ],
  async run(context) {
    const validFor = context.option('valid-for');
    if (validFor !== undefined && !/^\d{1,8}$/.test(validFor))
      throw new UsageError('gatehouse token: --valid-for must be a number of seconds');
    const printToken = async (client: Client): Promise<void> => {
      const token = await client.token(validFor === undefined ? {} : { validFor: Number(validFor) });
      if (!context.json) return context.stdout(`${token}\n`);
      const grant = await client.grant();
      writeJson(context, {
        access_token: token,
        token_type: 'Bearer',
        expires: Math.floor(grant?.expires ?? 0),
        scope: grant?.scope,
      });
    };
    await (context.flag('service-account')
      ? withServiceAccount(context, readServiceAccountOptions(context), printToken)
      : withProfile(context, printToken));
  },
};

function readServiceAccountOptions(context: CommandContext) {
  const read = (option: string, variable: NonSettingVariable): string | undefined =>
    context.option(option) ?? (context.env[variable] || undefined);
  const [url, clientId, scope] = [
    read('url', 'GATEHOUSE_URL'),
    read('client', 'GATEHOUSE_CLIENT'),
    read('scope', 'GATEHOUSE_SCOPE'),
  ];
  if (url === undefined || clientId === undefined || scope === undefined)
    throw new UsageError('gatehouse token: --service-account needs --url, --client and --scope');
  parseWebUrl('gatehouse token: --url', url, {
    scheme: 'https',
    form: 'must be a URL, such as https://api.example.test',
  });
  return {
    url,
    clientId,
    scope,
    servicePath: context.option('service'),
    cacert: read('cacert', 'GATEHOUSE_CACERT'),
    tokenFile: read('token-file', 'GATEHOUSE_TOKEN_FILE') ?? SERVICE_ACCOUNT_TOKEN_FILE,
  };
}
