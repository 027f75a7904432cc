import { granted, type Outcome, refused } from '../domain/outcome.ts';
import type { NameSource } from '../ports/directory.ts';
import type { CertificateFacts } from './certificate-facts.ts';
import type { ReadText } from './der.ts';

const MAX_NAME = 256;

const WORDS = {
  commonName: 'common name',
  email: 'e-mail address',
  userPrincipalName: 'user principal name',
} as const satisfies Record<NameSource, string>;

const valuesOf = (facts: CertificateFacts, source: NameSource): readonly ReadText[] =>
  ({
    commonName: facts.commonNames,
    email: facts.emails,
    userPrincipalName: facts.userPrincipalNames,
  })[source];

/**
 * The one name a certificate gives its holder, from the one source that is configured. There is no falling back
 * from one source to another, and a name that could be read in two ways is none.
 */
export function nameOf(facts: CertificateFacts, source: NameSource, asciiNames: boolean): Outcome<string> {
  const unclear = (detail: string): Outcome<never> => refused({ reason: 'certificate_name_unclear', detail });
  const [value, ...more] = valuesOf(facts, source);
  if (value === undefined) return unclear(`it carries no ${WORDS[source]}`);
  if (more.length > 0) return unclear(`it carries more than one ${WORDS[source]}`);
  if (!value.ok) return unclear(`its ${WORDS[source]} cannot be used: ${value.problem}`);
  const name = asciiNames ? value.text : value.text.normalize('NFC');
  const flaw = flawOf(name, asciiNames) ?? (source === 'email' ? emailFlaw(name) : undefined);
  if (flaw !== undefined) return unclear(`its ${WORDS[source]} ${flaw}`);
  return granted(source === 'email' ? foldDomain(name) : name);
}

function flawOf(name: string, asciiOnly: boolean): string | undefined {
  if (name.trim() === '') return 'is empty';
  if (name.length > MAX_NAME) return `is longer than ${MAX_NAME} characters`;
  // Control, format (zero width, direction), unassigned and private characters, lone surrogates, line separators.
  if (/[\p{C}\p{Zl}\p{Zp}]/u.test(name)) return 'holds control characters';
  if (name !== name.trim()) return 'begins or ends with a space';
  if (name.includes('*')) return 'holds a wildcard';
  if (asciiOnly && /[^\x20-\x7e]/.test(name)) return 'holds characters outside ASCII';
  return undefined;
}

/** RFC 5321 §4.1.2 without quoted local parts, whose commas and spaces other programs take for separators. */
const MAILBOX =
  /^[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+)*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*$/;

const emailFlaw = (name: string): string | undefined =>
  MAILBOX.test(name) ? undefined : 'is not a plain mailbox (local-part@domain)';

/** The domain is the same in any case; the part before it belongs to the domain and is left alone (RFC 5321 §2.4). */
const foldDomain = (address: string): string => {
  const at = address.lastIndexOf('@');
  return address.slice(0, at) + address.slice(at).toLowerCase();
};

/** Does the certificate, in the sources that were not asked, name somebody else? */
export function namesDiffer(facts: CertificateFacts, source: NameSource, name: string): boolean {
  const plain = (text: string): string => text.normalize('NFC').toLowerCase();
  const localPart = (text: string): string => plain(text).replace(/@.*$/s, '');
  return [facts.commonNames, facts.emails, facts.userPrincipalNames]
    .filter((values) => values !== valuesOf(facts, source))
    .flat()
    .some(
      (value) =>
        !value.ok || (plain(value.text) !== plain(name) && localPart(value.text) !== localPart(name)),
    );
}
