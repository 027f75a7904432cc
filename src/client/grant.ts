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

/** Reads what Authorize/… answered. */
export function grantFrom(answer: Answer, asked: Asked, before?: KeptGrant): KeptGrant {
  const { access_token, refresh_token, expires_in, expires, refresh_until, identity } = answer;
  if (
    typeof access_token !== 'string' ||
    typeof refresh_token !== 'string' ||
    typeof expires_in !== 'number' ||
    typeof expires !== 'number' ||
    typeof refresh_until !== 'number'
  )
    throw new TemporaryTrouble('the answer is not one of a gatehouse token service');
  const who = typeof identity === 'string' ? identity : before?.identity;
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
