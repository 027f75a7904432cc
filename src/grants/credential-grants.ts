import { hash } from 'node:crypto';
import { findTokenFault } from '../domain/grant.ts';
import {
  checkExchangeAllowed,
  checkGrantAllowed,
  findExchangeEntries,
  getAllowedScope,
  getExchangeScope,
  type Integration,
  matchesUser,
} from '../domain/integration.ts';
import { type Outcome, ok, type RefusalOf, refused } from '../domain/refusal.ts';
import {
  findExcess,
  formatOAuthScope,
  formatScope,
  intersectScopes,
  parseScope,
  type ScopeSyntax,
} from '../domain/scope.ts';
import { formatRejection, type RejectedToken } from '../domain/token-rejection.ts';
import { CLIENT_LABEL, createProfile, createUserProfile, type User } from '../domain/user.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import type { SubjectToken, SubjectTokenType } from '../tokens/trusted-issuers/trusted-issuers.ts';
import type { ValidatedCertificate } from '../x509/certificate-validator.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  bindToCertificate,
  certificateFields,
  findMissingProof,
  type IssuedTokens,
  issueGrant,
  randomGrantId,
  type TokenRequest,
  tryIssueGrant,
} from './issue.ts';

/* Grants for a credential in the request itself: a client certificate, the client's own secret or key, or a token of a trusted issuer. */

interface CertificateGrantRequest extends Pick<TokenRequest, 'clientId' | 'audience' | 'proofKey'> {
  readonly scope: string | undefined;
  /** The client certificate of this connection, DER. */
  readonly certificate: Uint8Array | undefined;
  readonly scopeSyntax?: ScopeSyntax;
  /** RFC 6749 §4.4: no refresh token, and scope is optional: everything that access list and integration allow. */
  readonly accessOnly?: true;
}

/** The user of a certificate. Checked first, so that unidentified callers learn nothing about integrations. */
export async function identifyByCertificate(
  deps: GrantDeps,
  certificate: Uint8Array | undefined,
): Promise<Outcome<{ readonly user: User; readonly certificate: ValidatedCertificate }>> {
  if (certificate === undefined) return refused({ reason: 'certificate_missing' });
  const validated = await deps.certificateValidator.validate(certificate, deps.now());
  if (!validated.ok) return validated;
  const { directory, source, name } = validated.value;
  const user = await deps.users.findByCertificateName(directory, source, name);
  if (user === undefined)
    return refused({ reason: 'identity_unknown', subject: `${source} ${name} of ${validated.value.issuer}` });
  if (user.disabled) return refused({ reason: 'identity_disabled', identity: user.identity });
  if (validated.value.hasOtherNames)
    deps.log.audit('certificate_names_differ', {
      identity: user.identity,
      source,
      ...certificateFields(validated.value),
      issuer: validated.value.issuer,
    });
  return ok({ user, certificate: validated.value });
}

/** Returns undefined if the user is allowed nothing. */
function getDefaultScope(integration: Integration, user: User): string | undefined {
  const access = getAllowedScope(integration, user, 'certificate');
  return (
    formatOAuthScope(access === undefined ? integration.scope : intersectScopes(access, integration.scope)) || undefined
  );
}

/** Issues a grant for the identity in a client certificate. One write. */
export async function grantByCertificate(
  deps: GrantDeps,
  params: CertificateGrantRequest,
): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const identified = await identifyByCertificate(deps, params.certificate);
  if (!identified.ok) return identified;
  const { user, certificate } = identified.value;

  if (!deps.integrations.values().some(({ access }) => access.some((entry) => matchesUser(entry, user))))
    return refused({ reason: 'identity_without_access', identity: user.identity });
  const integration = deps.integrations.get(params.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: params.clientId });
  if (!integration.grants.has('certificate'))
    return refused({ reason: 'grant_type_not_allowed', grantType: 'certificate' });
  if (integration.issuers !== undefined && !integration.issuers.has(certificate.issuerKey))
    return refused({ reason: 'certificate_issuer_not_approved' });

  const missingProof = findMissingProof(integration, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);

  const requestedScope = params.scope ?? (params.accessOnly && getDefaultScope(integration, user));
  if (requestedScope === undefined) return refused({ reason: 'scope_missing' });
  const scope = parseScope(requestedScope, params.scopeSyntax);
  if (!scope.ok) return scope;
  const allowed = checkGrantAllowed(integration, user, 'certificate', scope.value);
  if (!allowed.ok) return allowed;

  const { fingerprint, serial, subject, issuer } = certificate;
  const newGrant = {
    integration,
    identity: user.identity,
    grantType: 'certificate',
    scope: requestedScope,
    audience: params.audience,
    proofKey: params.proofKey,
    refreshable: params.accessOnly !== true,
    now: deps.now(),
    profile: createUserProfile(user),
    certificate: { fingerprint, serial, subject, issuer },
    boundTo: integration.bindToCertificate ? fingerprint : undefined,
  } as const;
  return ok(await issueGrant(deps, newGrant, { ...certificateFields(certificate), issuer }));
}

interface ClientGrantRequest extends Omit<TokenRequest, 'clientAuthenticated'> {
  /** If omitted, the scope of the integration is granted. */
  readonly scope: string | undefined;
}

/**
 * The identity of a client that acts for itself. Operators can compute it:
 *
 *   printf 'client:billing' | sha256sum
 */
const deriveClientIdentity = (clientId: string): string =>
  `${CLIENT_LABEL}:${hash('sha256', `client:${clientId}`, 'hex')}`;

