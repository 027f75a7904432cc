import type { Epoch } from './epoch.ts';
import { granted, type Outcome, refused } from './outcome.ts';

interface Asked {
  /** Digest of the device code; the grant that comes of it takes this id. */
  readonly id: string;
  readonly clientId: string;
  /** As it was asked for, to the letter. */
  readonly scope: string;
  readonly askedAt: Epoch;
  /** The address that asked, shown to the person who decides. */
  readonly askedFrom: string;
  readonly expires: Epoch;
  /** Wrong passwords given for this request so far. */
  readonly failedSignIns: number;
}

/**
 * A device waiting for a person to say yes in a browser.
 *
 *   pending ──confirm──▶ confirmed ──▶ a grant with the same id
 *      ├──────deny─────▶ denied
 *      └──failed sign-ins──▶ closed
 *
 * Each state carries only what is true in it: a pending request has no identity. There is no "used" state to
 * keep in step: the grant takes the request's id, and a store creates an id once.
 */
export type DeviceRequest =
  | (Asked & { readonly state: 'pending' })
  | (Asked & {
      readonly state: 'confirmed';
      readonly identity: string;
      /** When they said yes; left out by an earlier gatehouse. */
      readonly decidedAt?: Epoch;
    })
  | (Asked & { readonly state: 'denied' })
  | (Asked & { readonly state: 'closed' });

export type Confirmed = Extract<DeviceRequest, { state: 'confirmed' }>;
export type Pending = Extract<DeviceRequest, { state: 'pending' }>;

export const MAX_FAILED_SIGN_INS = 5;

/** Can a person still decide about this request? */
export function decidable(request: DeviceRequest, now: Epoch): Outcome<Pending> {
  if (now >= request.expires) return refused({ reason: 'device_code_expired' });
  switch (request.state) {
    case 'pending':
      return granted(request);
    case 'confirmed':
      return refused({ reason: 'device_code_spent' });
    case 'denied':
      return refused({ reason: 'device_denied' });
    case 'closed':
      return refused({ reason: 'device_closed' });
  }
}

/** Says yes. The same person saying it twice (a double click) is the same yes. */
export function confirm(request: DeviceRequest, identity: string, now: Epoch): Outcome<Confirmed> {
  if (request.state === 'confirmed' && request.identity === identity && now < request.expires)
    return granted(request);
  const open = decidable(request, now);
  return open.ok
    ? granted({ ...open.value, state: 'confirmed', identity, decidedAt: Math.floor(now) })
    : open;
}

export function deny(request: DeviceRequest, now: Epoch): Outcome<DeviceRequest> {
  if (request.state === 'denied' && now < request.expires) return granted(request);
  const open = decidable(request, now);
  return open.ok ? granted({ ...open.value, state: 'denied' }) : open;
}

/** Counts a wrong password; too many close the request. */
export function signInFailed(request: DeviceRequest, now: Epoch): Outcome<DeviceRequest> {
  const open = decidable(request, now);
  if (!open.ok) return open;
  const failedSignIns = open.value.failedSignIns + 1;
  return granted({
    ...open.value,
    failedSignIns,
    state: failedSignIns >= MAX_FAILED_SIGN_INS ? 'closed' : 'pending',
  });
}

/** The token endpoint's question: may this device code become a grant now? */
export function exchangeable(request: DeviceRequest, now: Epoch): Outcome<Confirmed> {
  if (now >= request.expires) return refused({ reason: 'device_code_expired' });
  switch (request.state) {
    case 'pending':
      return refused({ reason: 'device_pending' });
    case 'denied':
      return refused({ reason: 'device_denied' });
    case 'closed':
      return refused({ reason: 'device_closed' });
    case 'confirmed':
      return granted(request);
  }
}

/** Letters without vowels (no words) and without look-alikes: RFC 8628 §6.1. 20^8 codes. */
export const USER_CODE_ALPHABET = 'BCDFGHJKLMNPQRSTVWXZ';

/** What a person typed, as the code it stands for: any case, with or without dash or spaces. */
export function readUserCode(typed: string): string | undefined {
  const code = typed.replace(/[\s-]/g, '').toUpperCase();
  return /^[BCDFGHJKLMNPQRSTVWXZ]{8}$/.test(code) ? code : undefined;
}

export const showUserCode = (code: string): string => `${code.slice(0, 4)}-${code.slice(4)}`;
