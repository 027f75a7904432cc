import { findUriProblem, getTrustDomain, isSpiffeUri } from '../domain/certificate-uri.ts';
import { findDnsNameProblem, isInDomain } from '../domain/dns-name.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import type { NameSource } from '../ports/directory.ts';
import type { NameRule } from './approved-issuer.ts';
import type { CertificateFacts } from './certificate-facts.ts';
import type { DecodedText } from './der.ts';

const MAX_NAME = 256;

const LABELS = {
  commonName: 'common name',
  email: 'email address',
  userPrincipalName: 'user principal name',
  dnsName: 'DNS name',
  uri: 'URI',
} as const satisfies Record<NameSource, string>;

const getNames = (facts: CertificateFacts, source: NameSource): readonly DecodedText[] =>
  ({
    commonName: facts.commonNames,
    email: facts.emails,
    userPrincipalName: facts.userPrincipalNames,
    dnsName: facts.dnsNames,
    uri: facts.uris,
  })[source];

/** The name from the configured source, without fallback to another. Ambiguous names are refused. */
export function getCertificateName(facts: CertificateFacts, rule: NameRule, asciiNames: boolean): Outcome<string> {
  const { identityFrom: source, dnsDomain } = rule;
  const unusable = (detail: string): Outcome<never> => refused({ reason: 'certificate_name_unusable', detail });
  const label = dnsDomain === undefined ? LABELS[source] : `${LABELS[source]} in ${dnsDomain}`;
  const [value, ...more] = selectNames(getNames(facts, source), rule);
  if (value === undefined) return unusable(`it has no ${label}`);
  if (more.length > 0) return unusable(`it has more than one ${label}`);
  if (!value.ok) return unusable(`its ${label} cannot be used: ${value.problem}`);
  const name = asciiNames ? value.text : value.text.normalize('NFC');
  const problem = findProblem(name, rule, asciiNames);
  return problem === undefined ? ok(normalizeName(source, name)) : unusable(`its ${label} ${problem}`);
}

/** The rule for DNS names. Names that cannot be decoded are kept, since they could be in the domain. */
function selectNames(names: readonly DecodedText[], { dnsDomain }: NameRule): readonly DecodedText[] {
  return dnsDomain === undefined
    ? names
    : names.filter((name) => !name.ok || isInDomain(name.text.toLowerCase(), dnsDomain));
}

function findProblem(name: string, rule: NameRule, asciiNames: boolean): string | undefined {
  switch (rule.identityFrom) {
    case 'commonName':
    case 'userPrincipalName':
      return findTextProblem(name, asciiNames);
    case 'email':
      return findTextProblem(name, asciiNames) ?? findEmailProblem(name);
    case 'dnsName':
      return findDnsNameProblem(name);
    case 'uri':
      return findUriProblem(name) ?? findTrustDomainProblem(name, rule.trustDomain);
  }
}

function findTextProblem(name: string, asciiOnly: boolean): string | undefined {
  if (name.trim() === '') return 'is empty';
  if (name.length > MAX_NAME) return `is longer than ${MAX_NAME} characters`;
  // Control, format (zero width, bidirectional), unassigned and private-use characters, lone surrogates, line separators.
  if (/[\p{C}\p{Zl}\p{Zp}]/u.test(name)) return 'contains control characters';
  if (name !== name.trim()) return 'begins or ends with a space';
  if (name.includes('*')) return 'contains a wildcard';
  if (asciiOnly && /[^\x20-\x7e]/.test(name)) return 'contains non-ASCII characters';
  return undefined;
}

/** One CA must not assert the workloads of another trust domain, so a trust domain is never taken from the certificate. */
function findTrustDomainProblem(uri: string, trustDomain: string | undefined): string | undefined {
  if (trustDomain === undefined)
    return isSpiffeUri(uri) ? 'is a SPIFFE ID, and its issuer has no trust domain' : undefined;
  if (!isSpiffeUri(uri)) return 'is not a SPIFFE ID';
  return getTrustDomain(uri) === trustDomain ? undefined : 'is not in the trust domain of its issuer';
}

/** RFC 5321 §4.1.2 without quoted local parts, since other programs take their commas and spaces for separators. */
const MAILBOX =
  /^[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'+/=?^_`{|}~-]+)*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*$/;

const findEmailProblem = (name: string): string | undefined =>
  MAILBOX.test(name) ? undefined : 'is not a plain mailbox (local-part@domain)';

function normalizeName(source: NameSource, name: string): string {
  if (source === 'email') return lowercaseDomain(name);
  return source === 'dnsName' ? name.toLowerCase() : name;
}

/** RFC 5321 §2.4: domains are case-insensitive; local parts are interpreted by their domain only. */
const lowercaseDomain = (address: string): string => {
  const at = address.lastIndexOf('@');
  return address.slice(0, at) + address.slice(at).toLowerCase();
};

/**
 * Whether the sources that are not configured contain names of other people. Certificates of workloads have DNS names beside
 * their URI, and a common name that nothing uses.
 */
export function hasDifferingNames(facts: CertificateFacts, source: NameSource, name: string): boolean {
  if (source === 'uri') return false;
  const normalize = (text: string): string => text.normalize('NFC').toLowerCase();
  const localPart = (text: string): string => normalize(text).replace(/@.*$/s, '');
  return [facts.commonNames, facts.emails, facts.userPrincipalNames]
    .filter((values) => values !== getNames(facts, source))
    .flat()
    .some(
      (value) => !value.ok || (normalize(value.text) !== normalize(name) && localPart(value.text) !== localPart(name)),
    );
}
