const MAX_LENGTH = 253;
/** RFC 1123 §2.1. */
const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/i;

/** Why a text is not a host name (RFC 5280 §4.2.1.6: the preferred name syntax, without a final dot); undefined if it is. */
export function findDnsNameProblem(name: string): string | undefined {
  if (name.includes('*')) return 'contains a wildcard';
  if (name.length > MAX_LENGTH) return `is longer than ${MAX_LENGTH} characters`;
  const labels = name.split('.');
  if (!labels.every((label) => LABEL.test(label))) return 'is not a host name';
  return /^\d+$/.test(labels.at(-1) ?? '') ? 'ends with a number, like an IP address' : undefined;
}

/** Is the name the domain or below it? Both in lower case. */
export const isInDomain = (name: string, domain: string): boolean => name === domain || name.endsWith(`.${domain}`);
