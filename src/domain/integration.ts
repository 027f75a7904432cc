import { type Outcome, ok, refused } from './refusal.ts';
import { findExcess, formatScope, intersectScopes, type Scope, unionScopes } from './scope.ts';
import { matchesSubject, type SubjectPattern } from './subject-pattern.ts';
import type { User } from './user.ts';

/**
 * How a grant was obtained: by a user or workload with a certificate, by a user who approved a device in a browser, with a token
 * of a trusted issuer, by the client itself with its secret or key, or by a user whom the client redirected (authorization code).
 */
export const GRANT_TYPES = ['certificate', 'device', 'exchange', 'client', 'code'] as const;
export type GrantType = (typeof GRANT_TYPES)[number];

/** Access tokens are self-contained (JWT), or opaque handles that are looked up. */
export const TOKEN_FORMATS = ['jwt', 'opaque'] as const;
export type TokenFormat = (typeof TOKEN_FORMATS)[number];

/** A registered client: its scope, its grant types and who may use it. */
export interface Integration {
  /** Case-sensitive. */
  readonly clientId: string;
  readonly name: string;
  readonly scope: Scope;
  readonly grants: ReadonlySet<GrantType>;
  readonly access: readonly AccessEntry[];
  /** Where authorization responses may be sent; none if omitted. */
  readonly redirectUris?: readonly string[];
  /** If it requests too much, users are asked for the part that is allowed. */
  readonly partialScope?: boolean;
  /** Clients whose ids are URLs on these hosts have its settings; none if omitted. */
  readonly documentHosts?: readonly string[];
  /** It is such a client, with the settings of this one: its redirect URIs are in the document at its client id. */
  readonly templateId?: string;
  readonly accessLifetime: number;
  readonly grantLifetime: number;
  /** Overrides the defaults for its device codes. */
  readonly device?: { readonly codeLifetime?: number; readonly interval?: number };
  /** Key fingerprints of the accepted issuers; all if omitted. */
  readonly issuers?: ReadonlySet<string>;
  readonly bindToCertificate: boolean;
  /** Its tokens are bound to DPoP keys: clients must send a proof. */
  readonly requiresProof?: boolean;
  /** The APIs that its tokens can be for, the default first. Omitted: the public URL. */
  readonly audience?: readonly string[];
  /** SHA-256 of its client secrets, as `hash-secret` prints them. */
  readonly secretHashes?: readonly string[];
  /** It has keys for `private_key_jwt`. */
  readonly hasKeys?: boolean;
  /** Whose tokens of trusted issuers can be exchanged for a grant; none if omitted. */
  readonly exchange?: readonly ExchangeEntry[];
  /** For new access tokens; others stay valid. `jwt` if omitted. */
  readonly tokenFormat?: TokenFormat;
}

/** RFC 6749 §2.1: it has credentials, and must authenticate at the OAuth endpoints. */
export const isConfidential = ({ secretHashes = [], hasKeys = false }: Integration): boolean =>
  secretHashes.length > 0 || hasKeys;

/** An entry of an access list. Entries are additive; users without an entry have no access. */
export interface AccessEntry {
  readonly groups: ReadonlySet<string>;
  readonly identities: ReadonlySet<string>;
  readonly directory?: string;
  /** Restricts the scope of the integration. */
  readonly scope?: Scope;
  /** Restricts the grant types. */
  readonly grants?: ReadonlySet<GrantType>;
}

/** Tokens of a trusted issuer that can be exchanged for a grant. Entries are additive. */
interface ExchangeEntry {
  /** The configured name of the trusted issuer. */
  readonly issuer: string;
  readonly subject: SubjectPattern;
  /** Claims that the token must have: a pattern for a text, or a truth value. */
  readonly claims: ReadonlyMap<string, SubjectPattern | boolean>;
  /** Restricts the scope of the integration. */
  readonly scope?: Scope;
  /** Returns a refresh token. */
  readonly refresh: boolean;
  /** Accepts each `jti` once, and no token without one. */
  readonly once: boolean;
}

/** What exchange entries are compared with. */
interface ExchangeSubject {
  readonly issuer: string;
  readonly subject: string;
  /** Undefined where the claims are no longer known: at a refresh. */
  readonly readClaim?: (path: string) => unknown;
}

