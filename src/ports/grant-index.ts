import type { Grant } from '../domain/grant.ts';

/**
 * Lists stored grants in pages, for display and administration. It is never used to authorize a token.
 *
 * Every grant that exists from the first page to the last is listed, including ended grants whose records are still
 * kept. A grant created meanwhile may be missing, and a grant may be listed twice.
 */
export interface GrantIndex {
  list(query: GrantQuery): Promise<GrantPage>;
}

export interface GrantQuery {
  /** Only grants of this identity; indexed. */
  readonly identity?: string;
  /** Only grants of this client; scans all grants. */
  readonly clientId?: string;
  /** Only grants with all of these; scans all grants. */
  readonly filter?: GrantFilter;
  /** `next` of the previous page. */
  readonly after?: string;
  /** Approximate page size: a page may be shorter, even empty, and still not be the last. */
  readonly limit: number;
}

export interface GrantFilter {
  /** It is compared without letter case, like `email`. */
  readonly name?: string;
  readonly email?: string;
  /** The serial number is normalized (`normalizeSerial`). */
  readonly serial?: string;
  /** SHA-256, base64url. */
  readonly fingerprint?: string;
  readonly subject?: string;
  readonly prefix?: GrantPrefix;
}

/** The beginning of a field. */
export interface GrantPrefix {
  readonly field: 'identity' | 'client' | 'name' | 'email' | 'subject';
  readonly text: string;
}

export interface GrantPage {
  readonly grants: readonly Grant[];
  /** Cursor of the next page; absent on the last. */
  readonly next?: string;
}

export const matchesQuery = (grant: Grant, { identity, clientId, filter = {} }: GrantQuery): boolean =>
  (identity === undefined || grant.identity === identity) &&
  (clientId === undefined || grant.clientId === clientId) &&
  matchesFilter(grant, filter);

const matchesFilter = (grant: Grant, { name, email, serial, fingerprint, subject, prefix }: GrantFilter): boolean => {
  const { profile, certificate, boundTo } = grant;
  return (
    (name === undefined || isSameText(profile?.name, name)) &&
    (email === undefined || isSameText(profile?.email, email)) &&
    (serial === undefined || certificate?.serial === serial) &&
    (fingerprint === undefined || (certificate?.fingerprint ?? boundTo) === fingerprint) &&
    (subject === undefined || certificate?.subject === subject) &&
    (prefix === undefined || foldCase(readField(grant, prefix)).startsWith(foldCase(prefix.text)))
  );
};

function readField({ identity, clientId, profile, certificate }: Grant, { field }: GrantPrefix): string {
  if (field === 'name' || field === 'email') return profile?.[field] ?? '';
  return { identity, client: clientId, subject: certificate?.subject ?? '' }[field];
}

const foldCase = (text: string): string => text.normalize('NFC').toLowerCase();

const isSameText = (one: string | undefined, other: string): boolean =>
  one !== undefined && foldCase(one) === foldCase(other);
