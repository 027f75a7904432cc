import { hash, randomBytes, randomInt } from 'node:crypto';
import {
  type DeviceRequest,
  exchangeable,
  showUserCode,
  USER_CODE_ALPHABET,
} from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import { keepGrantUntil } from '../domain/grant.ts';
import { type Integration, mayHold } from '../domain/integration.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { excessOf, parseScope, type ScopeDialect, writeScope } from '../domain/scope.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDesk } from './desk.ts';
import { firstGeneration, grantFields, type Issued, issue, mustBeRecordable } from './issue.ts';

export interface DeviceAsk {
  readonly clientId: string;
  readonly scope: string | undefined;
  /** The address that asks. */
  readonly from: string;
  readonly dialect?: ScopeDialect;
}

export interface DeviceCodes {
  readonly deviceCode: string;
  readonly userCode: string;
  readonly expires: Epoch;
  readonly expiresIn: number;
  readonly interval: number;
}

const CODE_TRIES = 8;
const MAX_RACES = 8;

/** The request's id, and later the grant's: a digest, so that the store never holds the code. */
export const requestIdOf = (deviceCode: string): string =>
  hash('sha256', deviceCode, 'base64url').slice(0, 22);

const newUserCode = (): string =>
  Array.from({ length: 8 }, () => USER_CODE_ALPHABET[randomInt(USER_CODE_ALPHABET.length)]).join('');

/** After its end a request is kept a while, so that a late device hears "expired" and not "unknown". */
export const keepRequestUntil = (request: DeviceRequest): Epoch => request.expires + 600;

export function deviceIntegration(desk: GrantDesk, clientId: string): Outcome<Integration> {
  const integration = desk.integrations.get(clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId });
  if (!desk.policy.device.enabled || !integration.grants.has('device'))
    return refused({ reason: 'device_flow_off' });
  return granted(integration);
}

const deviceTimes = ({ policy }: GrantDesk, { device }: Integration) => ({
  codeLifetime: device?.codeLifetime ?? policy.device.codeLifetime,
  interval: device?.interval ?? policy.device.interval,
});

/** A device asks: it gets a code to poll with, and a code to show to a person. */
export async function askForDevice(desk: GrantDesk, ask: DeviceAsk): Promise<Outcome<DeviceCodes>> {
  mustBeRecordable(desk);
  const found = deviceIntegration(desk, ask.clientId);
  if (!found.ok) return found;
  const integration = found.value;
  if (!integration.access.some((entry) => entry.grants === undefined || entry.grants.has('device')))
    return refused({ reason: 'grant_type_off', grantType: 'device' });
  if (ask.scope === undefined) return refused({ reason: 'scope_missing' });
  const scope = parseScope(ask.scope, ask.dialect);
  if (!scope.ok) return scope;
  const excess = excessOf(scope.value, integration.scope);
  if (excess) return refused({ reason: 'scope_exceeds_integration', excess: writeScope(excess) });

  const { codeLifetime, interval } = deviceTimes(desk, integration);
  const now = desk.now();
  const expires = Math.floor(now) + codeLifetime;
  const deviceCode = `ghd_${randomBytes(32).toString('base64url')}`;
  const request: DeviceRequest = {
    state: 'pending',
    id: requestIdOf(deviceCode),
    clientId: ask.clientId,
    scope: ask.scope,
    askedAt: Math.floor(now),
    askedFrom: ask.from,
    expires,
    failedSignIns: 0,
  };
  const { admitted, displaced } = await desk.pending.admit(request, now);
  for (const id of displaced) await expireDisplaced(desk, id);
  if (!admitted) return refused({ reason: 'device_requests_full' });
  if ((await desk.store.devices.create(request.id, request, keepRequestUntil(request))) === 'taken')
    throw new Error('a random device code was taken');
  const userCode = await shownAs(desk, request);
  desk.log.audit('device_asked', {
    request: request.id,
    client: request.clientId,
    scope: request.scope,
    from: ask.from,
  });
  return granted({
    deviceCode,
    userCode: showUserCode(userCode),
    expires,
    expiresIn: Math.max(0, Math.floor(expires - now)),
    interval,
  });
}

