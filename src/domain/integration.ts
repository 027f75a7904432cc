import { granted, type Outcome, refused } from './outcome.ts';
import type { Person } from './person.ts';
import { excessOf, type Scope, union, writeScope } from './scope.ts';

export const GRANT_TYPES = ['certificate', 'device'] as const;
export type GrantType = (typeof GRANT_TYPES)[number];

/** Access tokens are signed texts that say everything, or short handles that say nothing and are looked up. */
export const TOKEN_FORMATS = ['jwt', 'opaque'] as const;
export type TokenFormat = (typeof TOKEN_FORMATS)[number];

/** A registered API integration: what it may ask for, by which flows, for whom. */
export interface Integration {
  /** Compared exactly, case included. */
  readonly clientId: string;
  readonly name: string;
  readonly scope: Scope;
  readonly grants: ReadonlySet<GrantType>;
  readonly access: readonly AccessEntry[];
  readonly accessLifetime: number;
  readonly grantLifetime: number;
  /** Of its device codes, where they differ from everybody's. */
  readonly device?: { readonly codeLifetime?: number; readonly interval?: number };
  /** Only these of the approved issuers (by their key's fingerprint); undefined: all of them. */
  readonly issuers?: ReadonlySet<string>;
  readonly bindToCertificate: boolean;
  /** Of its access tokens made from now on; those of the other form go on working. Left out: `jwt`. */
  readonly tokenFormat?: TokenFormat;
}

/** One line of an access list. Entries add up; whoever no entry names has no access. */
export interface AccessEntry {
  readonly groups: ReadonlySet<string>;
  readonly identities: ReadonlySet<string>;
  readonly directory?: string;
  /** Only this part of the integration's scope. */
  readonly scope?: Scope;
  /** Only by these flows. */
  readonly grants?: ReadonlySet<GrantType>;
}

export const names = (entry: AccessEntry, person: Person): boolean =>
  entry.identities.has(person.identity) ||
  (entry.directory !== undefined && entry.directory === person.directory) ||
  !entry.groups.isDisjointFrom(person.groups);

/** The most this person may be given here by this flow; undefined when the access list does not let them in by it. */
export function accessOf(integration: Integration, person: Person, by: GrantType): Scope | undefined {
  const entries = integration.access.filter(
    (entry) => names(entry, person) && (entry.grants === undefined || entry.grants.has(by)),
  );
  if (entries.length === 0) return undefined;
  return union(entries.map((entry) => entry.scope ?? integration.scope));
}

/** May this person hold a grant of this scope here? Asked when a grant is made and at every refresh. */
export function mayHold(
  integration: Integration,
  person: Person,
  by: GrantType,
  scope: Scope,
): Outcome<Scope> {
  const access = accessOf(integration, person, by);
  if (access === undefined) return refused({ reason: 'identity_not_allowed', identity: person.identity });
  const beyondIntegration = excessOf(scope, integration.scope);
  if (beyondIntegration)
    return refused({ reason: 'scope_exceeds_integration', excess: writeScope(beyondIntegration) });
  const beyondAccess = excessOf(scope, access);
  if (beyondAccess) return refused({ reason: 'scope_exceeds_access', excess: writeScope(beyondAccess) });
  return granted(scope);
}
