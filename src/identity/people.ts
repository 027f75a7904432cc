import { readFileSync } from 'node:fs';
import type { Directory, People } from '../ports/directory.ts';
import { type ConfiguredUser, configuredDirectory } from './configured-directory.ts';
import { derivedDirectory } from './derived-directory.ts';
import { createPasswords, type Passwords, readPasswordHash } from './passwords.ts';

/** A directory as the configuration file describes it. */
export interface DirectorySettings {
  readonly label: string;
  readonly users: readonly (ConfiguredUser & { readonly passwordHashFile?: string })[];
  readonly derive: boolean;
}

/** One turnstile for the process: a new configuration does not make room for more computations at once. */
const shared = createPasswords();

/** Throws an `Error` that names the setting when a password hash cannot be used. */
export function createPeople(
  settings: Readonly<Record<string, DirectorySettings>>,
  passwords: Passwords = shared,
): People {
  const directories = Object.entries(settings).map(
    ([name, { label, derive, users }]): Directory =>
      derive
        ? derivedDirectory(name, label)
        : configuredDirectory(
            name,
            label,
            users.map((user, index) => withHash(user, `directories.${name}.users[${index}]`)),
            passwords,
          ),
  );
  const byName = new Map(directories.map((directory) => [directory.name, directory]));
  const byLabel = new Map(directories.map((directory) => [directory.label, directory]));

  return {
    byCertificateName: async (directory, source, name) =>
      byName.get(directory)?.byCertificateName(source, name),
    async byIdentity(identity) {
      const colon = identity.indexOf(':');
      return colon < 0 ? undefined : byLabel.get(identity.slice(0, colon))?.byId(identity.slice(colon + 1));
    },
    async signIn(userName, password) {
      for (const directory of directories) {
        const person = await directory.signIn(userName, password);
        if (person !== undefined) return person;
      }
      return undefined;
    },
  };
}

function withHash(user: DirectorySettings['users'][number], path: string): ConfiguredUser {
  const { passwordHashFile, ...rest } = user;
  const passwordHash =
    rest.passwordHash ?? (passwordHashFile === undefined ? undefined : hashIn(passwordHashFile, path));
  if (passwordHash === undefined) return rest;
  if (readPasswordHash(passwordHash) === undefined)
    throw new Error(
      `${path}.passwordHash is not a hash that can be used; make it with gatehouse hash-password`,
    );
  return { ...rest, passwordHash };
}

function hashIn(file: string, path: string): string {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch (error) {
    throw new Error(`${path}.passwordHashFile cannot be read: ${(error as NodeJS.ErrnoException).code}`, {
      cause: error,
    });
  }
}
