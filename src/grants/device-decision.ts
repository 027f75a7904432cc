import {
  checkDecidable,
  confirm,
  recordFailedSignIn as countFailedSignIn,
  type DeviceRequest,
  deny,
  parseUserCode,
} from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import { checkGrantAllowed } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { type Profile, updateProfile } from '../domain/profile.ts';
import { parseScope, type Scope } from '../domain/scope.ts';
import type { AssertedGroups, User } from '../domain/user.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDeps } from './deps.ts';
import { getDeviceIntegration, keepRequestUntil } from './device-grant.ts';
import { assertAuditAvailable } from './issue.ts';

const MAX_RACES = 16;

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
  for (let races = 0; races < MAX_RACES; races += 1) {
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
