import { TemporaryTrouble } from './errors.ts';
import type { Answer } from './service.ts';

/** Seconds since 1970, by the clock of this machine. */
export type Seconds = number;

/** A grant as a client keeps it. */
export interface KeptGrant {
  /** Whose it is: shown to no other service, and used for no other integration. */
  readonly service: string;
  readonly clientId: string;
  readonly accessToken: string;
  readonly refreshToken: string;
  readonly scope: string;
  readonly identity?: string;
  /** When the access token was asked for, and when it ends; by our clock, whatever the service's says. */
  readonly obtained: Seconds;
  readonly expires: Seconds;
  /** When the grant ends. */
  readonly until: Seconds;
}

export interface Asked {
  readonly service: string;
  readonly clientId: string;
  readonly scope: string;
  /** When it was asked: the answer may have taken its time. */
  readonly at: Seconds;
}

/** More than any header field of a request may have. */
const MAX_TOKEN = 8_192;
const MAX_TEXT = 4_096;
const HUNDRED_YEARS = 3_155_760_000;
/** The end of the year 9999. */
const LAST_SECOND = 253_402_300_799;

/**
 * `b64token` (RFC 6750 §2.1). Tokens are printed into shells and terminals and sent in header fields: a server must not be
 * able to put a line break, a terminal escape or a quote into any of them.
 */
export const isToken = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= MAX_TOKEN && /^[A-Za-z0-9._~+/-]+=*$/.test(value);

/** RFC 6749 §3.3. */
export const isScope = (value: unknown): value is string =>
  typeof value === 'string' &&
  value.length <= MAX_TEXT &&
  /^[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/.test(value);

const isIdentity = (value: unknown): value is string =>
  typeof value === 'string' &&
  value !== '' &&
  value.length <= MAX_TEXT &&
  !/[\p{C}\p{Zl}\p{Zp}]/u.test(value);

export const isWhole = (value: unknown, least: number, most: number): value is number =>
  Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most;

/** Reads the response of Authorize/…; every field must have its form, since it is stored, printed and sent. */
export function grantFrom(answer: Answer, asked: Asked, before?: KeptGrant): KeptGrant {
  const { access_token, refresh_token, token_type, expires_in, expires, refresh_until, scope, identity } =
    answer;
  if (
    !isToken(access_token) ||
    !isToken(refresh_token) ||
    !(typeof token_type === 'string' && token_type.toLowerCase() === 'bearer') ||
    !isWhole(expires_in, 0, HUNDRED_YEARS) ||
    !isWhole(expires, 0, LAST_SECOND) ||
    !isWhole(refresh_until, 0, LAST_SECOND) ||
    !(scope === undefined || isScope(scope)) ||
    !(identity === undefined || isIdentity(identity))
  )
    throw new TemporaryTrouble('the response is not one of a gatehouse token service');
  const who = identity ?? before?.identity;
  return {
    accessToken: access_token,
    refreshToken: refresh_token,
    service: asked.service,
    clientId: asked.clientId,
    scope: asked.scope,
    ...(who !== undefined && { identity: who }),
    obtained: asked.at,
    expires: asked.at + expires_in,
    until: asked.at + expires_in + (refresh_until - expires),
  };
}

const AHEAD_SECONDS = 60;
const AHEAD_SHARE = 0.1;

/** Still good, and for a while: a token is renewed before it ends, by a minute or a tenth of its life. */
export function isFresh({ obtained, expires }: KeptGrant, now: Seconds, atLeast?: Seconds): boolean {
  const ahead = atLeast ?? Math.min(AHEAD_SECONDS, (expires - obtained) * AHEAD_SHARE);
  return now < expires - ahead;
}
