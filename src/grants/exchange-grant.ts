import { hash } from 'node:crypto';
import { getGrantRecordExpiry } from '../domain/grant.ts';
import {
  checkExchangeAllowed,
  findExchangeEntries,
  getExchangeScope,
  type Integration,
} from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { RefusalOf } from '../domain/refusal.ts';
import { formatOAuthScope, parseScope } from '../domain/scope.ts';
import { formatRejection, type RejectedToken } from '../domain/token-rejection.ts';
import { findTokenFault, type PresentedCertificate } from '../domain/verified-token.ts';
import type { MaybePromise } from '../lib/rate-limiter.ts';
import type { SubjectToken, SubjectTokenType } from '../ports/subject-token-reader.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  createGrant,
  findMissingProof,
  grantFields,
  type IssuedTokens,
  issueTokens,
  randomGrantId,
} from './issue.ts';

export interface ExchangeRequest {
  readonly clientId: string;
  /** If omitted, everything that the integration and the matching entries allow is granted. */
  readonly scope: string | undefined;
  readonly subjectToken: string;
  readonly subjectTokenType: SubjectTokenType;
  readonly clientAuthenticated: boolean;
  /** One of the integration's audiences; if omitted, its default. */
  readonly audience?: string | undefined;
  /** Thumbprint of the key of the DPoP proof. */
  readonly proofKey?: string | undefined;
  /** The client certificate of this connection, validated when it is called. */
  readonly getCertificate: () => MaybePromise<PresentedCertificate | undefined>;
}

interface ExchangedTokens extends IssuedTokens {
  readonly refreshable: boolean;
}

/** Issues a grant for the holder of a token of a trusted issuer (RFC 8693, RFC 7523 §2.1). One write. */
export async function grantByExchange(deps: GrantDeps, params: ExchangeRequest): Promise<Outcome<ExchangedTokens>> {
  assertAuditAvailable(deps);
  const integration = deps.integrations.get(params.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: params.clientId });
  if (!integration.grants.has('exchange') || !integration.exchange?.length)
    return refused({ reason: 'grant_type_not_allowed', grantType: 'exchange' });
  const missingProof = findMissingProof(integration, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const subject = await readSubjectToken(deps, params);
  if (!subject.ok) return subject;
  const { identity } = subject.value.verified;

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
  const binding = await bindToCertificate(integration, subject.value, params);
  if (!binding.ok) return binding;

  const now = deps.now();
  const once = entries.some((entry) => entry.once);
  const refreshable = entries.every((entry) => entry.refresh);
  const id = once ? deriveSingleUseId(subject.value) : randomGrantId();
  if (id === undefined)
    return refused({ reason: 'subject_token_invalid', fault: 'malformed', issuer: subject.value.issuer });
  const grant = createGrant(deps, {
    id,
    integration,
    identity,
    grantType: 'exchange',
    scope: requestedScope,
    exchangedFrom: subject.value.verified.clientId,
    profile: subject.value.verified.profile,
    audience: params.audience,
    proofKey: params.proofKey,
    refreshable,
    now,
    ...(once && { singleUseUntil: Math.ceil(subject.value.verified.expires) }),
    ...(params.clientAuthenticated && { clientAuthenticated: true }),
    ...binding.value,
  });
  if ((await deps.store.grants.create(id, grant, getGrantRecordExpiry(grant))) === 'taken') {
    if (!once) throw new Error('a random grant id is already in use');
    deps.log.audit('subject_token_replayed', {
      client: params.clientId,
      identity,
      issuer: subject.value.issuer,
    });
    return refused({ reason: 'subject_token_used', identity });
  }
  const issued = await issueTokens(deps, grant, now);
  deps.log.audit('grant_issued', grantFields(grant));
  return ok({ ...issued, refreshable });
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

const describeRejection = (rejected: RejectedToken | undefined): RefusalOf<'subject_token_invalid'> => {
  const issuer = rejected?.rejection.issuer;
  return {
    reason: 'subject_token_invalid',
    fault: 'not_authentic',
    ...(rejected !== undefined && { detail: formatRejection(rejected.rejection) }),
    ...(issuer !== undefined && { issuer }),
  };
};

/** A bound token is exchanged for a bound one only: otherwise the exchange would remove the protection. */
async function bindToCertificate(
  integration: Integration,
  { verified }: SubjectToken,
  { getCertificate }: ExchangeRequest,
): Promise<Outcome<{ readonly boundTo?: string }>> {
  if (verified.boundTo !== undefined) return ok({ boundTo: verified.boundTo });
  if (!integration.bindToCertificate) return ok({});
  return requireCertificateBinding(await getCertificate());
}

/** For integrations with `bindToCertificate` whose callers do not authenticate with a certificate. */
export function requireCertificateBinding(
  certificate: PresentedCertificate | undefined,
): Outcome<{ readonly boundTo: string }> {
  if (certificate === undefined) return refused({ reason: 'certificate_missing' });
  return certificate.accepted
    ? ok({ boundTo: certificate.fingerprint })
    : refused({ reason: 'certificate_unusable', detail: 'it is not accepted' });
}

/** A store creates an id only once, on any replica. Undefined: the token has no `jti`. */
const deriveSingleUseId = ({ issuer, tokenId }: SubjectToken): string | undefined =>
  tokenId === undefined ? undefined : hash('sha256', `exchange ${issuer} ${tokenId}`, 'base64url').slice(0, 22);
