import { randomBytes } from 'node:crypto';
import {
  computeAccessExpiry,
  type Epoch,
  formatFingerprint,
  type Grant,
  type GrantCertificate,
  getGrantRecordExpiry,
  getIssuerOfClient,
  type PresentedCertificate,
} from '../domain/grant.ts';
import {
  checkExchangeAllowed,
  checkGrantAllowed,
  findExchangeEntries,
  type Integration,
  isConfidential,
} from '../domain/integration.ts';
import { type Outcome, ok, type Refusal, refused } from '../domain/refusal.ts';
import { parseScope } from '../domain/scope.ts';
import { type AssertedGroups, addGroups, type User, updateProfile } from '../domain/user.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import type { MaybePromise } from '../lib/rate-limiter.ts';
import type { LogFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDeps } from './deps.ts';

/** A grant together with the tokens of its current generation. */
export type IssuedTokens = ReturnType<typeof issueTokens>;

/** What every request for new tokens states. */
export interface TokenRequest {
  readonly clientId: string;
  /** With its secret or key. */
  readonly clientAuthenticated?: boolean;
  /** One of the integration's audiences; if omitted, its default. */
  readonly audience?: string | undefined;
  /** Thumbprint of the key of the DPoP proof. */
  readonly proofKey?: string | undefined;
  /** The client certificate of this connection, validated when it is called. */
  readonly getCertificate: () => MaybePromise<PresentedCertificate | undefined>;
}

type NewGrant = Pick<Grant, 'id' | 'identity' | 'grantType' | 'scope'> & {
  readonly [Name in
    | 'boundTo'
    | 'proofKey'
    | 'profile'
    | 'certificate'
    | 'assertedGroups'
    | 'audience'
    | 'exchangedFrom'
    | 'singleUseUntil'
    | 'issuedAfter']?: Grant[Name] | undefined;
} & {
  readonly integration: Integration;
  readonly clientAuthenticated?: boolean | undefined;
  /** If false, no refresh token is returned, so the grant ends with its access token. */
  readonly refreshable?: boolean;
  readonly now: Epoch;
};

export const randomGrantId = (): string => randomBytes(17).toString('base64url').slice(0, 22);

/** The issue time of grants, tokens and sessions: never ahead of the store's clock, which a store that has lost its revocations compares it with. */
export const getIssueTime = ({ store }: { readonly store: Pick<GrantDeps['store'], 'time'> }, now: Epoch): Epoch =>
  Math.min(now, store.time?.() ?? now);

/** If omitted, the audience is the default of the integration, and `issuedAfter` that of the request. */
export function createGrant(deps: GrantDeps, newGrant: NewGrant): Grant {
  const {
    id,
    identity,
    grantType,
    scope,
    integration,
    clientAuthenticated,
    refreshable = true,
    now,
    ...rest
  } = newGrant;
  const { audience = integration.audience?.[0], issuedAfter = deps.issuedAfter } = rest;
  const lifetime = refreshable
    ? integration.grantLifetime
    : Math.min(integration.accessLifetime, integration.grantLifetime);
  const refreshUntil = Math.floor(now) + lifetime;
  const issuedAt = getIssueTime(deps, now);
  return {
    id,
    identity,
    grantType,
    scope,
    ...omitUndefined({ ...rest, audience, issuedAfter: issuedAfter || undefined }),
    ...(clientAuthenticated === true && { clientAuthenticated }),
    clientId: integration.clientId,
    issuedAt: Math.floor(issuedAt),
    refreshUntil,
    generation: 1,
    rotatedAt: issuedAt,
    accessExpires: computeAccessExpiry(now, integration.accessLifetime, refreshUntil),
    keys: deps.tokenIssuer.getCurrentKeyIds(now),
    format: integration.tokenFormat ?? 'jwt',
  };
}

