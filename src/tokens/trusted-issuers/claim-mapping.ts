import { type Scope, unionScopes } from '../../domain/scope.ts';
import { createProfile, type Profile } from '../../domain/user.ts';
import { omitUndefined } from '../../lib/omit-undefined.ts';
import { isJsonObject, type Json, type JsonObject } from '../../lib/strict-json.ts';

/**
 * Which claims of another issuer state what. A claim is a name, or a JSON pointer (RFC 6901) such as `/realm_access/roles`.
 */
export interface ClaimMapping {
  readonly identity: string;
  readonly name: string;
  readonly email: string;
  /** The issuer verifies all e-mail addresses, although its tokens have no `email_verified`. */
  readonly trustsEmail: boolean;
  readonly groups: string;
  /** The first that the token has. */
  readonly clientId: readonly string[];
  readonly scope: readonly string[];
}

export interface ScopeMapping {
  /** From a word of the issuer to a scope of gatehouse. Other words grant nothing. */
  readonly map: ReadonlyMap<string, Scope>;
  /** Granted to every token. */
  readonly always: Scope | undefined;
}

const MAX_CLAIM_LENGTH = 256;
const MAX_SCOPE_WORDS = 512;

export function readClaim(claims: JsonObject, path: string): Json | undefined {
  if (!path.startsWith('/')) return claims[path];
  let value: Json | undefined = claims;
  for (const segment of path.slice(1).split('/')) {
    if (value === undefined || !isJsonObject(value)) return undefined;
    value = value[segment.replaceAll('~1', '/').replaceAll('~0', '~')];
  }
  return value;
}

/** Control characters never become part of an identity, a log line or a header. Stores refuse text that is not well-formed. */
const isUsableText = (value: Json | undefined): value is string =>
  typeof value === 'string' &&
  value !== '' &&
  value.length <= MAX_CLAIM_LENGTH &&
  value.isWellFormed() &&
  !/\p{Cc}/u.test(value);

export function readText(claims: JsonObject, path: string): string | undefined {
  const value = readClaim(claims, path);
  return isUsableText(value) ? value : undefined;
}

/** A list, or one text with words between spaces (RFC 8693 §4.2). */
function readWords(value: Json | undefined): readonly string[] {
  if (typeof value === 'string') return value.split(' ', MAX_SCOPE_WORDS).filter(isUsableText);
  return Array.isArray(value) ? value.slice(0, MAX_SCOPE_WORDS).filter(isUsableText) : [];
}

/** The claim that `email_verified` is about, as a name and as a JSON pointer. */
const STANDARD_EMAIL: ReadonlySet<string> = new Set(['email', '/email']);

/** OpenID Connect Core §5.1 and §5.7: users of many issuers can enter an arbitrary address. */
function isEmailTrusted(claims: JsonObject, path: string, trustsEmail: boolean): boolean {
  const isVerified = claims['email_verified'];
  return isVerified === undefined ? trustsEmail : isVerified === true && (trustsEmail || STANDARD_EMAIL.has(path));
}

/** May an identity or an access decision depend on this claim? An e-mail address only if it is trusted. */
export const isTrustedClaim = (claims: JsonObject, path: string, { email, trustsEmail }: ClaimMapping): boolean =>
  !(isSameClaim(path, email) || STANDARD_EMAIL.has(path)) || isEmailTrusted(claims, path, trustsEmail);

/** A top-level claim has two notations. */
const isSameClaim = (path: string, other: string): boolean =>
  path === other || path === `/${other}` || other === `/${path}`;

export const readTrustedClaim = (claims: JsonObject, path: string, mapping: ClaimMapping): Json | undefined =>
  isTrustedClaim(claims, path, mapping) ? readClaim(claims, path) : undefined;

export function readTrustedText(claims: JsonObject, path: string, mapping: ClaimMapping): string | undefined {
  const value = readTrustedClaim(claims, path, mapping);
  return isUsableText(value) ? value : undefined;
}

export function mapProfile(claims: JsonObject, mapping: ClaimMapping): Profile | undefined {
  const name = readTrustedText(claims, mapping.name, mapping);
  const email = readTrustedText(claims, mapping.email, mapping);
  const groupClaim = readTrustedClaim(claims, mapping.groups, mapping);
  const groups = Array.isArray(groupClaim) ? groupClaim.filter(isUsableText) : [];
  return createProfile({ ...omitUndefined({ name, email }), groups });
}

export function mapScope(claims: JsonObject, mapping: ClaimMapping, { map, always }: ScopeMapping): Scope {
  const scopes = always === undefined ? [] : [always];
  for (const path of mapping.scope)
    for (const word of readWords(readTrustedClaim(claims, path, mapping))) {
      const scope = map.get(word);
      if (scope !== undefined && !scopes.includes(scope)) scopes.push(scope);
    }
  return unionScopes(scopes);
}

export const createScopeMapping = (scopes: Readonly<Record<string, Scope>>, always?: Scope): ScopeMapping => ({
  map: new Map(Object.entries(scopes)),
  always,
});