/** How long a displaced request is kept: its device polls within that time, and learns that it has expired. */
const KEEP_DISPLACED = 60;

/** A displaced request expires now. One that was decided meanwhile is not pending any more and stays as it is. */
async function expireDisplaced(desk: GrantDesk, id: string): Promise<void> {
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await desk.store.devices.read(id);
    if (found === undefined) return;
    const { record, version, now } = found;
    if (races === 0) await desk.pending.release(record);
    if (record.state !== 'pending') return;
    const expired: DeviceRequest = { ...record, expires: Math.min(record.expires, Math.floor(now)) };
    const kept = Math.ceil(now) + KEEP_DISPLACED;
    if ((await desk.store.devices.replace(id, version, expired, kept)) === 'stale') continue;
    desk.log.audit('device_displaced', { request: id, client: record.clientId, from: record.askedFrom });
    return;
  }
}

/** Finds a short code nobody else is showing now. It is kept under a keyed digest: it is too short for a plain one. */
async function shownAs(desk: GrantDesk, request: DeviceRequest): Promise<string> {
  for (let tries = 0; tries < CODE_TRIES; tries += 1) {
    const code = newUserCode();
    const key = desk.sealer.digest('user code', code);
    if ((await desk.store.userCodes.create(key, { requestId: request.id }, request.expires)) === 'created')
      return code;
  }
  throw new Fault('overloaded', 'no free user code was found');
}

export interface ExchangeAsk {
  readonly clientId: string;
  readonly deviceCode: string;
  /** A device that asks too early is told to slow down (RFC 8628 §3.5), and has to. */
  readonly slowDown?: boolean;
}

/**
 * A confirmed device code becomes a grant, once. The grant takes the request's id and a store creates an id
 * once, so of two exchanges on any two workers one finds it taken.
 */
export async function exchangeDeviceCode(desk: GrantDesk, ask: ExchangeAsk): Promise<Outcome<Issued>> {
  mustBeRecordable(desk);
  const integration = deviceIntegration(desk, ask.clientId);
  if (!integration.ok) return integration;
  const id = requestIdOf(ask.deviceCode);
  const { interval } = deviceTimes(desk, integration.value);
  const early = desk.pace.early(id, interval, desk.now());
  if (early > 0) {
    if (ask.slowDown === true) desk.pace.slowed(id);
    return refused({ reason: 'device_polled_early', retryAfter: early });
  }

  const found = await desk.store.devices.read(id);
  if (found === undefined) return refused({ reason: 'device_code_unknown' });
  const { record, now } = found;
  if (record.clientId !== ask.clientId) return refused({ reason: 'client_mismatch', grantId: id });
  const ready = exchangeable(record, now);
  if (!ready.ok) {
    if (ready.refusal.reason === 'device_pending') desk.pace.waits(id, desk.now());
    return ready;
  }

  const { identity, scope: asked, askedAt, decidedAt = askedAt } = ready.value;
  // Whoever ended all that a person or a client holds has ended the yes that nobody has collected, too.
  const yes = { grantId: id, generation: Number.MAX_SAFE_INTEGER, clientId: ask.clientId, identity };
  if (desk.store.revocations.isRevoked({ ...yes, issuedAt: decidedAt }))
    return refused({ reason: 'device_denied' });
  const person = await desk.people.byIdentity(identity);
  if (person === undefined) return refused({ reason: 'identity_unknown', who: identity });
  if (person.disabled) return refused({ reason: 'identity_disabled', identity });
  const scope = parseScope(asked, { spaces: true });
  if (!scope.ok) return scope;
  const allowed = mayHold(integration.value, person, 'device', scope.value);
  if (!allowed.ok) return allowed;

  const grant = firstGeneration(desk, {
    id,
    integration: integration.value,
    identity,
    grantType: 'device',
    scope: asked,
    now,
  });
  if (
    (await desk.store.grants.create(id, grant, keepGrantUntil(grant, keepRequestUntil(record)))) === 'taken'
  ) {
    desk.log.audit('device_code_replayed', { request: id, client: ask.clientId });
    return refused({ reason: 'device_code_spent' });
  }
  const issued = await issue(desk, grant, now);
  desk.log.audit('grant_issued', grantFields(grant));
  return granted(issued);
}
