import { checkGrantAllowed, getAllowedScope, type Integration, matchesUser } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { createUserProfile } from '../domain/profile.ts';
import { formatOAuthScope, intersectScopes, parseScope, type ScopeSyntax } from '../domain/scope.ts';
import type { User } from '../domain/user.ts';
import type { ValidatedCertificate } from '../x509/certificate-validator.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  certificateFields,
  findMissingProof,
  type IssuedTokens,
  issueGrant,
  type TokenRequest,
} from './issue.ts';

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

/** Undefined if the user is allowed nothing. */
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
