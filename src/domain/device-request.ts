import type { Epoch } from './grant.ts';
import { type Outcome, ok, type Refusal, refused } from './refusal.ts';
import type { AssertedGroups, Profile } from './user.ts';

interface DeviceRequestBase {
  /** Digest of the device code; the id of the resulting grant. */
  readonly id: string;
  readonly clientId: string;
  /** Exactly as requested. */
  readonly scope: string;
  readonly askedAt: Epoch;
  /** The client's address, shown on the confirmation page. */
  readonly askedFrom: string;
  /** As the device calls itself, shown on the confirmation page as a claim. */
  readonly deviceName?: string;
  readonly expires: Epoch;
  readonly failedSignIns: number;
}

/**
 * A device that waits for confirmation by a user.
 *
 *   pending ──confirm──▶ confirmed ──▶ a grant with the same id
 *      ├──────deny─────▶ denied
 *      └──failed sign-ins──▶ closed
 *
 * There is no "used" state: the grant takes the id of the request, and a store creates an id only once.
 */
export type DeviceRequest =
  | (DeviceRequestBase & { readonly state: 'pending' })
  | (DeviceRequestBase & {
      readonly state: 'confirmed';
      readonly identity: string;
      readonly decidedAt: Epoch;
      /** The `issuedAfter` of the grant. */
      readonly issuedAfter?: number;
      /** The profile of the user at the time of the confirmation. */
      readonly profile?: Profile;
      readonly assertedGroups?: AssertedGroups;
    })
  | (DeviceRequestBase & { readonly state: 'denied' })
  | (DeviceRequestBase & { readonly state: 'closed' });

type ConfirmedRequest = Extract<DeviceRequest, { state: 'confirmed' }>;
export type PendingRequest = Extract<DeviceRequest, { state: 'pending' }>;

export const MAX_FAILED_SIGN_INS = 5;

export const MAX_DEVICE_NAME_LENGTH = 64;

/** Undefined if nothing is left. A longer name is cut: it is no reason to refuse the device. */
export const createDeviceName = (text = ''): string | undefined =>
  Array.from(
    text
      .slice(0, 1_024)
      .replace(/[\p{C}\p{Z}]+/gu, ' ')
      .trim(),
  )
    .slice(0, MAX_DEVICE_NAME_LENGTH)
    .join('') || undefined;

const STATE_REFUSALS = {
  pending: { reason: 'device_pending' },
  confirmed: { reason: 'device_code_used' },
  denied: { reason: 'device_denied' },
  closed: { reason: 'device_closed' },
} as const satisfies Record<DeviceRequest['state'], Refusal>;

/** Whether the user can still decide. */
export function checkDecidable(request: DeviceRequest, now: Epoch): Outcome<PendingRequest> {
  if (now >= request.expires) return refused({ reason: 'device_code_expired' });
  return request.state === 'pending' ? ok(request) : refused(STATE_REFUSALS[request.state]);
}

/** Idempotent for the same user (a double click). */
export function confirm(
  request: DeviceRequest,
  identity: string,
  now: Epoch,
  known: Pick<ConfirmedRequest, 'profile' | 'assertedGroups' | 'issuedAfter'> = {},
): Outcome<ConfirmedRequest> {
  if (request.state === 'confirmed' && request.identity === identity && now < request.expires) return ok(request);
  const decidable = checkDecidable(request, now);
  if (!decidable.ok) return decidable;
  return ok({ ...decidable.value, state: 'confirmed', identity, decidedAt: Math.floor(now), ...known });
}

export function deny(request: DeviceRequest, now: Epoch): Outcome<DeviceRequest> {
  if (request.state === 'denied' && now < request.expires) return ok(request);
  const decidable = checkDecidable(request, now);
  return decidable.ok ? ok({ ...decidable.value, state: 'denied' }) : decidable;
}

/** Too many failed sign-ins close the request. */
export function recordFailedSignIn(request: DeviceRequest, now: Epoch): Outcome<DeviceRequest> {
  const decidable = checkDecidable(request, now);
  if (!decidable.ok) return decidable;
  const failedSignIns = decidable.value.failedSignIns + 1;
  const state = failedSignIns >= MAX_FAILED_SIGN_INS ? 'closed' : 'pending';
  return ok({ ...decidable.value, failedSignIns, state });
}

/** Whether the device code can be exchanged for a grant. */
export function checkExchangeable(request: DeviceRequest, now: Epoch): Outcome<ConfirmedRequest> {
  if (now >= request.expires) return refused({ reason: 'device_code_expired' });
  return request.state === 'confirmed' ? ok(request) : refused(STATE_REFUSALS[request.state]);
}

/** RFC 8628 §6.1: no vowels (no words), no similar letters. 20^8 codes. */
export const USER_CODE_ALPHABET = 'BCDFGHJKLMNPQRSTVWXZ';

/** Accepts any case, with or without dash and spaces. */
export function parseUserCode(typed: string): string | undefined {
  const code = typed.replace(/[\s-]/g, '').toUpperCase();
  return /^[BCDFGHJKLMNPQRSTVWXZ]{8}$/.test(code) ? code : undefined;
}

export const formatUserCode = (code: string): string => `${code.slice(0, 4)}-${code.slice(4)}`;
