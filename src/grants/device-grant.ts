import { hash, randomBytes, randomInt } from 'node:crypto';
import {
  checkExchangeable,
  createDeviceName,
  type DeviceRequest,
  formatUserCode,
  USER_CODE_ALPHABET,
} from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { findExcess, formatScope, parseScope, type ScopeSyntax } from '../domain/scope.ts';
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
export const keepRequestUntil = (request: DeviceRequest): Epoch => request.expires + 600;

export function getDeviceIntegration(deps: GrantDeps, clientId: string): Outcome<Integration> {
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
