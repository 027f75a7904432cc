import type { NameSource } from '../ports/directory.ts';

/** What is typed at sign-in: the same name in any case. */
export const foldUserName = (name: string): string => name.normalize('NFC').toLowerCase();

/**
 * A typed name in the form in which attempts are counted: LDAP servers ignore outer and repeated spaces (RFC 4518 §2.6.1),
 * and compatibility forms of letters.
 */
export const looseUserName = (name: string): string =>
  name.normalize('NFKC').toLowerCase().replace(/\s+/g, ' ').trim();

/** A certificate's name in the form in which it is compared. */
export function foldCertificateName(source: NameSource, name: string): string {
  const text = name.normalize('NFC');
  switch (source) {
    case 'commonName':
      return text;
    case 'email': {
      // RFC 5321 §2.4: only the domain's owner knows whether case matters before the @.
      const at = text.lastIndexOf('@');
      return text.slice(0, at + 1) + text.slice(at + 1).toLowerCase();
    }
    case 'userPrincipalName':
      return text.toLowerCase();
  }
}
