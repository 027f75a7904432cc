import { hash } from 'node:crypto';
import type { Person } from '../domain/person.ts';
import type { Directory, NameSource } from '../ports/directory.ts';
import { foldCertificateName } from './name-forms.ts';

/**
 * No list: whoever the CA names is known, for workloads whose CA is the directory.
 *
 * The id is the lower-case hex SHA-256 of `<source>:<name>` in UTF-8, where source is `commonName`, `email` or
 * `userPrincipalName` and the name is in the form in which names are compared (NFC; the domain of an e-mail
 * address and a whole UPN in lower case). It can be computed beforehand for access lists:
 *
 *   printf 'commonName:billing-worker' | sha256sum
 */
const derivedId = (source: NameSource, name: string): string =>
  hash('sha256', `${source}:${foldCertificateName(source, name)}`, 'hex');

/**
 * Of somebody an OpenID provider vouches for: SHA-256 of `subject:<issuer> <claim>`. No name in a certificate has
 * this form, and no other issuer can say it.
 */
export const subjectId = (issuer: string, value: string): string =>
  hash('sha256', `subject:${issuer} ${value}`, 'hex');

export function derivedDirectory(name: string, label: string): Directory {
  const person = (id: string, displayName: string): Person => ({
    identity: `${label}:${id}`,
    displayName,
    directory: name,
    groups: new Set(),
    disabled: false,
  });
  return {
    name,
    label,
    takesPasswords: false,
    byCertificateName: async (source, text) => person(derivedId(source, text), text),
    byClaim: async ({ issuer, means, value }) =>
      means === 'subject' ? person(subjectId(issuer, value), value) : undefined,
    // A digest does not tell its name, so here the id is shown.
    byId: async (id) => (/^[0-9a-f]{64}$/.test(id) ? person(id, id) : undefined),
    signIn: async () => undefined,
    close: async () => {},
  };
}