/** Stores a new grant and issues its tokens. Undefined if its id is taken. */
export async function tryIssueGrant(
  deps: GrantDeps,
  newGrant: NewGrant,
  { keepUntil, auditFields }: { readonly keepUntil?: Epoch | undefined; readonly auditFields?: LogFields } = {},
): Promise<IssuedTokens | undefined> {
  const grant = createGrant(deps, newGrant);
  if ((await deps.store.grants.create(grant.id, grant, getGrantRecordExpiry(grant, keepUntil))) === 'taken')
    return undefined;
  const issued = issueTokens(deps, grant, newGrant.now, newGrant.refreshable);
  deps.log.audit('grant_issued', { ...grantFields(grant), ...auditFields });
  return issued;
}

/** The same with a random id. */
export async function issueGrant(
  deps: GrantDeps,
  newGrant: Omit<NewGrant, 'id'>,
  auditFields: LogFields = {},
): Promise<IssuedTokens> {
  const issued = await tryIssueGrant(deps, { ...newGrant, id: randomGrantId() }, { auditFields });
  if (issued === undefined) throw new Error('a random grant id is already in use');
  return issued;
}

/** The groups apply only while the settings let their provider assert groups. */
export const addAssertedGroups = (
  { policy }: Pick<GrantDeps, 'policy'>,
  user: User,
  asserted: AssertedGroups | undefined,
): User => addGroups(user, policy.groupProviders.has(asserted?.provider ?? '') ? asserted : undefined);

/** The user, the integration and the access list may have changed since the user consented or the grant was issued. */
export async function checkStillAllowed(
  deps: GrantDeps,
  integration: Integration,
  grant: Pick<Grant, 'identity' | 'grantType' | 'scope' | 'exchangedFrom'> & {
    readonly assertedGroups?: AssertedGroups | undefined;
  },
): Promise<Outcome<User | undefined>> {
  const { identity, grantType, scope } = grant;
  if (grantType === 'exchange') return checkExchangeStillAllowed(integration, grant);
  const found = await deps.users.findByIdentity(identity);
  if (found === undefined) return refused({ reason: 'identity_unknown', subject: identity });
  const user = addAssertedGroups(deps, found, grant.assertedGroups);
  if (user.disabled) return refused({ reason: 'identity_disabled', identity: user.identity });
  const parsed = parseScope(scope, { allowSpaces: true });
  if (!parsed.ok) return parsed;
  const allowed = checkGrantAllowed(integration, user, grantType, parsed.value);
  return allowed.ok ? ok(user) : allowed;
}

/** The foreign token was not stored, so its claims are not compared again. */
function checkExchangeStillAllowed(
  integration: Integration,
  { identity, scope, exchangedFrom = '' }: Pick<Grant, 'identity' | 'scope' | 'exchangedFrom'>,
): Outcome<undefined> {
  const parsed = parseScope(scope, { allowSpaces: true });
  if (!parsed.ok) return parsed;
  const subject = identity.slice(identity.indexOf(':') + 1);
  const presented = { issuer: getIssuerOfClient(exchangedFrom), subject };
  const entries = findExchangeEntries(integration, presented);
  const allowed = checkExchangeAllowed(
    integration,
    entries.filter((entry) => entry.refresh),
    presented,
    identity,
    parsed.value,
  );
  return allowed.ok ? ok(undefined) : allowed;
}

type Approval = Pick<
  NewGrant,
  'id' | 'identity' | 'grantType' | 'scope' | 'profile' | 'assertedGroups' | 'issuedAfter' | 'now'
>;