function matchesClaim(expected: SubjectPattern | boolean, value: unknown): boolean {
  if (typeof expected === 'boolean') return value === expected;
  const values: readonly unknown[] = Array.isArray(value) ? value : [value];
  return values.some((text) => typeof text === 'string' && matchesSubject(expected, text));
}

/** The first claim that does not match. */
function findClaimMismatch({ claims }: ExchangeEntry, { readClaim }: ExchangeSubject): string | undefined {
  if (readClaim === undefined) return undefined;
  return claims.entries().find(([path, expected]) => !matchesClaim(expected, readClaim(path)))?.[0];
}

const matchesIdentity = ({ issuer, subject }: ExchangeEntry, presented: ExchangeSubject): boolean =>
  issuer === presented.issuer && matchesSubject(subject, presented.subject);

export const findExchangeEntries = (
  { exchange = [] }: Integration,
  presented: ExchangeSubject,
): readonly ExchangeEntry[] =>
  exchange.filter((entry) => matchesIdentity(entry, presented) && findClaimMismatch(entry, presented) === undefined);

/** For operators: what no entry has. The entry that comes closest decides. */
function describeExchangeMismatch({ exchange = [] }: Integration, presented: ExchangeSubject): string {
  const closest = exchange.find((entry) => matchesIdentity(entry, presented));
  if (closest !== undefined) {
    const claim = findClaimMismatch(closest, presented);
    return claim === undefined ? 'refresh_not_allowed' : `claim_mismatch ${claim}`;
  }
  return exchange.some(({ issuer }) => issuer === presented.issuer) ? 'subject_mismatch' : 'issuer_mismatch';
}

export const matchesUser = (entry: AccessEntry, user: User): boolean =>
  entry.identities.has(user.identity) ||
  (entry.directory !== undefined && entry.directory === user.directory) ||
  !entry.groups.isDisjointFrom(user.groups);

/** The largest scope for this user and grant type; undefined without access. */
export function getAllowedScope(integration: Integration, user: User, grantType: GrantType): Scope | undefined {
  const entries = integration.access.filter(
    (entry) => matchesUser(entry, user) && (entry.grants === undefined || entry.grants.has(grantType)),
  );
  if (entries.length === 0) return undefined;
  return unionScopes(entries.map((entry) => entry.scope ?? integration.scope));
}

/** Checked when a token is exchanged and at every refresh of the grant. */
export function checkExchangeAllowed(
  integration: Integration,
  /** Those that match. */
  entries: readonly ExchangeEntry[],
  presented: ExchangeSubject,
  identity: string,
  scope: Scope,
): Outcome<Scope> {
  if (!integration.grants.has('exchange')) return refused({ reason: 'grant_type_not_allowed', grantType: 'exchange' });
  if (entries.length === 0) {
    const detail = describeExchangeMismatch(integration, presented);
    return refused({ reason: 'subject_not_allowed', identity, detail });
  }
  return checkScope(integration, getExchangeScope(integration, entries), scope);
}

/** The largest scope that these entries allow. */
export const getExchangeScope = (integration: Integration, entries: readonly ExchangeEntry[]): Scope =>
  intersectScopes(integration.scope, unionScopes(entries.map((entry) => entry.scope ?? integration.scope)));

/** Checked when a grant is issued and at every refresh. */
export function checkGrantAllowed(
  integration: Integration,
  user: User,
  grantType: GrantType,
  scope: Scope,
): Outcome<Scope> {
  const access = getAllowedScope(integration, user, grantType);
  if (access === undefined) return refused({ reason: 'identity_not_allowed', identity: user.identity });
  return checkScope(integration, access, scope);
}

function checkScope(integration: Integration, access: Scope, scope: Scope): Outcome<Scope> {
  const beyondIntegration = findExcess(scope, integration.scope);
  if (beyondIntegration)
    return refused({ reason: 'scope_exceeds_integration', excess: formatScope(beyondIntegration) });
  const beyondAccess = findExcess(scope, access);
  if (beyondAccess) return refused({ reason: 'scope_exceeds_access', excess: formatScope(beyondAccess) });
  return ok(scope);
}
