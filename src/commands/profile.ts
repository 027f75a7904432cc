import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, hostname } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { type Client, createClient } from '../client/client.ts';
import { LoginRequiredError, OAuthError, ServiceUnavailableError } from '../client/errors.ts';
import { fileCredentialStore } from '../client/file-credential-store.ts';
import { serviceAccountToken } from '../client/service-account-token.ts';
import { type CommandContext, CommandError, EXIT, type Option, UsageError } from './command.ts';
import { readOptionFile } from './files.ts';

/** The parameters of a login, stored for the other client commands. */
export interface Profile {
  readonly url: string;
  readonly servicePath?: string | undefined;
  readonly clientId: string;
  readonly scope: string;
  readonly cacert?: string | undefined;
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
}

export const PROFILE_OPTION = {
  profile: { short: 'p', value: 'NAME', help: 'the profile to use (default: GATEHOUSE_PROFILE, or "default")' },
} as const satisfies Readonly<Record<string, Option>>;

const NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

export function readProfileName(context: CommandContext): string {
  const name = context.option('profile') ?? context.env['GATEHOUSE_PROFILE'] ?? 'default';
  if (!NAME.test(name)) throw new UsageError('gatehouse: a profile name consists of letters, digits, _ . and -');
  // Its file would be the token file of another profile.
  if (/\.token$/i.test(name)) throw new UsageError('gatehouse: a profile name must not end in .token');
  return name;
}

/** GATEHOUSE_HOME, or as in the XDG Base Directory Specification. */
function getHomeFolder({ env, cwd }: CommandContext): string {
  const configuredHome = env['GATEHOUSE_HOME'];
  if (configuredHome !== undefined && configuredHome !== '') return resolve(cwd, configuredHome);
  const config = env['XDG_CONFIG_HOME'];
  const base = config !== undefined && isAbsolute(config) ? config : join(env['HOME'] ?? homedir(), '.config');
  return join(base, 'gatehouse');
}

const getProfileFile = (context: CommandContext, name: string): string => join(getHomeFolder(context), `${name}.json`);

export function saveProfile(context: CommandContext, name: string, profile: Profile): void {
  mkdirSync(getHomeFolder(context), { recursive: true, mode: 0o700 });
  const file = getProfileFile(context, name);
  writeFileSync(file, `${JSON.stringify(profile, null, 2)}\n`, { mode: 0o600 });
  chmodSync(file, 0o600);
}

export function removeProfile(context: CommandContext, name: string): void {
  rmSync(getProfileFile(context, name), { force: true });
}

export function readProfile(context: CommandContext, name: string): Profile {
  const file = getProfileFile(context, name);
  if (!existsSync(file))
    throw new CommandError(
      `not signed in${name === 'default' ? '' : ` with profile ${name}`}; run gatehouse login --url URL --client ID --scope SCOPE`,
      EXIT.signIn,
    );
  try {
    const profile = JSON.parse(readFileSync(file, 'utf8')) as Profile;
    if ([profile.url, profile.clientId, profile.scope].every((value) => typeof value === 'string')) return profile;
  } catch {
    // Reported below.
  }
  throw new CommandError(`${file} cannot be used; sign in again with gatehouse login`, EXIT.configuration);
}

/** Runs `work` with the client of the profile that the command line selects. */
export function withProfile<T>(
  context: CommandContext,
  work: (client: Client, selected: { readonly name: string; readonly profile: Profile }) => Promise<T>,
): Promise<T> {
  const name = readProfileName(context);
  const profile = readProfile(context, name);
  return withClient(context, name, profile, (client) => work(client, { name, profile }));
}

export async function withClient<T>(
  context: CommandContext,
  name: string,
  profile: Profile,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  const cert = readOptionFile(context, 'cert', profile.cert);
  const key = readOptionFile(context, 'key', profile.key);
  const ca = readOptionFile(context, 'cacert', profile.cacert);
  return runWithClient(
    () =>
      createClient({
        url: profile.url,
        servicePath: profile.servicePath,
        clientId: profile.clientId,
        scope: profile.scope,
        ca,
        caOption: '--cacert FILE',
        deviceName: hostname(),
        ...(cert !== undefined && key !== undefined && { certificate: { cert, key } }),
        store: fileCredentialStore(join(getHomeFolder(context), `${name}.token.json`)),
      }),
    work,
    name,
  );
}

async function runWithClient<T>(create: () => Client, work: (client: Client) => Promise<T>, name: string): Promise<T> {
  let client: Client;
  try {
    client = create();
  } catch (error) {
    throw new CommandError((error as Error).message, EXIT.configuration);
  }
  try {
    return await work(client);
  } catch (error) {
    throw toCommandError(error, name);
  } finally {
    await client.close();
  }
}

/** Runs `work` with a client that exchanges a service account token. Nothing is stored. */
export async function withServiceAccount<T>(
  context: CommandContext,
  { tokenFile, cacert, ...options }: Omit<Profile, 'cert' | 'key'> & { readonly tokenFile: string },
  work: (client: Client) => Promise<T>,
): Promise<T> {
  const ca = readOptionFile(context, 'cacert', cacert);
  return runWithClient(
    () =>
      createClient({
        ...options,
        ca,
        caOption: '--cacert FILE',
        subjectToken: serviceAccountToken(resolve(context.cwd, tokenFile)),
      }),
    work,
    'default',
  );
}

function toCommandError(error: unknown, name: string): unknown {
  if (error instanceof LoginRequiredError)
    return new CommandError(
      `${error.message}; run gatehouse login${name === 'default' ? '' : ` --profile ${name}`}`,
      EXIT.signIn,
    );
  if (error instanceof OAuthError) return new CommandError(error.message, EXIT.signIn);
  if (error instanceof ServiceUnavailableError)
    return new CommandError(error.message, error.isLocal ? EXIT.configuration : EXIT.unavailable);
  if (error instanceof TypeError) return new CommandError(error.message, EXIT.configuration);
  return error;
}
