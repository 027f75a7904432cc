import { hash } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { checkGrantAllowed, getAllowedScope, type Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { formatOAuthScope, intersectScopes, narrowScope, parseScope, type Scope } from '../domain/scope.ts';
import { type AssertedGroups, type Profile, type User, updateProfile } from '../domain/user.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { MAX_SKEW_SECONDS, TRANSIENT_NOTE_PREFIX } from '../ports/store.ts';
import { type AuthorizationRequest, getCodeIntegration, PUSHED_LIFETIME } from './authorization-request.ts';
import type { GrantDeps } from './deps.ts';
import {
  assertAuditAvailable,
  findMissingProof,
  grantFields,
  type IssuedTokens,
  issueApprovedGrant,
  requireAuthentication,
  type TokenRequest,
} from './issue.ts';
import { isGrantRevoked, revokeGrant } from './revoke.ts';

/** Seconds (RFC 6749 §4.1.2: at most ten minutes). */
const CODE_LIFETIME = 60;

const CODE = /^gha_([A-Za-z0-9_-]{22})[A-Za-z0-9_-]{43}$/;

/** What a user decided about an authorization request. A store creates the record of a request once, so it is decided once. */
type AuthorizationDecision =
  | { readonly state: 'denied' }
  | {
      readonly state: 'approved';
      /** Digest of the code. */
      readonly code: string;
      readonly expires: Epoch;
      readonly clientId: string;
      readonly redirectUri: string;
      readonly challenge: string;
      readonly scope: string;
      readonly identity: string;
      readonly decidedAt: Epoch;
      /** The `issuedAfter` of the grant. */
      readonly issuedAfter?: number;
      /** If omitted, the audience is the public URL. */
      readonly audience?: string;
      readonly proofKey?: string;
      readonly profile?: Profile;
      readonly assertedGroups?: AssertedGroups;
    };

const getNoteId = (requestId: string): string => `${TRANSIENT_NOTE_PREFIX}authorization-${requestId}`;

/**
 * Must stay as long as the request could be decided: at a replica whose clock is behind, or because its `request_uri` was opened
 * again later.
 */
const getNoteExpiry = ({ expires }: AuthorizationRequest): Epoch =>
  Math.ceil(expires) + PUSHED_LIFETIME + CODE_LIFETIME + 2 * MAX_SKEW_SECONDS;

const hashCode = (code: string): string => hash('sha256', code, 'base64url');

/** A digest: the holder of a grant id, which is in logs and tokens, does not know the code. */
const deriveGrantId = (code: string): string => hashCode(`grant ${code}`).slice(0, 22);

const createDecisionNote = (
  { store }: Pick<GrantDeps, 'store'>,
  request: AuthorizationRequest,
  decision: AuthorizationDecision,
): Promise<'created' | 'taken'> =>
  store.notes.create(getNoteId(request.id), { decision: JSON.stringify(decision) }, getNoteExpiry(request));

async function readDecision(
  { store }: Pick<GrantDeps, 'store'>,
  requestId: string,
): Promise<{ readonly decision: AuthorizationDecision; readonly now: Epoch } | undefined> {
  const found = await store.notes.read(getNoteId(requestId));
  const text = found?.record['decision'];
  // Notes have a MAC: this is what was written.
  return found === undefined || text === undefined
    ? undefined
    : { decision: JSON.parse(text) as AuthorizationDecision, now: found.now };
}

export const isDecided = async (
  deps: Pick<GrantDeps, 'store'>,
  { id }: Pick<AuthorizationRequest, 'id'>,
): Promise<boolean> => (await readDecision(deps, id)) !== undefined;

/** What the user is asked for. */
export interface Approvable {
  readonly scope: Scope;
  /** The scope as it will be granted. */
  readonly text: string;
  /** The API that the token will be for; undefined: the public URL. */
  readonly audience: string | undefined;
}

/** What the user is asked for, if they may approve it. Checked again on approval and at the exchange. */
export function checkApprovable(
  deps: Pick<GrantDeps, 'integrations'>,
  request: Pick<AuthorizationRequest, 'clientId' | 'scope' | 'audience'>,
  user: User,
): Outcome<Approvable> {
  const integration = getCodeIntegration(deps, request.clientId);
  if (!integration.ok) return integration;
  if (user.disabled) return refused({ reason: 'identity_disabled', identity: user.identity });
  const { audience = integration.value.audience?.[0] } = request;
  if (!issuesFor(integration.value, audience)) return refused({ reason: 'target_invalid', target: 'this resource' });
  const scope = findApprovableScope(integration.value, request.scope, user);
  return scope.ok ? ok({ ...scope.value, audience }) : scope;
}

/** The configuration may have changed since the audience was chosen. */
const issuesFor = ({ audience: audiences }: Integration, audience: string | undefined): boolean =>
  audience === undefined ? audiences === undefined : audiences?.includes(audience) === true;

function findApprovableScope(
  integration: Integration,
  requestedScope: string | undefined,
  user: User,
): Outcome<Pick<Approvable, 'scope' | 'text'>> {
  const allowed = getAllowedScope(integration, user, 'code');
  const all = allowed === undefined ? undefined : intersectScopes(integration.scope, allowed);
  if (allowed === undefined || all === undefined || all.size === 0)
    return refused({ reason: 'identity_not_allowed', identity: user.identity });
  if (requestedScope === undefined) return ok({ scope: all, text: formatOAuthScope(all) });
  const requested = parseScope(requestedScope, { allowSpaces: true });
  if (!requested.ok) return requested;
  if (integration.partialScope === true) {
    const narrowed = narrowScope(requested.value, [integration.scope, allowed]);
    if (narrowed.size > 0) return ok({ scope: narrowed, text: formatOAuthScope(narrowed) });
  }
  const checked = checkGrantAllowed(integration, user, 'code', requested.value);
  return checked.ok ? ok({ scope: requested.value, text: requestedScope }) : checked;
}

/**
 * Records the approval and returns the code; undefined if the request was decided already. A second click of the same user gets the same
 * code while it is unused: the browser may have dropped the first response.
 */
export async function approveAuthorization(
  deps: GrantDeps,
  request: AuthorizationRequest,
  user: User,
  /** As of the sign-in. The profile is used if the directory cannot find the name by the identity. */
  signIn: { readonly profile?: Profile; readonly assertedGroups?: AssertedGroups } = {},
): Promise<Outcome<string | undefined>> {
  assertAuditAvailable(deps);
  const approvable = checkApprovable(deps, request, user);
  if (!approvable.ok) return approvable;
  const { audience, text: scope } = approvable.value;
  const { identity } = user;
  const codes = deps.sealer
    .digests('authorization code', `${request.id}\n${identity}`)
    .map((secret) => `gha_${request.id}${secret}`);
  const code = `gha_${request.id}${deps.sealer.digest('authorization code', `${request.id}\n${identity}`)}`;
  const profile = updateProfile(signIn.profile, user);
  const now = deps.store.time?.() ?? deps.now();
  const decision: AuthorizationDecision = {
    state: 'approved',
    code: hashCode(code),
    expires: now + CODE_LIFETIME,
    clientId: request.clientId,
    redirectUri: request.redirectUri,
    challenge: request.challenge,
    scope,
    identity,
    decidedAt: Math.floor(now),
    ...(deps.issuedAfter && { issuedAfter: deps.issuedAfter }),
    ...omitUndefined({ audience, proofKey: request.proofKey, profile, assertedGroups: signIn.assertedGroups }),
  };
  if ((await createDecisionNote(deps, request, decision)) === 'created') {
    deps.log.audit('authorization_approved', {
      request: request.id,
      client: request.clientId,
      identity,
      name: profile?.name,
      scope: decision.scope,
    });
    return ok(code);
  }
  const found = await readDecision(deps, request.id);
  if (found?.decision.state !== 'approved' || found.now >= found.decision.expires) return ok(undefined);
  const { code: digest } = found.decision;
  const sameCode = codes.find((candidate) => isEqualConstantTime(hashCode(candidate), digest));
  if (sameCode === undefined || (await deps.store.grants.read(deriveGrantId(sameCode))) !== undefined)
    return ok(undefined);
  await deps.store.waitUntilDurable();
  return ok(sameCode);
}

/** Returns false if it was decided already. */
export async function denyAuthorization(deps: GrantDeps, request: AuthorizationRequest, user: User): Promise<boolean> {
  if ((await createDecisionNote(deps, request, { state: 'denied' })) === 'taken') {
    // A second click of the user.
    return (await readDecision(deps, request.id))?.decision.state === 'denied';
  }
  deps.log.audit('authorization_denied', {
    request: request.id,
    client: request.clientId,
    identity: user.identity,
    name: user.userName,
  });
  return true;
}

interface CodeTokenRequest extends Omit<TokenRequest, 'audience'> {
  readonly code: string;
  readonly redirectUri: string;
  readonly verifier: string;
  /** RFC 8707 §2.2: must be the audience that was approved (undefined: the public URL). */
  readonly isTarget: (audience: string | undefined) => boolean;
}

/**
 * Exchanges a code for a grant, once: the id of the grant is derived from the code, and a store creates an id only once. Every further
 * use revokes the grant (RFC 6749 §4.1.2).
 */
export async function exchangeCode(deps: GrantDeps, params: CodeTokenRequest): Promise<Outcome<IssuedTokens>> {
  const integration = getCodeIntegration(deps, params.clientId);
  if (!integration.ok) return integration;
  const authentication = requireAuthentication(integration.value, params);
  if (!authentication.ok) return authentication;
  const missingProof = findMissingProof(integration.value, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const [, requestId] = CODE.exec(params.code) ?? [];
  if (requestId === undefined) return refused({ reason: 'code_unknown' });

  const id = deriveGrantId(params.code);
  const replayed = await revokeIfSpent(deps, id, params.clientId);
  if (replayed !== undefined) return replayed;
  // After the revocation, which is always possible.
  assertAuditAvailable(deps);
  const found = await readDecision(deps, requestId);
  if (found?.decision.state !== 'approved') return refused({ reason: 'code_unknown' });
  const { decision, now } = found;
  if (!isEqualConstantTime(decision.code, hashCode(params.code)) || now >= decision.expires)
    return refused({ reason: 'code_unknown' });
  const mismatch = findMismatch(decision, params);
  if (mismatch !== undefined) return mismatch;
  const { audience } = decision;
  if (!issuesFor(integration.value, audience) || !params.isTarget(audience))
    return refused({ reason: 'target_invalid', target: 'this resource' });

  const { identity, scope, decidedAt, issuedAfter = 0, assertedGroups, profile } = decision;
  // Revoking everything of a user or client includes approvals that were not exchanged yet.
  if (isGrantRevoked(deps, { id, clientId: params.clientId, identity, issuedAt: decidedAt, issuedAfter }))
    return refused({ reason: 'code_unknown' });
  const approval = { id, identity, grantType: 'code', scope, profile, assertedGroups, issuedAfter, now } as const;
  const issued = await issueApprovedGrant(deps, integration.value, approval, { ...params, audience });
  if (!issued.ok) return issued;
  if (issued.value !== undefined) return ok(issued.value);
  return (await revokeIfSpent(deps, id, params.clientId)) ?? refused({ reason: 'code_unknown' });
}

/** Wrong values do not use up the code: otherwise anyone who has seen it could end the sign-in. */
function findMismatch(
  decision: Extract<AuthorizationDecision, { state: 'approved' }>,
  { clientId, redirectUri, verifier, proofKey }: CodeTokenRequest,
): Outcome<never> | undefined {
  const mismatch = (parameter: string) => refused({ reason: 'code_binding_mismatch', parameter });
  if (decision.clientId !== clientId) return mismatch('client_id');
  if (decision.redirectUri !== redirectUri) return mismatch('redirect_uri');
  if (!isEqualConstantTime(decision.challenge, hashCode(verifier))) return mismatch('code_verifier');
  return decision.proofKey === undefined || decision.proofKey === proofKey ? undefined : mismatch('DPoP');
}

/** Returns undefined if the code was not used. */
async function revokeIfSpent(deps: GrantDeps, grantId: string, clientId: string): Promise<Outcome<never> | undefined> {
  const found = await deps.store.grants.read(grantId);
  if (found === undefined) return undefined;
  const { record } = found;
  if (record.clientId !== clientId) return refused({ reason: 'client_mismatch', grantId });
  await revokeGrant(deps, record);
  deps.log.audit('code_replayed', { ...grantFields(record), action: 'grant_revoked' });
  return refused({ reason: 'code_used', grantId });
}
