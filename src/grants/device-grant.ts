import { hash, randomBytes, randomInt } from 'node:crypto';
import {
  checkDecidable,
  checkExchangeable,
  confirm,
  recordFailedSignIn as countFailedSignIn,
  createDeviceName,
  type DeviceRequest,
  deny,
  formatUserCode,
  parseUserCode,
  USER_CODE_ALPHABET,
} from '../domain/device-request.ts';
import type { Epoch } from '../domain/grant.ts';
import { checkGrantAllowed, type Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { findExcess, formatScope, parseScope, type Scope, type ScopeSyntax } from '../domain/scope.ts';
import { type AssertedGroups, type Profile, type User, updateProfile } from '../domain/user.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDeps } from './deps.ts';
import type { EndpointService } from './endpoint.ts';
import {
  assertAuditAvailable,
  findMissingProof,
  type IssuedTokens,
  issueApprovedGrant,
  requireAuthentication,
  type TokenRequest,
} from './issue.ts';
import { isGrantRevoked } from './revoke.ts';

const MAX_CODE_ATTEMPTS = 8;
const MAX_RACES = 8;

/** The id of the request and later of its grant: a digest, so that the store does not hold the device code. */
export const deriveRequestId = (deviceCode: string): string => hash('sha256', deviceCode, 'base64url').slice(0, 22);

const randomUserCode = (): string =>
  Array.from({ length: 8 }, () => USER_CODE_ALPHABET[randomInt(USER_CODE_ALPHABET.length)]).join('');

/** Kept after expiry, so that a late poll gets "expired" rather than "unknown". */
const keepRequestUntil = (request: DeviceRequest): Epoch => request.expires + 600;

function getDeviceIntegration(deps: GrantDeps, clientId: string): Outcome<Integration> {
  const integration = deps.integrations.get(clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId });
  if (!deps.policy.device.enabled || !integration.grants.has('device'))
    return refused({ reason: 'device_flow_disabled' });
  return ok(integration);
}

/** Whether any client can use the device flow. */
export const offersDeviceFlow = ({ policy, integrations }: Pick<GrantDeps, 'policy' | 'integrations'>): boolean =>
  policy.device.enabled && integrations.values().some(({ grants }) => grants.has('device'));

const getDeviceTimes = ({ policy }: GrantDeps, { device }: Integration) => ({
  codeLifetime: device?.codeLifetime ?? policy.device.codeLifetime,
  interval: device?.interval ?? policy.device.interval,
});

/** RFC 8628 §3.1 and §3.2, for both APIs: creates a device code for polling and a user code. */
export async function authorizeDevice(
  { grantDeps: deps, pagesUrl, path }: Pick<EndpointService<never>, 'grantDeps' | 'pagesUrl' | 'path'>,
  context: RequestContext,
  parameters: Parameters,
  {
    scopeSyntax,
    clientAuthenticated = false,
  }: { readonly scopeSyntax?: ScopeSyntax; readonly clientAuthenticated?: boolean } = {},
) {
  const clientId = parameters.get('client_id');
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  context.note({ clientId });
  assertAuditAvailable(deps);
  const found = getDeviceIntegration(deps, clientId);
  if (!found.ok) return found;
  const integration = found.value;
  const authentication = requireAuthentication(integration, { clientAuthenticated });
  if (!authentication.ok) return authentication;
  if (!integration.access.some((entry) => entry.grants === undefined || entry.grants.has('device')))
    return refused({ reason: 'grant_type_not_allowed', grantType: 'device' });
  const requestedScope = parameters.get('scope');
  if (requestedScope === undefined) return refused({ reason: 'scope_missing' });
  const scope = parseScope(requestedScope, scopeSyntax);
  if (!scope.ok) return scope;
  const excess = findExcess(scope.value, integration.scope);
  if (excess) return refused({ reason: 'scope_exceeds_integration', excess: formatScope(excess) });

  const { codeLifetime, interval } = getDeviceTimes(deps, integration);
  const now = deps.now();
  const expires = Math.floor(now) + codeLifetime;
  const deviceName = createDeviceName(parameters.get('device_name'));
  const deviceCode = `ghd_${randomBytes(32).toString('base64url')}`;
  const request: DeviceRequest = {
    state: 'pending',
    id: deriveRequestId(deviceCode),
    clientId,
    scope: requestedScope,
    askedAt: Math.floor(now),
    askedFrom: context.clientAddress,
    ...omitUndefined({ deviceName }),
    expires,
    failedSignIns: 0,
  };
  const userCode = await storeIfAdmitted(deps, request, now);
  if (userCode === undefined) return refused({ reason: 'too_many_device_requests' });
  deps.log.audit('device_requested', {
    request: request.id,
    client: clientId,
    scope: request.scope,
    from: context.clientAddress,
    ...omitUndefined({ device_name: deviceName }),
  });
  const page = `${pagesUrl}${path}/device`;
  const response = {
    device_code: deviceCode,
    user_code: formatUserCode(userCode),
    verification_uri: page,
    verification_uri_complete: `${page}?user_code=${formatUserCode(userCode)}`,
    expires_in: Math.max(0, Math.floor(expires - now)),
    interval,
  };
  return ok({ response, expires });
}

