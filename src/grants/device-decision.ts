import {
  confirm,
  type DeviceRequest,
  decidable,
  deny,
  readUserCode,
  signInFailed,
} from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import { mayHold } from '../domain/integration.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import type { Person } from '../domain/person.ts';
import { parseScope, type Scope } from '../domain/scope.ts';
import { Fault } from '../ports/fault.ts';
import { type GrantDesk, nameOfIntegration } from './desk.ts';
import { deviceIntegration, keepRequestUntil } from './device-grant.ts';
import { mustBeRecordable } from './issue.ts';

const MAX_RACES = 16;

/** A request as the confirmation page shows it. */
export interface DeviceQuestion {
  readonly requestId: string;
  readonly clientId: string;
  readonly integrationName: string;
  readonly scope: Scope;
  readonly askedAt: Epoch;
  readonly askedFrom: string;
  readonly expires: Epoch;
}

/** What a typed code stands for. A code of the wrong shape, an unknown one and an old one look the same. */
export async function findQuestion(desk: GrantDesk, typed: string): Promise<Outcome<DeviceQuestion>> {
  const code = readUserCode(typed);
  for (const key of desk.sealer.digests('user code', code ?? typed.slice(0, 64))) {
    const entry = await desk.store.userCodes.read(key);
    if (entry !== undefined && code !== undefined) return questionOf(desk, entry.record.requestId);
  }
  return refused({ reason: 'device_code_unknown' });
}

/** The open question of a request; refused when it has been decided or has run out. */
export async function questionOf(desk: GrantDesk, requestId: string): Promise<Outcome<DeviceQuestion>> {
  const found = await desk.store.devices.read(requestId);
  if (found === undefined) return refused({ reason: 'device_code_unknown' });
  const open = decidable(found.record, found.now);
  if (!open.ok) return open;
  const integration = deviceIntegration(desk, open.value.clientId);
  if (!integration.ok) return integration;
  const scope = parseScope(open.value.scope, { spaces: true });
  if (!scope.ok) return scope;
  return granted({
    requestId,
    clientId: integration.value.clientId,
    integrationName: integration.value.name,
    scope: scope.value,
    askedAt: open.value.askedAt,
    askedFrom: open.value.askedFrom,
    expires: open.value.expires,
  });
}

/** May this person say yes to this? Shown on the page before they are asked, and asked again when they say it. */
export async function mayConfirm(
  desk: GrantDesk,
  question: DeviceQuestion,
  person: Person,
): Promise<Outcome<unknown>> {
  if (person.disabled) return refused({ reason: 'identity_disabled', identity: person.identity });
  const integration = deviceIntegration(desk, question.clientId);
  return integration.ok ? mayHold(integration.value, person, 'device', question.scope) : integration;
}

export async function confirmDevice(
  desk: GrantDesk,
  requestId: string,
  person: Person,
): Promise<Outcome<DeviceQuestion>> {
  mustBeRecordable(desk);
  const question = await questionOf(desk, requestId);
  // Only a request that was said yes to already is looked at again: it may have been this person's first click.
  if (!question.ok && question.refusal.reason !== 'device_code_spent') return question;
  if (question.ok) {
    const allowed = await mayConfirm(desk, question.value, person);
    if (!allowed.ok) return allowed;
  }
  const decided = await change(desk, requestId, (request, now) => confirm(request, person.identity, now));
  if (!decided.ok) return decided;
  if (decided.value.changed)
    desk.log.audit('device_confirmed', {
      request: requestId,
      client: decided.value.request.clientId,
      identity: person.identity,
    });
  return question.ok ? question : decidedQuestion(desk, decided.value.request);
}

export async function denyDevice(
  desk: GrantDesk,
  requestId: string,
  person: Person,
): Promise<Outcome<unknown>> {
  const decided = await change(desk, requestId, deny);
  if (decided.ok && decided.value.changed)
    desk.log.audit('device_denied', {
      request: requestId,
      client: decided.value.request.clientId,
      identity: person.identity,
    });
  return decided;
}

/** Counts a wrong password against the request it was typed for; the last one closes it. */
export async function failSignIn(
  desk: GrantDesk,
  requestId: string,
): Promise<Outcome<{ readonly closed: boolean }>> {
  const counted = await change(desk, requestId, signInFailed);
  if (!counted.ok) return counted;
  const closed = counted.value.request.state === 'closed';
  if (closed) desk.log.audit('device_closed', { request: requestId, client: counted.value.request.clientId });
  return granted({ closed });
}

/** The same person's second click on Approve shows the same end. */
function decidedQuestion(desk: GrantDesk, request: DeviceRequest): Outcome<DeviceQuestion> {
  const scope = parseScope(request.scope, { spaces: true });
  if (!scope.ok) return scope;
  const { id, clientId, askedAt, askedFrom, expires } = request;
  return granted({
    requestId: id,
    clientId,
    integrationName: nameOfIntegration(desk, clientId),
    scope: scope.value,
    askedAt,
    askedFrom,
    expires,
  });
}

async function change(
  desk: GrantDesk,
  requestId: string,
  decide: (request: DeviceRequest, now: Epoch) => Outcome<DeviceRequest>,
): Promise<Outcome<{ readonly request: DeviceRequest; readonly changed: boolean }>> {
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await desk.store.devices.read(requestId);
    if (found === undefined) return refused({ reason: 'device_code_unknown' });
    const decided = decide(found.record, found.now);
    if (!decided.ok) return decided;
    const request = decided.value;
    if (request === found.record) {
      // Decided before, perhaps by a write that was not confirmed: this answer stands for it.
      await desk.store.settled();
      return granted({ request, changed: false });
    }
    const written = await desk.store.devices.replace(
      requestId,
      found.version,
      request,
      keepRequestUntil(request),
    );
    if (written === 'replaced') return granted({ request, changed: true });
  }
  throw new Fault('overloaded', 'this request is being changed too often at once');
}
