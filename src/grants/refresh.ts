import { decideRefresh, type Epoch, type Grant, getGrantRecordExpiry, markRevoked } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { findExcess, formatScope, parseScope } from '../domain/scope.ts';
import { type Profile, updateProfile } from '../domain/user.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  checkStillAllowed,
  findMissingProof,
  grantFields,
  type IssuedTokens,
  issueTokens,
  requireAuthentication,
} from './issue.ts';
import { isGrantRevoked, revokeGrant } from './revoke.ts';

interface RefreshRequest {
  readonly clientId: string;
  readonly refreshToken: string;
  /** The client certificate of this connection. */
  readonly certificate?: { readonly fingerprint: string; readonly der: Uint8Array } | undefined;
  /** The client authenticated with its secret or key. */
  readonly clientAuthenticated?: boolean;
  /** Thumbprint of the key of the DPoP proof. */
  readonly proofKey?: string | undefined;
  readonly arrivedAt: Epoch;
  /** RFC 6749 §6: must be within the scope of the grant. The new token has the full scope of the grant. */
  readonly scope?: string | undefined;
  /** RFC 8707 §2.2: must be the audience of the grant (undefined: the default). */
  readonly isTarget?: (audience: string | undefined) => boolean;
}

/** A race is lost only to another update of the same grant, so this many indicate another problem. */
const MAX_RACES = 64;

/** Rotates a grant: one read, one compare-and-swap. The loser of a race re-reads the grant and decides again. */
export async function refresh(deps: GrantDeps, params: RefreshRequest): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const integration = deps.integrations.get(params.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: params.clientId });
  const missingProof = findMissingProof(integration, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const token = deps.tokenIssuer.openRefreshToken(params.refreshToken, deps.now());
  if (token === undefined) return refused({ reason: 'refresh_token_not_authentic' });

  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await deps.store.grants.read(token.grantId);
    if (found === undefined) return refused({ reason: 'grant_unknown' });
    const { record, version, now } = found;
    const authentication = requireAuthentication(integration, params);
    if (!authentication.ok) {
      // A caller that presents the certificate of a certificate grant needs no secret of the client.
      if (params.certificate === undefined || !isHolder(record, params.certificate)) return authentication;
      const validated = await deps.certificateValidator.validate(params.certificate.der, now);
      if (!validated.ok) return validated;
    }

    const verdict = decideRefresh(record, {
      clientId: params.clientId,
      generation: token.generation,
      now,
      arrivedAt: params.arrivedAt,
      retryWindow: deps.policy.retryWindow,
      outages: () => deps.getOutages(now, record.rotatedAt),
      accessLifetime: integration.accessLifetime,
      keys: deps.tokenIssuer.getCurrentKeyIds(now),
      format: integration.tokenFormat ?? 'jwt',
      audiences: integration.audience,
      clientAuthenticated: params.clientAuthenticated === true,
      proofKey: params.proofKey,
      ...(params.certificate !== undefined && { certificate: params.certificate.fingerprint }),
    });

    if (verdict.kind === 'refused') return refused(verdict.refusal);
    if (verdict.kind === 'reused') return handleReuse(deps, record, now);
    // A revocation is announced before the record is updated; after a crash in between the grant must stay revoked.
    if (isGrantRevoked(deps, record)) return refused({ reason: 'grant_revoked' });
    const scopeCheck = checkScopeWithinGrant(record, params.scope);
    if (!scopeCheck.ok) return scopeCheck;
    const allowed = await checkStillAllowed(deps, integration, record);
    if (!allowed.ok) return allowed;
    // A revoked or expired certificate cannot refresh.
    if (record.boundTo !== undefined && params.certificate !== undefined) {
      const validated = await deps.certificateValidator.validate(params.certificate.der, now);
      if (!validated.ok) return validated;
    }

    const grant =
      verdict.kind === 'rotated'
        ? withProfile(verdict.grant, updateProfile(record.profile, allowed.value))
        : verdict.grant;
    if (params.isTarget?.(grant.audience) === false)
      return refused({ reason: 'target_invalid', target: 'this resource' });
    if (verdict.kind === 'retried') {
      // The write of the first response may not be durable yet.
      await deps.store.waitUntilDurable();
      const issued = issueTokens(deps, grant, now);
      deps.log.audit('refresh_retried', grantFields(grant));
      return ok(issued);
    }

    if (deps.policy.supersede)
      await deps.store.revocations.announce({
        of: 'grant',
        grantId: grant.id,
        belowGeneration: grant.generation,
        keepUntil: getGrantRecordExpiry(grant),
      });
    const written = await deps.store.grants.replace(grant.id, version, grant, getGrantRecordExpiry(grant));
    if (written === 'stale') continue;

    const issued = issueTokens(deps, grant, now);
    deps.log.audit(verdict.rolledForward ? 'refresh_rolled_forward' : 'grant_refreshed', grantFields(grant));
    return ok(issued);
  }
  throw new Fault('overloaded', `grant ${token.grantId} has too many concurrent refreshes`);
}

const isHolder = (
  { boundTo, certificate }: Grant,
  { fingerprint }: NonNullable<RefreshRequest['certificate']>,
): boolean => fingerprint === (boundTo ?? certificate?.fingerprint);

function withProfile({ profile: _replaced, ...grant }: Grant, profile: Profile | undefined): Grant {
  return { ...grant, ...omitUndefined({ profile }) };
}

function checkScopeWithinGrant(grant: Grant, requestedScope: string | undefined): Outcome<unknown> {
  if (requestedScope === undefined || requestedScope === grant.scope) return ok(undefined);
  const scope = parseScope(requestedScope, { allowSpaces: true });
  if (!scope.ok) return scope;
  const grantScope = parseScope(grant.scope, { allowSpaces: true });
  if (!grantScope.ok) return grantScope;
  const excess = findExcess(scope.value, grantScope.value);
  return excess ? refused({ reason: 'scope_exceeds_grant', excess: formatScope(excess) }) : grantScope;
}

/** RFC 9700 §4.14.2: a spent refresh token was used again, so an attacker may hold the current one. */
async function handleReuse(deps: GrantDeps, grant: Grant, now: Epoch): Promise<Outcome<never>> {
  if (deps.policy.reuse === 'reject') {
    deps.log.audit('refresh_reuse', { ...grantFields(grant), action: 'refused' });
    return refused({ reason: 'refresh_token_used', grantId: grant.id });
  }
  await revokeGrant(deps, markRevoked(grant, now));
  deps.log.audit('refresh_reuse', { ...grantFields(grant), action: 'grant_revoked' });
  return refused({ reason: 'refresh_token_reused', grantId: grant.id });
}