/** Returns the user code; undefined if too many requests are pending. */
async function storeIfAdmitted(deps: GrantDeps, request: DeviceRequest, now: Epoch): Promise<string | undefined> {
  try {
    const { admitted, evicted } = await deps.pendingLimiter.admit(request, now);
    for (const id of evicted) await expireEvicted(deps, id);
    if (!admitted) return undefined;
    if ((await deps.store.devices.create(request.id, request, keepRequestUntil(request))) === 'taken')
      throw new Error('a random device code is already in use');
    return await registerUserCode(deps, request);
  } catch (error) {
    // The device gets no code, so the request must not count towards the limit. If it cannot be released either, it expires.
    await deps.pendingLimiter.release(request).catch(() => {});
    throw error;
  }
}

/** Seconds. The device polls in this time and learns that its code has expired. */
const EVICTED_RETENTION = 60;

/** An evicted request expires now, unless it was decided in the meantime. */
async function expireEvicted(deps: GrantDeps, id: string): Promise<void> {
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await deps.store.devices.read(id);
    if (found === undefined) return;
    const { record, version, now } = found;
    if (races === 0) await deps.pendingLimiter.release(record);
    if (record.state !== 'pending') return;
    const expired: DeviceRequest = { ...record, expires: Math.min(record.expires, Math.floor(now)) };
    const keepUntil = Math.ceil(now) + EVICTED_RETENTION;
    if ((await deps.store.devices.replace(id, version, expired, keepUntil)) === 'stale') continue;
    deps.log.audit('device_evicted', { request: id, client: record.clientId, from: record.askedFrom });
    return;
  }
}

/** Finds an unused user code. Stored as a keyed digest, because it is too short for a plain one. */
async function registerUserCode(deps: GrantDeps, request: DeviceRequest): Promise<string> {
  for (let attempts = 0; attempts < MAX_CODE_ATTEMPTS; attempts += 1) {
    const code = randomUserCode();
    const key = deps.sealer.digest('user code', code);
    if ((await deps.store.userCodes.create(key, { requestId: request.id }, request.expires)) === 'created') return code;
  }
  throw new Fault('overloaded', 'no unused user code was found');
}

interface DeviceTokenRequest extends TokenRequest {
  readonly deviceCode: string;
  /** RFC 8628 §3.5: a device that polls too early gets slow_down, and its interval grows. */
  readonly slowDown?: boolean;
}

/**
 * Exchanges a confirmed device code for a grant, once: the grant takes the id of the request, and a store creates an id
 * only once, so the second of two concurrent exchanges fails on any worker.
 */
export async function exchangeDeviceCode(deps: GrantDeps, params: DeviceTokenRequest): Promise<Outcome<IssuedTokens>> {
  assertAuditAvailable(deps);
  const integration = getDeviceIntegration(deps, params.clientId);
  if (!integration.ok) return integration;
  const authentication = requireAuthentication(integration.value, params);
  if (!authentication.ok) return authentication;
  const missingProof = findMissingProof(integration.value, params.proofKey);
  if (missingProof !== undefined) return refused(missingProof);
  const id = deriveRequestId(params.deviceCode);
  const { interval } = getDeviceTimes(deps, integration.value);
  const waitSeconds = deps.pollLimiter.getWaitSeconds(id, interval, deps.now());
  if (waitSeconds > 0) {
    if (params.slowDown === true) deps.pollLimiter.slowDown(id);
    return refused({ reason: 'device_polled_too_soon', retryAfter: waitSeconds });
  }

  const found = await deps.store.devices.read(id);
  if (found === undefined) return refused({ reason: 'device_code_unknown' });
  const { record, now } = found;
  if (record.clientId !== params.clientId) return refused({ reason: 'client_mismatch', grantId: id });
  const confirmed = checkExchangeable(record, now);
  if (!confirmed.ok) {
    if (confirmed.refusal.reason === 'device_pending') deps.pollLimiter.recordPoll(id, deps.now());
    return confirmed;
  }

  const { identity, scope, decidedAt, issuedAfter = 0, assertedGroups, profile } = confirmed.value;
  // Revoking everything of a user or client includes approvals that were not exchanged yet.
  if (isGrantRevoked(deps, { id, clientId: params.clientId, identity, issuedAt: decidedAt, issuedAfter }))
    return refused({ reason: 'device_denied' });
  const approval = { id, identity, grantType: 'device', scope, profile, assertedGroups, issuedAfter, now } as const;
  const issued = await issueApprovedGrant(deps, integration.value, approval, params, keepRequestUntil(record));
  if (!issued.ok) return issued;
  if (issued.value !== undefined) return ok(issued.value);
  deps.log.audit('device_code_replayed', { request: id, client: params.clientId });
  return refused({ reason: 'device_code_used' });
}

const MAX_DECISION_RACES = 16;

/** A device request, with its scope as the confirmation page shows it. */
export type DeviceApprovalRequest = Omit<DeviceRequest, 'scope'> & { readonly scope: Scope };

