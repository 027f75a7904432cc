import type { Client } from '../client/client.ts';
import { OAuthError } from '../client/errors.ts';
import type { ServiceResponse } from '../client/service.ts';
import { printable } from '../lib/printable.ts';
import { type Caller, fetchCaller, formatTime } from './caller.ts';
import { type Command, writeJson } from './command.ts';
import { PROFILE_OPTION, withProfile } from './profile.ts';

export const command: Command = {
  name: 'whoami',
  summary: 'shows the signed-in identity, its scope and its expiry',
  usage: ['gatehouse whoami'],
  options: PROFILE_OPTION,
  async run(context) {
    await withProfile(context, async (client, { profile }) => {
      const { username, email, audience } = await findCaller(client);
      const verification = await verify(client, audience);
      const grant = await client.grant();
      if (context.json)
        return writeJson(context, {
          ...verification,
          ...(username !== undefined && { username }),
          ...(email !== undefined && { email }),
        });
      const expires = grant?.expires ?? 0;
      const minutes = Math.max(0, Math.floor((expires - Date.now() / 1_000) / 60));
      const lines = [
        ['name', username],
        ['email', email],
        ['identity', verification['identity']],
        ['client', verification['application']],
        ['scope', verification['scope']],
        ['at', profile.url],
        ['token', `until ${formatTime(expires)} (${minutes} min)`],
        ['grant', formatGrantExpiry(verification['expires_ISO8601'])],
        ['audience', verification['audience']],
      ];
      for (const [label, value] of lines)
        if (value !== undefined) context.stdout(`${String(label).padEnd(9)} ${printable(value)}\n`);
    });
  },
};

/** Authorize/Verify refuses a token for another API. */
async function verify(client: Client, audience: string | undefined): Promise<ServiceResponse> {
  try {
    return await client.whoami();
  } catch (error) {
    if (!(error instanceof OAuthError) || audience === undefined) throw error;
    const { sub, client_id: application, scope } = await client.introspect();
    return { identity: sub, application, scope, audience };
  }
}

async function findCaller(client: Client): Promise<Caller> {
  try {
    return await fetchCaller(client);
  } catch (error) {
    if (error instanceof OAuthError) return {};
    throw error;
  }
}

const formatGrantExpiry = (time: unknown): string | undefined =>
  typeof time === 'string' ? `until ${time}` : undefined;
