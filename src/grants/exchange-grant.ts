import { hash } from 'node:crypto';
import { checkExchangeAllowed, findExchangeEntries, getExchangeScope } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { RefusalOf } from '../domain/refusal.ts';
import { formatOAuthScope, parseScope } from '../domain/scope.ts';
import { formatRejection, type RejectedToken } from '../domain/token-rejection.ts';
import { findTokenFault } from '../domain/verified-token.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import type { SubjectToken, SubjectTokenType } from '../tokens/trusted-issuers/subject-token-reader.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  bindToCertificate,
  findMissingProof,
  type IssuedTokens,
  randomGrantId,
  type TokenRequest,
  tryIssueGrant,
} from './issue.ts';

export interface ExchangeRequest extends TokenRequest {
  /** If omitted, everything that the integration and the matching entries allow is granted. */
  readonly scope: string | undefined;
  readonly subjectToken: string;
  readonly subjectTokenType: SubjectTokenType;
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
  const refreshable = entries.every((entry) => entry.refresh);
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
    refreshable,
    now: deps.now(),
    singleUseUntil: once ? Math.ceil(verified.expires) : undefined,
    ...binding.value,
  });
  if (issued !== undefined) return ok({ ...issued, refreshable });
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
