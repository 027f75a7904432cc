import { setTimeout as pause } from 'node:timers/promises';
import { LoginRequiredError, OAuthError, ServiceUnavailableError } from './errors.ts';
import { type GrantContext, isIntegerBetween, requestGrant, type StoredGrant } from './grant.ts';
import type { ServiceResponse } from './service.ts';

/** The user needs this to confirm in a browser. */
export interface DevicePrompt {
  readonly userCode: string;
  readonly verificationUri: string;
  readonly verificationUriComplete: string;
  /** Seconds until the code expires. */
  readonly expiresIn: number;
}

export type ShowPrompt = (prompt: DevicePrompt) => void | Promise<void>;

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
const MAX_WAIT_SECONDS = 60;
const MAX_CODE_SECONDS = 86_400;

/** RFC 8628: requests a code, shows it and polls until the user has decided. */
export async function requestDeviceGrant(
  context: GrantContext,
  showPrompt: ShowPrompt,
  deviceName: string | undefined,
  signal: AbortSignal | undefined,
): Promise<StoredGrant> {
  const { service, clientId, scope, now } = context;
  const requestedAt = now();
  const response = await service.post('Authorize/Device', {
    client_id: clientId,
    scope,
    ...(deviceName !== undefined && { device_name: deviceName }),
  });
  const { deviceCode, interval, prompt } = parseDeviceResponse(response, service.url);
  await showPrompt(prompt);
  const end = requestedAt + prompt.expiresIn;
  let wait = interval;
  for (;;) {
    if (now() + wait >= end) throw new LoginRequiredError('the code expired before it was confirmed; start again');
    await pause(wait * 1_000, undefined, signal === undefined ? {} : { signal });
    try {
      const parameters = { grant_type: DEVICE_GRANT, device_code: deviceCode };
      return await requestGrant(context, 'Authorize/Token', parameters);
    } catch (error) {
      wait = getNextWait(error, interval);
    }
  }
}

/** Returns the seconds until the next poll. Throws when polling must stop. */
function getNextWait(error: unknown, interval: number): number {
  if (error instanceof ServiceUnavailableError)
    return Math.min(Math.max(error.retryAfter ?? interval, interval), MAX_WAIT_SECONDS);
  if (error instanceof OAuthError && error.code === 'authorization_pending') return interval;
  if (error instanceof OAuthError && error.code === 'invalid_grant')
    throw new LoginRequiredError(error.message, { cause: error });
  throw error;
}

function parseDeviceResponse(response: ServiceResponse, url: URL) {
  const { device_code, user_code, verification_uri, verification_uri_complete, expires_in, interval } = response;
  if (
    !isVisibleAscii(device_code, 1_024) ||
    !isUserCode(user_code) ||
    !isPageUrl(verification_uri) ||
    !isPageUrl(verification_uri_complete) ||
    !isIntegerBetween(expires_in, 1, MAX_CODE_SECONDS)
  )
    throw new ServiceUnavailableError(`${url.origin} returned no valid device code`);
  return {
    deviceCode: device_code,
    interval: typeof interval === 'number' && interval >= 1 ? Math.min(interval, MAX_WAIT_SECONDS) : 5,
    prompt: {
      userCode: user_code,
      verificationUri: verification_uri,
      verificationUriComplete: verification_uri_complete,
      expiresIn: expires_in,
    },
  };
}

/** RFC 6749 appendix A: visible ASCII. */
const isVisibleAscii = (value: unknown, maxLength: number): value is string =>
  typeof value === 'string' && value.length <= maxLength && /^[!-~]+$/.test(value);

/** The code is shown in a terminal. */
const isUserCode = (value: unknown): value is string => typeof value === 'string' && /^[A-Za-z0-9-]{1,64}$/.test(value);

/** The URL is shown in a terminal and opened in a browser: it must be an http URL without user information. */
const isPageUrl = (value: unknown): value is string => {
  if (!isVisibleAscii(value, 2_048) || !/^https?:\/\/[^/\\]/i.test(value) || !URL.canParse(value)) return false;
  const { username, password } = new URL(value);
  return username === '' && password === '';
};
