import type { NameSource } from '../ports/directory.ts';

/** User names are case-insensitive. */
export const normalizeUserName = (name: string): string => name.normalize('NFC').toLowerCase();

/**
 * The form in which failed attempts are counted: LDAP servers ignore leading, trailing and repeated spaces
 * (RFC 4518 §2.6.1) and compatibility forms of characters.
 */
export const normalizeUserNameLoosely = (name: string): string =>
  name.normalize('NFKC').toLowerCase().replace(/\s+/g, ' ').trim();

/** The form in which names in certificates are compared. */
export function normalizeCertificateName(source: NameSource, name: string): string {
  const text = name.normalize('NFC');
  switch (source) {
    case 'commonName':
    case 'uri':
      return text;
    case 'email': {
      // RFC 5321 §2.4: the local part may be case-sensitive.
      const at = text.lastIndexOf('@');
      return text.slice(0, at + 1) + text.slice(at + 1).toLowerCase();
    }
    case 'userPrincipalName':
    case 'dnsName':
      return text.toLowerCase();
  }
}