/** Malformed, unknown and expired user codes are indistinguishable. */
export async function findApprovalRequest(deps: GrantDeps, typedCode: string): Promise<Outcome<DeviceApprovalRequest>> {
  const code = parseUserCode(typedCode);
  for (const key of deps.sealer.digests('user code', code ?? typedCode.slice(0, 64))) {
    const entry = await deps.store.userCodes.read(key);
    if (entry !== undefined && code !== undefined) return readApprovalRequest(deps, entry.record.requestId);
  }
  return refused({ reason: 'device_code_unknown' });
}

/** Refused when the request was already decided or has expired. */
export async function readApprovalRequest(deps: GrantDeps, requestId: string): Promise<Outcome<DeviceApprovalRequest>> {
  const found = await deps.store.devices.read(requestId);
  if (found === undefined) return refused({ reason: 'device_code_unknown' });
  const pending = checkDecidable(found.record, found.now);
  if (!pending.ok) return pending;
  const integration = getDeviceIntegration(deps, pending.value.clientId);
  return integration.ok ? toApprovalRequest(pending.value) : integration;
}

/** Checked before the confirmation page is shown, and again on confirmation. */
export async function mayConfirm(
  deps: GrantDeps,
  approval: DeviceApprovalRequest,
  user: User,
): Promise<Outcome<unknown>> {
  if (user.disabled) return refused({ reason: 'identity_disabled', identity: user.identity });
  const integration = getDeviceIntegration(deps, approval.clientId);
  return integration.ok ? checkGrantAllowed(integration.value, user, 'device', approval.scope) : integration;
}

export async function confirmDevice(
  deps: GrantDeps,
  requestId: string,
  user: User,
  /** As of the sign-in. The profile is used if the directory cannot find the name by the identity. */
  signIn: { readonly profile?: Profile; readonly assertedGroups?: AssertedGroups } = {},
): Promise<Outcome<unknown>> {
  assertAuditAvailable(deps);
  const approval = await readApprovalRequest(deps, requestId);
  // A second click of the same user on Approve must succeed as well.
  if (!approval.ok && approval.refusal.reason !== 'device_code_used') return approval;
  if (approval.ok) {
    const allowed = await mayConfirm(deps, approval.value, user);
    if (!allowed.ok) return allowed;
  }
  const { assertedGroups } = signIn;
  const profile = updateProfile(signIn.profile, user);
  const decided = await updateDeviceRequest(deps, requestId, (request, now) =>
    confirm(
      request,
      user.identity,
      now,
      omitUndefined({ profile, assertedGroups, issuedAfter: deps.issuedAfter || undefined }),
    ),
  );
  if (!decided.ok) return decided;
  if (decided.value.changed)
    deps.log.audit('device_confirmed', {
      request: requestId,
      client: decided.value.request.clientId,
      identity: user.identity,
      name: profile?.name,
    });
  return decided;
}

export async function denyDevice(deps: GrantDeps, requestId: string, user: User): Promise<Outcome<unknown>> {
  const decided = await updateDeviceRequest(deps, requestId, deny);
  if (decided.ok && decided.value.changed)
    deps.log.audit('device_denied', {
      request: requestId,
      client: decided.value.request.clientId,
      identity: user.identity,
      name: user.userName,
    });
  return decided;
}

/** Too many failed sign-ins close the device request. */
export async function recordFailedSignIn(
  deps: GrantDeps,
  requestId: string,
): Promise<Outcome<{ readonly closed: boolean }>> {
  const updated = await updateDeviceRequest(deps, requestId, countFailedSignIn);
  if (!updated.ok) return updated;
  const closed = updated.value.request.state === 'closed';
  if (closed) deps.log.audit('device_closed', { request: requestId, client: updated.value.request.clientId });
  return ok({ closed });
}

function toApprovalRequest(request: DeviceRequest): Outcome<DeviceApprovalRequest> {
  const scope = parseScope(request.scope, { allowSpaces: true });
  return scope.ok ? ok({ ...request, scope: scope.value }) : scope;
}

async function updateDeviceRequest(
  deps: GrantDeps,
  requestId: string,
  decide: (request: DeviceRequest, now: Epoch) => Outcome<DeviceRequest>,
): Promise<Outcome<{ readonly request: DeviceRequest; readonly changed: boolean }>> {
  for (let races = 0; races < MAX_DECISION_RACES; races += 1) {
    const found = await deps.store.devices.read(requestId);
    if (found === undefined) return refused({ reason: 'device_code_unknown' });
    const decided = decide(found.record, found.now);
    if (!decided.ok) return decided;
    const request = decided.value;
    if (request === found.record) {
      // The earlier write may not be durable yet.
      await deps.store.waitUntilDurable();
      return ok({ request, changed: false });
    }
    const written = await deps.store.devices.replace(requestId, found.version, request, keepRequestUntil(request));
    if (written === 'replaced') return ok({ request, changed: true });
  }
  throw new Fault('overloaded', `device request ${requestId} has too many concurrent updates`);
}
