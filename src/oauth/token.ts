import type { z } from 'zod';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { grantByCertificate } from '../grants/certificate-grant.ts';
import { deriveRequestId, exchangeDeviceCode } from '../grants/device-grant.ts';
import type { IssuedTokens } from '../grants/issue.ts';
import {
  certificateRateLimitKey,
  deviceCodeRateLimitKey,
  type RateLimitKey,
  refreshTokenRateLimitKey,
} from '../grants/rate-limit-key.ts';
import { refresh } from '../grants/refresh.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { CLIENT_CREDENTIALS_ERRORS, TOKEN_ERRORS } from './error-tables.ts';
import { GRANT_TYPES, TokenRequest, type TokenResponse } from './schemas.ts';
import { formBody, type OAuthEndpoint, type OAuthService } from './service.ts';

const [DEVICE_GRANT] = GRANT_TYPES;

type GrantHandler = (
  service: OAuthService,
  context: RequestContext,
  clientId: string,
  parameters: Parameters,
) => Promise<Outcome<IssuedTokens>>;

const refuseMissing = (name: string): Outcome<never> =>
  refused({ reason: 'request_malformed', detail: `${name} is required with this grant_type.` });

/** RFC 8628 §3.4. */
const handleDeviceCode: GrantHandler = async ({ grantDeps }, _context, clientId, parameters) => {
  const deviceCode = parameters.get('device_code');
  if (deviceCode === undefined) return refuseMissing('device_code');
  return exchangeDeviceCode(grantDeps, { clientId, deviceCode, slowDown: true });
};

/** RFC 6749 §6. */
const handleRefreshToken: GrantHandler = async (service, context, clientId, parameters) => {
  const refreshToken = parameters.get('refresh_token');
  if (refreshToken === undefined) return refuseMissing('refresh_token');
  const scope = parameters.get('scope');
  const certificate = service.getCertificate(context);
  return refresh(service.grantDeps, {
    clientId,
    refreshToken,
    arrivedAt: context.arrivedAt,
    ...(scope !== undefined && { scope }),
    ...(certificate !== undefined && { certificate }),
  });
};

const identifyCertificateCaller = (
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
): RateLimitKey =>
  certificateRateLimitKey(
    service.grantDeps,
    service.getCertificate(context)?.der,
    parameters.get('client_id'),
  );

/** RFC 6749 §4.4 with RFC 8705 §2: the client authenticates with its certificate. */
const handleClientCredentials: GrantHandler = async (service, context, clientId, parameters) => {
  const caller = identifyCertificateCaller(service, context, parameters);
  const wait = await service.rateLimits.certificate.take(caller ?? getRateLimitKey(context.clientAddress));
  if (wait > 0) return refused({ reason: 'too_many_requests', retryAfter: wait });
  return grantByCertificate(service.grantDeps, {
    clientId,
    scope: parameters.get('scope'),
    certificate: service.getCertificate(context)?.der,
    scopeSyntax: { allowSpaces: true },
    accessOnly: true,
  });
};

const GRANT_HANDLERS: Readonly<Record<(typeof GRANT_TYPES)[number], GrantHandler>> = {
  [DEVICE_GRANT]: handleDeviceCode,
  refresh_token: handleRefreshToken,
  client_credentials: handleClientCredentials,
};

/** The grant types that can succeed under this configuration. */
export const getSupportedGrantTypes = ({ grantDeps, acceptsCertificates }: OAuthService) =>
  GRANT_TYPES.filter(
    (name) =>
      (name !== DEVICE_GRANT || grantDeps.policy.device.enabled) &&
      (name !== 'client_credentials' || acceptsCertificates),
  );

export const token: OAuthEndpoint = {
  name: 'token',
  method: 'POST',
  path: '/oauth2/token',
  body: formBody(TokenRequest),
  errors: (parameters) =>
    parameters.get('grant_type') === 'client_credentials' ? CLIENT_CREDENTIALS_ERRORS : TOKEN_ERRORS,
  identifyCaller(service, context, parameters) {
    const { grantDeps } = service;
    const grantType = parameters.get('grant_type');
    if (grantType === 'client_credentials') return identifyCertificateCaller(service, context, parameters);
    return grantType === DEVICE_GRANT
      ? deviceCodeRateLimitKey(grantDeps, deriveRequestId(parameters.get('device_code') ?? ''))
      : refreshTokenRateLimitKey(grantDeps, parameters.get('refresh_token'), context.clientAddress);
  },
  async handle(service, context, parameters) {
    const grantType = parameters.get('grant_type');
    if (grantType === undefined)
      return refused({ reason: 'request_malformed', detail: 'grant_type is required.' });
    const supportedType = getSupportedGrantTypes(service).find((name) => name === grantType);
    if (supportedType === undefined) return refused({ reason: 'grant_type_unsupported', grantType });
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    context.note({ clientId });

    const issued = await GRANT_HANDLERS[supportedType](service, context, clientId, parameters);
    if (!issued.ok) return issued;
    const { grant, pair, expiresIn } = issued.value;
    context.note({ identity: grant.identity, grantId: grant.id });
    return ok({
      status: 200,
      body: {
        access_token: pair.accessToken,
        token_type: 'Bearer',
        expires_in: expiresIn,
        // RFC 6749 §4.4.3: none for client_credentials.
        ...(grantType !== 'client_credentials' && { refresh_token: pair.refreshToken }),
        scope: grant.scope,
      } satisfies z.output<typeof TokenResponse>,
    });
  },
};
