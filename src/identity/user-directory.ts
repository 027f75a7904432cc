import { readSettingFile } from '../lib/read-file.ts';
import type { Directory, UserDirectory } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';
import { type ConfiguredUser, createConfiguredDirectory } from './configured-directory.ts';
import { createDerivedDirectory } from './derived-directory.ts';
import { createLdapDirectory, type LdapSettings } from './ldap-directory.ts';
import { createPasswordHasher, type PasswordHasher, parsePasswordHash } from './password-hasher.ts';

export interface DirectorySettings {
  readonly label: string;
  readonly users: readonly (ConfiguredUser & { readonly passwordHashFile?: string })[];
  readonly derive: boolean;
  /** `ca` is a file name here. */
  readonly ldap?: LdapSettings;
}

/** One per process: a reload must not raise the number of concurrent computations. */
const sharedPasswordHasher = createPasswordHasher();

/** Throws an `Error` that names the setting if a file or a password hash cannot be used. */
export function createUserDirectory(
  settings: Readonly<Record<string, DirectorySettings>>,
  passwordHasher: PasswordHasher = sharedPasswordHasher,
  onGroupsTruncated?: (directory: string, groups: number) => void,
): UserDirectory {
  const directories = Object.entries(settings).map(([name, { label, derive, users, ldap }]): Directory => {
    if (derive) return createDerivedDirectory(name, label);
    const path = `directories.${name}`;
    if (ldap !== undefined)
      return createLdapDirectory(name, label, loadLdapSettings(ldap, `${path}.ldap`), onGroupsTruncated);
    const usersWithHashes = users.map((user, index) => loadPasswordHash(user, `${path}.users[${index}]`));
    return createConfiguredDirectory(name, label, usersWithHashes, passwordHasher);
  });
  const byName = new Map(directories.map((directory) => [directory.name, directory]));
  const byLabel = new Map(directories.map((directory) => [directory.label, directory]));

  return {
    supportsPasswords: directories.some(({ supportsPasswords }) => supportsPasswords),
    findByClaim: async (directory, claim) => byName.get(directory)?.findByClaim(claim),
    async close() {
      await Promise.all(directories.map((directory) => directory.close()));
    },
    findByCertificateName: async (directory, source, name) =>
      byName.get(directory)?.findByCertificateName(source, name),
    async findByIdentity(identity) {
      const colon = identity.indexOf(':');
      return colon < 0 ? undefined : byLabel.get(identity.slice(0, colon))?.findById(identity.slice(colon + 1));
    },
    async signIn(userName, password, guard) {
      let firstFault: Fault | undefined;
      for (const directory of directories) {
        try {
          const user = await directory.signIn(userName, password, guard);
          if (user !== undefined) return user;
        } catch (error) {
          if (!(error instanceof Fault)) throw error;
          firstFault ??= error;
        }
      }
      if (firstFault !== undefined) throw firstFault;
      return undefined;
    },
  };
}

const loadLdapSettings = ({ ca, ...ldap }: LdapSettings, settingPath: string): LdapSettings => ({
  ...ldap,
  ...(ca !== undefined && { ca: readSettingFile(`${settingPath}.ca`, ca) }),
});

function loadPasswordHash(user: DirectorySettings['users'][number], settingPath: string): ConfiguredUser {
  const { passwordHashFile, ...rest } = user;
  const passwordHash =
    rest.passwordHash ?? readSettingFile(`${settingPath}.passwordHashFile`, passwordHashFile)?.trim();
  if (passwordHash === undefined) return rest;
  if (parsePasswordHash(passwordHash) === undefined)
    throw new Error(`${settingPath}.passwordHash is not a valid hash; create one with gatehouse hash-password`);
  return { ...rest, passwordHash };
}
