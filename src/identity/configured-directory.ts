import type { Person } from '../domain/person.ts';
import { type Directory, NAME_SOURCES, type NameSource, unguarded } from '../ports/directory.ts';
import { braced } from './ldap-ids.ts';
import { foldCertificateName, foldUserName, looseUserName } from './name-forms.ts';
import { decoyHash, type Passwords } from './passwords.ts';

export interface ConfiguredUser {
  readonly id: string;
  readonly name: string;
  readonly displayName?: string;
  readonly commonName?: string;
  readonly email?: string;
  readonly userPrincipalName?: string;
  readonly groups: readonly string[];
  readonly disabled: boolean;
  readonly passwordHash?: string;
}

/**
 * People listed in the configuration file. Each is found under the names written there and no others. Two people
 * under one name are a mistake of the configuration: then the name stands for nobody.
 */
export function configuredDirectory(
  name: string,
  label: string,
  users: readonly ConfiguredUser[],
  passwords: Passwords,
): Directory {
  const personOf = (user: ConfiguredUser): Person => ({
    identity: `${label}:${user.id}`,
    displayName: user.displayName ?? user.name,
    directory: name,
    groups: new Set(user.groups),
    disabled: user.disabled,
  });
  const index = (
    keyOf: (user: ConfiguredUser) => string | undefined,
  ): ReadonlyMap<string, ConfiguredUser> => {
    const found = new Map<string, ConfiguredUser>();
    const twice = new Set<string>();
    for (const user of users) {
      const key = keyOf(user);
      if (key === undefined) continue;
      if (found.has(key)) twice.add(key);
      found.set(key, user);
    }
    for (const key of twice) found.delete(key);
    return found;
  };

  const byId = index(({ id }) => id.toLowerCase());
  const byUserName = index((user) => foldUserName(user.name));
  const byLooseName = index((user) => looseUserName(user.name));
  const byName = Object.fromEntries(
    NAME_SOURCES.map((source) => [
      source,
      index(({ [source]: value }) => (value === undefined ? undefined : foldCertificateName(source, value))),
    ]),
  ) as Record<NameSource, ReadonlyMap<string, ConfiguredUser>>;
  const anyHash = users.find(({ passwordHash }) => passwordHash !== undefined)?.passwordHash;
  const decoy = decoyHash(anyHash);
  const found = (user: ConfiguredUser | undefined): Person | undefined => user && personOf(user);

  return {
    name,
    label,
    takesPasswords: anyHash !== undefined,
    byCertificateName: async (source, text) => found(byName[source].get(foldCertificateName(source, text))),
    async byClaim({ means, value }) {
      switch (means) {
        case 'userName':
          return found(byUserName.get(foldUserName(value)));
        case 'id':
          return found(byId.get(value.toLowerCase()) ?? byId.get(braced(value) ?? ''));
        case 'subject':
          return undefined;
        case 'commonName':
        case 'email':
        case 'userPrincipalName':
          return found(byName[means].get(foldCertificateName(means, value)));
      }
    },
    byId: async (id) => found(byId.get(id.toLowerCase())),
    async signIn(userName, password, guard = unguarded) {
      // No user has a password: the same for every name.
      if (anyHash === undefined) return undefined;
      const user = byUserName.get(foldUserName(userName));
      // A spelling that cannot sign in counts for the user too: otherwise its budget would show that there is one.
      const { id } = user ?? byLooseName.get(looseUserName(userName)) ?? {};
      return guard({ directory: name, id }, async () => {
        const right = await passwords.verify(password, user?.passwordHash ?? decoy);
        return right && user?.passwordHash !== undefined ? personOf(user) : undefined;
      });
    },
    close: async () => {},
  };
}
