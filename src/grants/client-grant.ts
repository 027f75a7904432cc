import { hash } from 'node:crypto';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { createProfile } from '../domain/profile.ts';
import { findExcess, formatOAuthScope, formatScope, parseScope } from '../domain/scope.ts';
import { CLIENT_LABEL } from '../domain/user.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  bindToCertificate,
  findMissingProof,
  type IssuedTokens,
  issueGrant,
  type TokenRequest,
} from './issue.ts';

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
