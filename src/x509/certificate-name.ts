import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { NameSource } from '../ports/directory.ts';
import type { CertificateFacts } from './certificate-facts.ts';
import type { DecodedText } from './der.ts';

const MAX_NAME = 256;

const LABELS = {
  commonName: 'common name',
  email: 'e-mail address',
  userPrincipalName: 'user principal name',
} as const satisfies Record<NameSource, string>;

const getNames = (facts: CertificateFacts, source: NameSource): readonly DecodedText[] =>
  ({
    commonName: facts.commonNames,
    email: facts.emails,
    userPrincipalName: facts.userPrincipalNames,
  })[source];

/** The name from the configured source, without fallback to another. Ambiguous names are refused. */
export function getCertificateName(
  facts: CertificateFacts,
  source: NameSource,
  asciiNames: boolean,
): Outcome<string> {
  const unusable = (detail: string): Outcome<never> =>
    refused({ reason: 'certificate_name_unusable', detail });
  const [value, ...more] = getNames(facts, source);
  if (value === undefined) return unusable(`it has no ${LABELS[source]}`);
  if (more.length > 0) return unusable(`it has more than one ${LABELS[source]}`);
  if (!value.ok) return unusable(`its ${LABELS[source]} cannot be used: ${value.problem}`);
  const name = asciiNames ? value.text : value.text.normalize('NFC');
  const problem =
    findNameProblem(name, asciiNames) ?? (source === 'email' ? findEmailProblem(name) : undefined);
  if (problem !== undefined) return unusable(`its ${LABELS[source]} ${problem}`);
  return ok(source === 'email' ? lowercaseDomain(name) : name);
}

function findNameProblem(name: string, asciiOnly: boolean): string | undefined {
  if (name.trim() === '') return 'is empty';
  if (name.length > MAX_NAME) return `is longer than ${MAX_NAME} characters`;
  // Control, format (zero width, bidirectional), unassigned and private-use characters, lone surrogates, line separators.
  if (/[\p{C}\p{Zl}\p{Zp}]/u.test(name)) return 'contains control characters';
  if (name !== name.trim()) return 'begins or ends with a space';
  if (name.includes('*')) return 'contains a wildcard';
  if (asciiOnly && /[^\x20-\x7e]/.test(name)) return 'contains non-ASCII characters';
  return undefined;
}

/** RFC 5321 §4.1.2 without quoted local parts, since other programs take their commas and spaces for separators. */
const MAILBOX =
  /^[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+)*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*$/;

const findEmailProblem = (name: string): string | undefined =>
  MAILBOX.test(name) ? undefined : 'is not a plain mailbox (local-part@domain)';

/** RFC 5321 §2.4: domains are case-insensitive; local parts are interpreted by their domain only. */
const lowercaseDomain = (address: string): string => {
  const at = address.lastIndexOf('@');
  return address.slice(0, at) + address.slice(at).toLowerCase();
};

/** Whether the sources that are not configured contain other names. */
export function hasDifferingNames(facts: CertificateFacts, source: NameSource, name: string): boolean {
  const normalize = (text: string): string => text.normalize('NFC').toLowerCase();
  const localPart = (text: string): string => normalize(text).replace(/@.*$/s, '');
  return [facts.commonNames, facts.emails, facts.userPrincipalNames]
    .filter((values) => values !== getNames(facts, source))
    .flat()
    .some(
      (value) =>
        !value.ok || (normalize(value.text) !== normalize(name) && localPart(value.text) !== localPart(name)),
    );
}
