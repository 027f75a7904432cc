import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { type Client, createClient } from '../client/client.ts';
import { ServiceRefusal, SignInNeeded, TemporaryTrouble } from '../client/errors.ts';
import { fileKeep } from '../client/file-keep.ts';
import { CommandError, type Context, EXIT, type Option, UsageError } from './command.ts';

/** Where somebody signed in, and how: what the client commands need to do it again. */
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
  profile: {
    type: 'string',
    short: 'p',
    value: 'NAME',
    help: 'which sign-in, where there are several (default: GATEHOUSE_PROFILE, or "default")',
  },
} as const satisfies Readonly<Record<string, Option>>;

const NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

export function profileName(context: Context): string {
  const name = context.option('profile') ?? context.env['GATEHOUSE_PROFILE'] ?? 'default';
  if (!NAME.test(name)) throw new UsageError('gatehouse: a profile is named by letters, digits, _ . and -');
  // The profile's file would be another one's tokens.
  if (/\.token$/i.test(name)) throw new UsageError('gatehouse: the name of a profile does not end in .token');
  return name;
}

/** Of this user alone: GATEHOUSE_HOME, or where the XDG base directory specification puts it. */
function homeOf({ env, cwd }: Context): string {
  const own = env['GATEHOUSE_HOME'];
  if (own !== undefined && own !== '') return resolve(cwd, own);
  const config = env['XDG_CONFIG_HOME'];
  const base =
    config !== undefined && isAbsolute(config) ? config : join(env['HOME'] ?? homedir(), '.config');
  return join(base, 'gatehouse');
}

const profileFile = (context: Context, name: string): string => join(homeOf(context), `${name}.json`);
export const tokenFile = (context: Context, name: string): string =>
  join(homeOf(context), `${name}.token.json`);

export function saveProfile(context: Context, name: string, profile: Profile): void {
  const folder = homeOf(context);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const file = profileFile(context, name);
  writeFileSync(file, `${JSON.stringify(profile, null, 2)}\n`, { mode: 0o600 });
  chmodSync(file, 0o600);
}

export function removeProfile(context: Context, name: string): void {
  rmSync(profileFile(context, name), { force: true });
}

export function readProfile(context: Context, name: string): Profile {
  const file = profileFile(context, name);
  if (!existsSync(file)) throw notSignedIn(name);
  try {
    const profile = JSON.parse(readFileSync(file, 'utf8')) as Profile;
    if ([profile.url, profile.clientId, profile.scope].every((value) => typeof value === 'string'))
      return profile;
  } catch {
    // Told below.
  }
  throw new CommandError(`${file} cannot be used; sign in again with gatehouse login`, EXIT.configuration);
}

const notSignedIn = (name: string): CommandError =>
  new CommandError(
    `nobody is signed in${name === 'default' ? '' : ` as profile ${name}`}; run gatehouse login --url URL --client ID --scope SCOPE`,
    EXIT.signIn,
  );

/** The client of a profile, for one command; errors become one line and an exit code that scripts can tell apart. */
export async function withClient<T>(
  context: Context,
  name: string,
  profile: Profile,
  work: (client: Client) => Promise<T>,
): Promise<T> {
  const read = (option: string, file: string | undefined): Buffer | undefined => {
    try {
      return file === undefined ? undefined : readFileSync(file);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new CommandError(`--${option} ${file} cannot be read (${code})`, EXIT.configuration);
    }
  };
  const [cert, key] = [read('cert', profile.cert), read('key', profile.key)];
  let client: Client;
  try {
    client = createClient({
      url: profile.url,
      servicePath: profile.servicePath,
      clientId: profile.clientId,
      scope: profile.scope,
      ca: read('cacert', profile.cacert),
      caBy: '--cacert FILE',
      ...(cert !== undefined && key !== undefined && { certificate: { cert, key } }),
      keep: fileKeep(tokenFile(context, name)),
    });
  } catch (error) {
    throw new CommandError((error as Error).message, EXIT.configuration);
  }
  try {
    return await work(client);
  } catch (error) {
    throw explained(error, name);
  } finally {
    await client.close();
  }
}

function explained(error: unknown, name: string): unknown {
  if (error instanceof SignInNeeded)
    return new CommandError(
      `${error.message}; run gatehouse login${name === 'default' ? '' : ` --profile ${name}`}`,
      EXIT.signIn,
    );
  if (error instanceof ServiceRefusal) return new CommandError(error.message, EXIT.signIn);
  if (error instanceof TemporaryTrouble)
    return new CommandError(error.message, error.isOurs ? EXIT.configuration : EXIT.unavailable);
  if (error instanceof TypeError) return new CommandError(error.message, EXIT.configuration);
  return error;
}
