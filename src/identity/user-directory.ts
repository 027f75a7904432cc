import type { User } from '../domain/user.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { Claim, Directory, NameSource, PasswordGuard } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';
import { createLdapDirectory, type LdapSettings } from './ldap-directory.ts';
import { type ConfiguredUser, createConfiguredDirectory, createDerivedDirectory } from './local-directories.ts';
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

/** All configured directories. Throws an `Error` that names the setting if a file or a password hash cannot be used. */
export function createUserDirectory(
  settings: Readonly<Record<string, DirectorySettings>>,
  passwordHasher: PasswordHasher = sharedPasswordHasher,
  onGroupsTruncated?: (directory: string, groups: number) => void,
) {
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
    findByClaim: async (directory: string, claim: Claim): Promise<User | undefined> =>
      byName.get(directory)?.findByClaim(claim),
    findByCertificateName: async (directory: string, source: NameSource, name: string): Promise<User | undefined> =>
      byName.get(directory)?.findByCertificateName(source, name),
    /** By `<label>:<id>`. */
    async findByIdentity(identity: string): Promise<User | undefined> {
      const colon = identity.indexOf(':');
      return colon < 0 ? undefined : byLabel.get(identity.slice(0, colon))?.findById(identity.slice(colon + 1));
    },
    /**
     * Tries the directories in order; the first that accepts name and password wins. An unreachable directory does not prevent
     * users of another from signing in; if no other accepts them, its `Fault` is thrown. `guard` is called once for each
     * reachable directory that supports passwords.
     */
    async signIn(userName: string, password: string, guard?: PasswordGuard): Promise<User | undefined> {
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
    async close(): Promise<void> {
      await Promise.all(directories.map((directory) => directory.close()));
    },
  };
}

export type UserDirectory = ReturnType<typeof createUserDirectory>;

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
