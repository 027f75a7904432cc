import { readFileSync } from 'node:fs';
import type { Directory, People } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';
import { type ConfiguredUser, configuredDirectory } from './configured-directory.ts';
import { derivedDirectory } from './derived-directory.ts';
import { type LdapSettings, ldapDirectory } from './ldap-directory.ts';
import { createPasswords, type Passwords, readPasswordHash } from './passwords.ts';

/** A directory as the configuration file describes it. */
export interface DirectorySettings {
  readonly label: string;
  readonly users: readonly (ConfiguredUser & { readonly passwordHashFile?: string })[];
  readonly derive: boolean;
  readonly ldap?: Omit<LdapSettings, 'urls' | 'ca' | 'password'> & {
    readonly url: readonly string[];
    readonly ca?: string;
    readonly password?: string;
  };
}

/** One turnstile for the process: a new configuration does not make room for more computations at once. */
const shared = createPasswords();

/** Throws an `Error` that names the setting when a password hash cannot be used. */
export function createPeople(
  settings: Readonly<Record<string, DirectorySettings>>,
  passwords: Passwords = shared,
  onGroupsCut?: (directory: string, groups: number) => void,
): People {
  const directories = Object.entries(settings).map(([name, { label, derive, users, ldap }]): Directory => {
    if (derive) return derivedDirectory(name, label);
    if (ldap !== undefined)
      return ldapDirectory(name, label, withFiles(ldap, `directories.${name}.ldap`), onGroupsCut);
    const withHashes = users.map((user, index) => withHash(user, `directories.${name}.users[${index}]`));
    return configuredDirectory(name, label, withHashes, passwords);
  });
  const byName = new Map(directories.map((directory) => [directory.name, directory]));
  const byLabel = new Map(directories.map((directory) => [directory.label, directory]));

  return {
    takePasswords: directories.some(({ takesPasswords }) => takesPasswords),
    byClaim: async (directory, claim) => byName.get(directory)?.byClaim(claim),
    async close() {
      await Promise.all(directories.map((directory) => directory.close()));
    },
    byCertificateName: async (directory, source, name) =>
      byName.get(directory)?.byCertificateName(source, name),
    async byIdentity(identity) {
      const colon = identity.indexOf(':');
      return colon < 0 ? undefined : byLabel.get(identity.slice(0, colon))?.byId(identity.slice(colon + 1));
    },
    async signIn(userName, password, guard) {
      let away: Fault | undefined;
      for (const directory of directories) {
        try {
          const person = await directory.signIn(userName, password, guard);
          if (person !== undefined) return person;
        } catch (error) {
          if (!(error instanceof Fault)) throw error;
          away ??= error;
        }
      }
      if (away !== undefined) throw away;
      return undefined;
    },
  };
}

function withFiles(
  { url, ca, password = '', ...rest }: NonNullable<DirectorySettings['ldap']>,
  path: string,
): LdapSettings {
  return { ...rest, urls: url, password, ...(ca !== undefined && { ca: textIn(ca, `${path}.ca`) }) };
}

function withHash(user: DirectorySettings['users'][number], path: string): ConfiguredUser {
  const { passwordHashFile, ...rest } = user;
  const passwordHash =
    rest.passwordHash ??
    (passwordHashFile === undefined
      ? undefined
      : textIn(passwordHashFile, `${path}.passwordHashFile`).trim());
  if (passwordHash === undefined) return rest;
  if (readPasswordHash(passwordHash) === undefined)
    throw new Error(
      `${path}.passwordHash is not a hash that can be used; make it with gatehouse hash-password`,
    );
  return { ...rest, passwordHash };
}

export function textIn(file: string, path: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new Error(`${path} cannot be read: ${(error as NodeJS.ErrnoException).code}`, {
      cause: error,
    });
  }
}
