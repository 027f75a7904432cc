import { resolve } from 'node:path';
import type { Client } from '../client/client.ts';
import type { DevicePrompt } from '../client/device.ts';
import type { StoredGrant } from '../client/grant.ts';
import { printable } from '../lib/printable.ts';
import { type Caller, fetchCaller, formatTime } from './caller.ts';
import { type Command, type CommandContext, EXIT, UsageError, writeJson } from './command.ts';
import { PROFILE_OPTION, type Profile, readProfile, readProfileName, saveProfile, withClient } from './profile.ts';
import { parseWebUrl } from './web-url.ts';

export const command: Command = {
  name: 'login',
  summary: 'obtains a token, with a certificate or by confirming in a browser',
  usage: [
    'gatehouse login --url URL --client ID --scope SCOPE',
    'gatehouse login --url URL --client ID --scope SCOPE --cert FILE --key FILE',
    'gatehouse login',
  ],
  options: {
    url: { value: 'URL', help: 'the URL of gatehouse, such as https://api.example.test' },
    client: { value: 'ID', help: 'the client_id of the integration' },
    scope: { value: 'SCOPE', help: 'the scope of the token, such as files:read' },
    cert: { value: 'FILE', help: 'client certificate, PEM: signs in without a browser' },
    key: { value: 'FILE', help: 'its private key, PEM' },
    cacert: { value: 'FILE', help: 'the CA to trust, PEM (default: the CAs built into Node)' },
    service: { value: 'PATH', help: 'the path of the token service (default: /authsvc)' },
    'no-qr': { help: 'show no QR code' },
    ...PROFILE_OPTION,
  },
  notes: [
    'Omitted options default to those of the last login with the profile.',
    'The confirmation page shows the host name of this machine.',
    'Tokens are stored in files with mode 0600 in GATEHOUSE_HOME (default: ~/.config/gatehouse).',
    'Afterwards: gatehouse token, gatehouse whoami, gatehouse logout.',
  ],
  async run(context) {
    const name = readProfileName(context);
    const profile = createProfile(context, name);
    const { grant, caller } = await withClient(context, name, profile, async (client) => {
      const signedIn = await client.login({ onDevice: (prompt) => showPrompt(context, prompt) });
      saveProfile(context, name, profile);
      return { grant: signedIn, caller: await findCaller(client, signedIn) };
    });
    if (context.json)
      writeJson(context, {
        profile: name,
        scope: grant.scope,
        ...caller,
        expires: Math.floor(grant.expires),
        until: Math.floor(grant.until),
      });
    else context.stdout(`Signed in${formatCaller(caller)} for ${grant.scope}, until ${formatTime(grant.until)}.\n`);
    return EXIT.ok;
  },
};

/** The login has succeeded even if the names cannot be fetched. */
async function findCaller(client: Client, { identity }: StoredGrant): Promise<Caller> {
  const { audience: _audience, ...caller } = await fetchCaller(client).catch((): Caller => ({}));
  return { ...(identity !== undefined && { identity }), ...caller };
}

function formatCaller({ username, email, identity }: Caller): string {
  const caller = username ?? email ?? identity;
  if (caller === undefined) return '';
  const address = email === undefined || email === caller ? '' : ` (${printable(email)})`;
  return ` as ${printable(caller)}${address}`;
}

function createProfile(context: CommandContext, name: string): Profile {
  const resolveFile = (option: string): string | undefined => {
    const file = context.option(option);
    return file === undefined ? undefined : resolve(context.cwd, file);
  };
  const previous = context.option('url') === undefined ? readProfile(context, name) : undefined;
  const profile = {
    url: context.option('url') ?? previous?.url,
    servicePath: context.option('service') ?? previous?.servicePath,
    clientId: context.option('client') ?? previous?.clientId,
    // The token API has no spaces between items.
    scope: context.option('scope')?.trim().replaceAll(/ +/g, ';') ?? previous?.scope,
    cacert: resolveFile('cacert') ?? previous?.cacert,
    cert: resolveFile('cert') ?? previous?.cert,
    key: resolveFile('key') ?? previous?.key,
  };
  const { url, clientId, scope } = profile;
  if (url === undefined || clientId === undefined || scope === undefined)
    throw new UsageError('gatehouse login: --url, --client and --scope are required');
  parseWebUrl('gatehouse login: --url', url, {
    scheme: 'https',
    form: 'must be a URL, such as https://api.example.test',
  });
  if ((profile.cert === undefined) !== (profile.key === undefined))
    throw new UsageError('gatehouse login: --cert and --key go together');
  return { ...profile, url, clientId, scope };
}

/** Shows the user code on standard error; standard output is for the result. */
async function showPrompt(context: CommandContext, prompt: DevicePrompt): Promise<void> {
  const { userCode, verificationUri, verificationUriComplete, expiresIn } = prompt;
  if (process.stderr.isTTY && context.env['TERM'] !== 'dumb' && !context.flag('no-qr')) {
    const { renderTerminalQr } = await import('./terminal-qr.ts');
    context.stderr(`\n${renderTerminalQr(verificationUriComplete)}\n`);
  }
  context.stderr(`\nOpen    ${verificationUriComplete}\n`);
  context.stderr(`or enter ${userCode} at ${verificationUri}\n\n`);
  context.stderr(`Waiting for confirmation of ${userCode}, at most ${Math.floor(expiresIn)} s.\n`);
}
