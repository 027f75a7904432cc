import { hash } from 'node:crypto';
import { getGrantRecordExpiry } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { createProfile } from '../domain/profile.ts';
import { findExcess, formatOAuthScope, formatScope, parseScope } from '../domain/scope.ts';
import { CLIENT_LABEL } from '../domain/user.ts';
import type { PresentedCertificate } from '../domain/verified-token.ts';
import type { MaybePromise } from '../lib/rate-limiter.ts';
import type { GrantDeps } from './deps.ts';
import { requireCertificateBinding } from './exchange-grant.ts';
import {
  assertAuditAvailable,
  createGrant,
  findMissingProof,
  grantFields,
  type IssuedTokens,
  issueTokens,
  randomGrantId,
} from './issue.ts';

interface ClientGrantRequest {
  /** Authenticated with its secret or key. */
  readonly clientId: string;
  /** If omitted, the scope of the integration is granted. */
  readonly scope: string | undefined;
  /** One of the integration's audiences; if omitted, its default. */
  readonly audience?: string | undefined;
  /** Thumbprint of the key of the DPoP proof. */
  readonly proofKey?: string | undefined;
  /** The client certificate of this connection, validated when it is called. */
  readonly getCertificate: () => MaybePromise<PresentedCertificate | undefined>;
}

/**
 * The identity of a client that acts for itself. Operators can compute it:
 *
 *   printf 'client:billing' | sha256sum
 */
const deriveClientIdentity = (clientId: string): string =>
  `${CLIENT_LABEL}:${hash('sha256', `client:${clientId}`, 'hex')}`;

/** Issues a grant to the client itself (RFC 6749 §4.4). One write. */
export async function grantToClient(
  deps: GrantDeps,
  { clientId, scope, audience, proofKey, getCertificate }: ClientGrantRequest,
): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const integration = deps.integrations.get(clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId });
  if (!integration.grants.has('client')) return refused({ reason: 'grant_type_not_allowed', grantType: 'client' });
  const missingProof = findMissingProof(integration, proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const requestedScope = scope ?? formatOAuthScope(integration.scope);
  const parsed = parseScope(requestedScope, { allowSpaces: true });
  if (!parsed.ok) return parsed;
  const excess = findExcess(parsed.value, integration.scope);
  if (excess) return refused({ reason: 'scope_exceeds_integration', excess: formatScope(excess) });
  const binding = integration.bindToCertificate ? requireCertificateBinding(await getCertificate()) : ok({});
  if (!binding.ok) return binding;

  const now = deps.now();
  const grant = createGrant(deps, {
    id: randomGrantId(),
    integration,
    identity: deriveClientIdentity(clientId),
    grantType: 'client',
    scope: requestedScope,
    audience,
    proofKey,
    profile: createProfile({ name: clientId }),
    clientAuthenticated: true,
    refreshable: false,
    now,
    ...binding.value,
  });
  if ((await deps.store.grants.create(grant.id, grant, getGrantRecordExpiry(grant))) === 'taken')
    throw new Error('a random grant id is already in use');
  const issued = await issueTokens(deps, grant, now);
  deps.log.audit('grant_issued', grantFields(grant));
  return ok(issued);
}
