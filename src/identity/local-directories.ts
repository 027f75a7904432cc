import { hash } from 'node:crypto';
import type { User } from '../domain/user.ts';
import { type Directory, NAME_SOURCES, type NameSource, unguarded } from '../ports/directory.ts';
import { normalizeCertificateName, normalizeUserName, normalizeUserNameLoosely } from './name-normalization.ts';
import { createDecoyHash, type PasswordHasher } from './password-hasher.ts';
import { getUserId, normalizeGuid, toIdentityId } from './user-id.ts';

export interface ConfiguredUser {
  /** Any text; omitted: derived from the name. */
  readonly id?: string;
  readonly name: string;
  readonly displayName?: string;
  readonly commonName?: string;
  readonly email?: string;
  readonly userPrincipalName?: string;
  readonly dnsName?: string;
  readonly uri?: string;
  readonly groups: readonly string[];
  readonly disabled: boolean;
  readonly passwordHash?: string;
}

/** Users listed in the configuration. If two users share a name, neither is found by it. */
export function createConfiguredDirectory(
  name: string,
  label: string,
  configuredUsers: readonly ConfiguredUser[],
  passwordHasher: PasswordHasher,
): Directory {
  const users = configuredUsers.map((user) => ({ ...user, id: getUserId(user) }));
  const toUser = (user: IdentifiedUser | undefined): User | undefined =>
    user && {
      identity: `${label}:${user.id}`,
      displayName: user.displayName ?? user.name,
      userName: user.name,
      ...(user.email !== undefined && { email: user.email }),
      directory: name,
      groups: new Set(user.groups),
      disabled: user.disabled,
    };
  const indexUsers = (getKey: KeyReader): UserIndex => createIndex(users, getKey);

  const byId = indexUsers(({ id }) => id.toLowerCase());
  const byUserName = indexUsers((user) => normalizeUserName(user.name));
  const byLooseName = indexUsers((user) => normalizeUserNameLoosely(user.name));
  const byName = Object.fromEntries(
    NAME_SOURCES.map((source) => [
      source,
      indexUsers(({ [source]: value }) => (value === undefined ? undefined : normalizeCertificateName(source, value))),
    ]),
  ) as Record<NameSource, UserIndex>;
  const anyHash = users.find(({ passwordHash }) => passwordHash !== undefined)?.passwordHash;
  const decoy = createDecoyHash(anyHash);

  return {
    name,
    label,
    supportsPasswords: anyHash !== undefined,
    findByCertificateName: async (source, text) => toUser(byName[source].get(normalizeCertificateName(source, text))),
    async findByClaim({ attribute, value }) {
      switch (attribute) {
        case 'userName':
          return toUser(byUserName.get(normalizeUserName(value)));
        case 'id':
          return toUser(
            byId.get(value.toLowerCase()) ??
              byId.get(normalizeGuid(value) ?? '') ??
              byId.get(toIdentityId(value).toLowerCase()),
          );
        case 'subject':
          return undefined;
        case 'commonName':
        case 'email':
        case 'userPrincipalName':
          return toUser(byName[attribute].get(normalizeCertificateName(attribute, value)));
      }
    },
    findById: async (id) => toUser(byId.get(id.toLowerCase())),
    async signIn(userName, password, guard = unguarded) {
      if (anyHash === undefined) return undefined;
      const user = byUserName.get(normalizeUserName(userName));
      // Other spellings of a name count against the user too; a separate budget would reveal that the user exists.
      const { id } = user ?? byLooseName.get(normalizeUserNameLoosely(userName)) ?? {};
      return guard({ directory: name, id }, async () => {
        const isCorrect = await passwordHasher.verify(password, user?.passwordHash ?? decoy);
        return isCorrect && user?.passwordHash !== undefined ? toUser(user) : undefined;
      });
    },
    close: async () => {},
  };
}

type IdentifiedUser = ConfiguredUser & { readonly id: string };
type UserIndex = ReadonlyMap<string, IdentifiedUser>;
type KeyReader = (user: IdentifiedUser) => string | undefined;

/** Without users whose key is not unique. */
function createIndex(users: readonly IdentifiedUser[], getKey: KeyReader): UserIndex {
  const groups = Map.groupBy(users, getKey);
  return new Map(
    [...groups].flatMap(([key, [user, ...others]]) =>
      key === undefined || user === undefined || others.length > 0 ? [] : [[key, user]],
    ),
  );
}

/**
 * The id is the lower-case hex SHA-256 of `<source>:<name>` in UTF-8, where source is `commonName`, `email`,
 * `userPrincipalName`, `dnsName` or `uri` and the name is normalized (NFC; the domain of an e-mail address, a whole UPN and a
 * DNS name in lower case).
 * Operators can compute it for access lists:
 *
 *   printf 'commonName:billing-worker' | sha256sum
 */
const deriveId = (source: NameSource, name: string): string =>
  hash('sha256', `${source}:${normalizeCertificateName(source, name)}`, 'hex');

/** The id of an OpenID user. It cannot collide with a name in a certificate or with a claim of another issuer. */
export const deriveSubjectId = (issuer: string, value: string): string =>
  hash('sha256', `subject:${issuer} ${value}`, 'hex');

/** A directory without a list of users: every name in a trusted certificate is a user. For workloads. */
export function createDerivedDirectory(name: string, label: string): Directory {
  const createUser = (id: string, userName?: string): User => ({
    identity: `${label}:${id}`,
    // The name cannot be derived from the digest: show the id.
    displayName: userName ?? id,
    ...(userName !== undefined && { userName }),
    directory: name,
    groups: new Set(),
    disabled: false,
  });
  return {
    name,
    label,
    supportsPasswords: false,
    findByCertificateName: async (source, text) => createUser(deriveId(source, text), text),
    findByClaim: async ({ issuer, attribute, value }) =>
      attribute === 'subject' ? createUser(deriveSubjectId(issuer, value), value) : undefined,
    findById: async (id) => (/^[0-9a-f]{64}$/.test(id) ? createUser(id) : undefined),
    signIn: async () => undefined,
    close: async () => {},
  };
}
