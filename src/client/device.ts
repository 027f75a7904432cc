import { setTimeout as pause } from 'node:timers/promises';
import { ServiceRefusal, SignInNeeded, TemporaryTrouble } from './errors.ts';
import { grantFrom, isWhole, type KeptGrant } from './grant.ts';
import type { Answer, TokenService } from './service.ts';

/** What a person must see to say yes in a browser. */
export interface DevicePrompt {
  readonly userCode: string;
  readonly verificationUri: string;
  readonly verificationUriComplete: string;
  /** Seconds until the code is worth nothing. */
  readonly expiresIn: number;
}

export interface DeviceTerms {
  readonly clientId: string;
  readonly scope: string;
  readonly show: (prompt: DevicePrompt) => void | Promise<void>;
  readonly now: () => number;
  readonly signal?: AbortSignal | undefined;
}

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
const MOST_WAIT_SECONDS = 60;
const MOST_CODE_SECONDS = 86_400;

/** Asks for a code, shows it, and waits until the person has answered. */
export async function deviceGrant(service: TokenService, terms: DeviceTerms): Promise<KeptGrant> {
  const { clientId, scope, show, now, signal } = terms;
  const asked = now();
  const codes = await service.post('Authorize/Device', { client_id: clientId, scope });
  const { deviceCode, interval, prompt } = readCodes(codes, service.url);
  await show(prompt);
  const end = asked + prompt.expiresIn;
  let wait = interval;
  for (;;) {
    if (now() + wait >= end)
      throw new SignInNeeded('the code has expired before anybody confirmed it; begin again');
    await pause(wait * 1_000, undefined, signal === undefined ? {} : { signal });
    const at = now();
    try {
      const answer = await service.post('Authorize/Token', {
        client_id: clientId,
        grant_type: DEVICE_GRANT,
        device_code: deviceCode,
      });
      return grantFrom(answer, { service: service.base, clientId, scope, at });
    } catch (error) {
      wait = waitAfter(error, interval);
    }
  }
}

/** Seconds until the next question, or the end of it. */
function waitAfter(error: unknown, interval: number): number {
  if (error instanceof TemporaryTrouble)
    return Math.min(Math.max(error.retryAfter ?? interval, interval), MOST_WAIT_SECONDS);
  if (error instanceof ServiceRefusal && error.code === 'authorization_pending') return interval;
  if (error instanceof ServiceRefusal && error.code === 'invalid_grant')
    throw new SignInNeeded(error.message, { cause: error });
  throw error;
}

function readCodes(codes: Answer, url: URL) {
  const { device_code, user_code, verification_uri, verification_uri_complete, expires_in, interval } = codes;
  if (
    !isVisible(device_code, 1_024) ||
    !isUserCode(user_code) ||
    !isPage(verification_uri) ||
    !isPage(verification_uri_complete) ||
    !isWhole(expires_in, 1, MOST_CODE_SECONDS)
  )
    throw new TemporaryTrouble(`${url.origin} did not answer with a device code`);
  return {
    deviceCode: device_code,
    interval: typeof interval === 'number' && interval >= 1 ? Math.min(interval, MOST_WAIT_SECONDS) : 5,
    prompt: {
      userCode: user_code,
      verificationUri: verification_uri,
      verificationUriComplete: verification_uri_complete,
      expiresIn: expires_in,
    },
  };
}

/** RFC 6749 appendix A: visible ASCII. */
const isVisible = (value: unknown, most: number): value is string =>
  typeof value === 'string' && value.length <= most && /^[!-~]+$/.test(value);

/** It is read from a terminal and typed by a person. */
const isUserCode = (value: unknown): value is string =>
  typeof value === 'string' && /^[A-Za-z0-9-]{1,64}$/.test(value);

/** It is shown in a terminal and opened in a browser: an address without user information, and nothing else. */
const isPage = (value: unknown): value is string => {
  if (!isVisible(value, 2_048) || !/^https?:\/\/[^/\\]/i.test(value) || !URL.canParse(value)) return false;
  const { username, password } = new URL(value);
  return username === '' && password === '';
};
