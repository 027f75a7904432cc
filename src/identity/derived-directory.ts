import { hash } from 'node:crypto';
import type { User } from '../domain/user.ts';
import type { Directory, NameSource } from '../ports/directory.ts';
import { normalizeCertificateName } from './name-normalization.ts';

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