/** Issues a grant to a client that authenticated with its secret or key, for itself (RFC 6749 §4.4). One write. */
export async function grantToClient(deps: GrantDeps, params: ClientGrantRequest): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const { clientId, audience, proofKey } = params;
  const integration = deps.integrations.get(clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId });
  if (!integration.grants.has('client')) return refused({ reason: 'grant_type_not_allowed', grantType: 'client' });
  const missingProof = findMissingProof(integration, proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const scope = params.scope ?? formatOAuthScope(integration.scope);
  const parsed = parseScope(scope, { allowSpaces: true });
  if (!parsed.ok) return parsed;
  const excess = findExcess(parsed.value, integration.scope);
  if (excess) return refused({ reason: 'scope_exceeds_integration', excess: formatScope(excess) });
  const binding = await bindToCertificate(integration, params);
  if (!binding.ok) return binding;
  const newGrant = {
    integration,
    identity: deriveClientIdentity(clientId),
    grantType: 'client',
    scope,
    audience,
    proofKey,
    profile: createProfile({ name: clientId }),
    clientAuthenticated: true,
    refreshable: false,
    now: deps.now(),
    ...binding.value,
  } as const;
  return ok(await issueGrant(deps, newGrant));
}

interface ExchangeRequest extends TokenRequest {
  /** If omitted, everything that the integration and the matching entries allow is granted. */
  readonly scope: string | undefined;
  readonly subjectToken: string;
  readonly subjectTokenType: SubjectTokenType;
}

/** Issues a grant for the holder of a token of a trusted issuer (RFC 8693, RFC 7523 §2.1). One write. */
export async function grantByExchange(deps: GrantDeps, params: ExchangeRequest): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const integration = deps.integrations.get(params.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: params.clientId });
  if (!integration.grants.has('exchange') || !integration.exchange?.length)
    return refused({ reason: 'grant_type_not_allowed', grantType: 'exchange' });
  const missingProof = findMissingProof(integration, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const subject = await readSubjectToken(deps, params);
  if (!subject.ok) return subject;
  const { verified, issuer } = subject.value;
  const { identity } = verified;

  const entries = findExchangeEntries(integration, subject.value);
  const requestedScope = params.scope ?? formatOAuthScope(getExchangeScope(integration, entries));
  if (entries.length > 0 && requestedScope === '') return refused({ reason: 'scope_missing' });
  const scope = parseScope(requestedScope, { allowSpaces: true });
  // An unknown subject learns nothing about scopes.
  const allowed =
    entries.length > 0 && !scope.ok
      ? scope
      : checkExchangeAllowed(integration, entries, subject.value, identity, scope.ok ? scope.value : new Map());
  if (!allowed.ok) return allowed;
  // A bound token is exchanged for a bound one only: otherwise the exchange would remove the protection.
  const { boundTo } = verified;
  const binding = boundTo === undefined ? await bindToCertificate(integration, params) : ok({ boundTo });
  if (!binding.ok) return binding;

  const once = entries.some((entry) => entry.once);
  const id = once ? deriveSingleUseId(subject.value) : randomGrantId();
  if (id === undefined) return refused({ reason: 'subject_token_invalid', fault: 'malformed', issuer });
  const issued = await tryIssueGrant(deps, {
    id,
    integration,
    identity,
    grantType: 'exchange',
    scope: requestedScope,
    exchangedFrom: verified.clientId,
    profile: verified.profile,
    audience: params.audience,
    proofKey: params.proofKey,
    clientAuthenticated: params.clientAuthenticated,
    refreshable: entries.every((entry) => entry.refresh),
    now: deps.now(),
    singleUseUntil: once ? Math.ceil(verified.expires) : undefined,
    ...binding.value,
  });
  if (issued !== undefined) return ok(issued);
  deps.log.audit('subject_token_replayed', { client: params.clientId, identity, issuer });
  return refused({ reason: 'subject_token_used', identity });
}

/** An authentic token that is valid now and was not revoked: by itself, its subject, its client or its issuer. */
async function readSubjectToken(deps: GrantDeps, params: ExchangeRequest): Promise<Outcome<SubjectToken>> {
  const now = deps.now();
  const found = await deps.subjectTokens?.read(params.subjectToken, params.subjectTokenType, now);
  if (found === undefined || 'rejection' in found) return refused(describeRejection(found));
  const certificate = found.verified.boundTo === undefined ? undefined : await params.getCertificate();
  const fault = findTokenFault(found.verified, {
    now,
    revoked: deps.store.revocations.isRevoked(found.verified),
    clientKnown: true,
    // A token that is bound to a key is exchanged by the holder of the key, for one bound to the same key.
    proofKey: params.proofKey,
    certificate: () => certificate,
  });
  return fault === undefined ? ok(found) : refused({ reason: 'subject_token_invalid', fault, issuer: found.issuer });
}

const describeRejection = (rejected: RejectedToken | undefined): RefusalOf<'subject_token_invalid'> => ({
  reason: 'subject_token_invalid',
  fault: 'not_authentic',
  ...omitUndefined({ detail: rejected && formatRejection(rejected.rejection), issuer: rejected?.rejection.issuer }),
});

/** A store creates an id only once, on any replica. Undefined: the token has no `jti`. */
const deriveSingleUseId = ({ issuer, tokenId }: SubjectToken): string | undefined =>
  tokenId === undefined ? undefined : hash('sha256', `exchange ${issuer} ${tokenId}`, 'base64url').slice(0, 22);