/** Issues the grant that a user approved for a device or a client, if it is still allowed. Undefined if its id is taken. */
export async function issueApprovedGrant(
  deps: GrantDeps,
  integration: Integration,
  approval: Approval,
  { audience, proofKey, clientAuthenticated, getCertificate }: TokenRequest,
  keepUntil?: Epoch,
): Promise<Outcome<IssuedTokens | undefined>> {
  const { identity, grantType, scope, assertedGroups } = approval;
  const allowed = await checkStillAllowed(deps, integration, { identity, grantType, scope, assertedGroups });
  if (!allowed.ok) return allowed;
  const binding = await bindToCertificate(integration, { getCertificate });
  if (!binding.ok) return binding;
  const profile = updateProfile(approval.profile, allowed.value);
  const newGrant = { ...approval, integration, profile, audience, proofKey, clientAuthenticated, ...binding.value };
  return ok(await tryIssueGrant(deps, newGrant, { keepUntil }));
}

/** Returns undefined if the integration does not require a DPoP proof, or if there is one. */
export const findMissingProof = (
  { clientId, requiresProof }: Integration,
  proofKey: string | undefined,
): Refusal | undefined =>
  requiresProof === true && proofKey === undefined ? { reason: 'proof_required', clientId } : undefined;

/** Otherwise a client with a secret or a key could be used without it through the token API, which knows neither. */
export const requireAuthentication = (
  integration: Integration,
  { clientAuthenticated }: Pick<TokenRequest, 'clientAuthenticated'>,
): Outcome<undefined> =>
  isConfidential(integration) && clientAuthenticated !== true
    ? refused({ reason: 'client_authentication_required', clientId: integration.clientId })
    : ok(undefined);

/** For integrations with `bindToCertificate` whose callers do not authenticate with a certificate. */
export async function bindToCertificate(
  integration: Integration,
  { getCertificate }: Pick<TokenRequest, 'getCertificate'>,
): Promise<Outcome<{ readonly boundTo?: string }>> {
  if (!integration.bindToCertificate) return ok({});
  const certificate = await getCertificate();
  if (certificate === undefined) return refused({ reason: 'certificate_missing' });
  return certificate.accepted
    ? ok({ boundTo: certificate.fingerprint })
    : refused({ reason: 'certificate_unusable', detail: 'it is not accepted' });
}

/** Where the settings require an audit record, nothing is issued without it. Revocation is always possible. */
export function assertAuditAvailable({ isAuditAvailable }: Pick<GrantDeps, 'isAuditAvailable'>): void {
  if (isAuditAvailable?.() === false)
    throw new Fault('audit_unavailable', 'the audit log is unavailable', { retryAfter: 5 });
}

export function issueTokens(deps: GrantDeps, grant: Grant, now: Epoch, isRefreshable = true) {
  return {
    grant,
    pair: deps.tokenIssuer.issueTokens(grant, now),
    /** Seconds until the access token expires, rounded down. */
    expiresIn: Math.max(0, Math.floor(grant.accessExpires - now)),
    /** Is the refresh token returned? */
    isRefreshable,
  };
}

/** The fields of a client certificate in audit events. */
export const certificateFields = ({
  serial,
  subject,
  fingerprint,
}: Pick<GrantCertificate, 'serial' | 'subject' | 'fingerprint'>) => ({
  certificate_serial: serial,
  certificate_subject: subject,
  certificate_fingerprint: formatFingerprint(fingerprint),
});

/** The fields of a refused certificate, with the name of its issuer. */
export function describeCertificate(
  { certificateValidator }: Pick<GrantDeps, 'certificateValidator'>,
  der: Uint8Array | undefined,
): LogFields {
  const description = der && certificateValidator.describe(der);
  return description === undefined ? {} : { ...certificateFields(description), certificate_issuer: description.issuer };
}

/** The fields of a grant in audit events. */
export const grantFields = (grant: Grant) => ({
  grant: grant.id,
  client: grant.clientId,
  identity: grant.identity,
  name: grant.profile?.name,
  scope: grant.scope,
  grant_type: grant.grantType,
  generation: grant.generation,
  ...(grant.exchangedFrom !== undefined && {
    issuer: getIssuerOfClient(grant.exchangedFrom),
    exchanged_from: grant.exchangedFrom,
  }),
  ...omitUndefined({ proof_key: grant.proofKey }),
});
