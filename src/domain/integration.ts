import { type Outcome, ok, refused } from './outcome.ts';
import { findExcess, formatScope, type Scope, uniteScopes } from './scope.ts';
import type { User } from './user.ts';

export const GRANT_TYPES = ['certificate', 'device'] as const;
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
  readonly accessLifetime: number;
  readonly grantLifetime: number;
  /** Overrides the defaults for its device codes. */
  readonly device?: { readonly codeLifetime?: number; readonly interval?: number };
  /** Key fingerprints of the accepted issuers; all if omitted. */
  readonly issuers?: ReadonlySet<string>;
  readonly bindToCertificate: boolean;
  /** For new access tokens; others stay valid. `jwt` if omitted. */
  readonly tokenFormat?: TokenFormat;
}

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

export const matchesUser = (entry: AccessEntry, user: User): boolean =>
  entry.identities.has(user.identity) ||
  (entry.directory !== undefined && entry.directory === user.directory) ||
  !entry.groups.isDisjointFrom(user.groups);

/** The largest scope for this user and grant type; undefined without access. */
export function getAllowedScope(
  integration: Integration,
  user: User,
  grantType: GrantType,
): Scope | undefined {
  const entries = integration.access.filter(
    (entry) => matchesUser(entry, user) && (entry.grants === undefined || entry.grants.has(grantType)),
  );
  if (entries.length === 0) return undefined;
  return uniteScopes(entries.map((entry) => entry.scope ?? integration.scope));
}

/** Checked when a grant is issued and at every refresh. */
export function checkGrantAllowed(
  integration: Integration,
  user: User,
  grantType: GrantType,
  scope: Scope,
): Outcome<Scope> {
  const access = getAllowedScope(integration, user, grantType);
  if (access === undefined) return refused({ reason: 'identity_not_allowed', identity: user.identity });
  const beyondIntegration = findExcess(scope, integration.scope);
  if (beyondIntegration)
    return refused({ reason: 'scope_exceeds_integration', excess: formatScope(beyondIntegration) });
  const beyondAccess = findExcess(scope, access);
  if (beyondAccess) return refused({ reason: 'scope_exceeds_access', excess: formatScope(beyondAccess) });
  return ok(scope);
}
