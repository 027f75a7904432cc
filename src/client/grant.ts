import { ServiceUnavailableError } from './errors.ts';
import type { ServiceResponse, TokenService } from './service.ts';

/** Seconds since 1970, by the clock of this machine. */
export type Seconds = number;

/** A grant as a client stores it. */
export interface StoredGrant {
  /** The grant belongs to this service, and is never sent to another one. */
  readonly service: string;
  readonly clientId: string;
  readonly accessToken: string;
  /** Without it, the grant ends with its access token. */
  readonly refreshToken?: string;
  readonly scope: string;
  readonly identity?: string;
  /** When the access token was requested and when it expires, by the local clock. */
  readonly obtained: Seconds;
  readonly expires: Seconds;
  /** When the grant expires. */
  readonly until: Seconds;
}

/** The parts of a client that request grants. */
export interface GrantContext {
  readonly service: TokenService;
  readonly clientId: string;
  readonly scope: string;
  readonly now: () => Seconds;
}

const MAX_TOKEN_LENGTH = 8_192;
const MAX_TEXT_LENGTH = 4_096;
const HUNDRED_YEARS = 3_155_760_000;
/** The end of the year 9999. */
const LAST_SECOND = 253_402_300_799;

/**
 * `b64token` (RFC 6750 §2.1). Tokens are printed in terminals and sent in header fields, so a server must not be able
 * to inject line breaks, escape sequences or quotes.
 */
export const isToken = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= MAX_TOKEN_LENGTH && /^[A-Za-z0-9._~+/-]+=*$/.test(value);

const isBearer = (value: unknown): boolean => typeof value === 'string' && value.toLowerCase() === 'bearer';

/** RFC 6749 §3.3. */
const isScope = (value: unknown): value is string =>
  typeof value === 'string' &&
  value.length <= MAX_TEXT_LENGTH &&
  /^[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*$/.test(value);

const isIdentity = (value: unknown): value is string =>
  typeof value === 'string' && value !== '' && value.length <= MAX_TEXT_LENGTH && !/[\p{C}\p{Zl}\p{Zp}]/u.test(value);

export const isIntegerBetween = (value: unknown, min: number, max: number): value is number =>
  Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max;

/** Requests a grant, or with `previous` its next token. */
export async function requestGrant(
  { service, clientId, scope, now }: GrantContext,
  route: 'Authorize/Certificate' | 'Authorize/Token',
  parameters: Readonly<Record<string, string>>,
  { previous, timeoutMs }: { readonly previous?: StoredGrant; readonly timeoutMs?: number } = {},
): Promise<StoredGrant> {
  const requestedAt = now();
  const response = await service.post(route, { client_id: clientId, ...parameters }, timeoutMs);
  return parseGrantResponse(response, { service: service.base, clientId, scope }, requestedAt, previous);
}

const EXCHANGE_GRANT = 'urn:ietf:params:oauth:grant-type:token-exchange';
const JWT_TYPE = 'urn:ietf:params:oauth:token-type:jwt';

/** Exchanges a token of an issuer that gatehouse trusts (RFC 8693). */
export async function exchangeToken(
  { service, clientId, scope, now }: GrantContext,
  subjectToken: string,
): Promise<StoredGrant> {
  const requestedAt = now();
  const response = await service.postForm('oauth2/token', {
    grant_type: EXCHANGE_GRANT,
    client_id: clientId,
    scope,
    subject_token: subjectToken,
    subject_token_type: JWT_TYPE,
  });
  const { access_token, token_type, expires_in } = response;
  if (!isToken(access_token) || !isBearer(token_type) || !isIntegerBetween(expires_in, 0, HUNDRED_YEARS))
    throw new ServiceUnavailableError('the response is not that of a gatehouse token service');
  // A refresh token is not used: the subject token obtains the next grant as well.
  const expires = requestedAt + expires_in;
  return {
    service: service.base,
    clientId,
    scope,
    accessToken: access_token,
    obtained: requestedAt,
    expires,
    until: expires,
  };
}

/** All fields are validated, because they are stored, printed and sent. */
function parseGrantResponse(
  response: ServiceResponse,
  owner: Pick<StoredGrant, 'service' | 'clientId' | 'scope'>,
  requestedAt: Seconds,
  previous: StoredGrant | undefined,
): StoredGrant {
  const { access_token, refresh_token, token_type, expires_in, expires, refresh_until, scope, identity } = response;
  if (
    !isToken(access_token) ||
    !isToken(refresh_token) ||
    !isBearer(token_type) ||
    !isIntegerBetween(expires_in, 0, HUNDRED_YEARS) ||
    !isIntegerBetween(expires, 0, LAST_SECOND) ||
    !isIntegerBetween(refresh_until, 0, LAST_SECOND) ||
    !(scope === undefined || isScope(scope)) ||
    !(identity === undefined || isIdentity(identity))
  )
    throw new ServiceUnavailableError('the response is not that of a gatehouse token service');
  const grantIdentity = identity ?? previous?.identity;
  return {
    accessToken: access_token,
    refreshToken: refresh_token,
    ...owner,
    ...(grantIdentity !== undefined && { identity: grantIdentity }),
    obtained: requestedAt,
    expires: requestedAt + expires_in,
    until: requestedAt + expires_in + (refresh_until - expires),
  };
}

const RENEW_AHEAD_SECONDS = 60;
const RENEW_AHEAD_RATIO = 0.1;

/** A token is renewed a minute or a tenth of its lifetime before it expires. */
export function isFresh({ obtained, expires }: StoredGrant, now: Seconds, minSeconds?: Seconds): boolean {
  const ahead = minSeconds ?? Math.min(RENEW_AHEAD_SECONDS, (expires - obtained) * RENEW_AHEAD_RATIO);
  return now < expires - ahead;
}
