import { type Outcome, ok, refused } from '../domain/outcome.ts';
import { deriveRequestId, exchangeDeviceCode } from '../grants/device-grant.ts';
import type { IssuedTokens } from '../grants/issue.ts';
import { deviceCodeRateLimitKey, refreshTokenRateLimitKey } from '../grants/rate-limit-key.ts';
import { refresh } from '../grants/refresh.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { getFieldNames } from '../http/schema-fields.ts';
import { TOKEN_ERRORS } from './error-tables.ts';
import { TokenRequest } from './schemas.ts';
import type { TokenApiEndpoint, TokenApiService } from './service.ts';
import { formatTokenGrant } from './token-grant.ts';

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

const refuseMalformed = (detail: string): Outcome<never> => refused({ reason: 'request_malformed', detail });

/** POST Authorize/Token: refreshes a token, or exchanges a device code. */
export const token: TokenApiEndpoint = {
  name: 'token',
  method: 'POST',
  path: '/authorize/token',
  errors: () => TOKEN_ERRORS,
  internalErrorStatus: 400,
  body: { parameterNames: getFieldNames(TokenRequest), encodings: ['json', 'form'] },
  identifyCaller({ grantDeps }, { clientAddress }, parameters) {
    const deviceCode = parameters.get('device_code');
    return deviceCode === undefined
      ? refreshTokenRateLimitKey(grantDeps, parameters.get('refresh_token'), clientAddress)
      : deviceCodeRateLimitKey(grantDeps, deriveRequestId(deviceCode));
  },
  async handle(service, context, parameters) {
    const issued = await issueTokens(service, context, parameters);
    if (!issued.ok) return issued;
    const { grant } = issued.value;
    context.note({ identity: grant.identity, clientId: grant.clientId, grantId: grant.id });
    return ok({ status: 200, body: formatTokenGrant(issued.value) });
  },
};

async function issueTokens(
  service: TokenApiService,
  context: RequestContext,
  parameters: Parameters,
): Promise<Outcome<IssuedTokens>> {
  const clientId = parameters.get('client_id');
  const grantType = parameters.get('grant_type');
  const deviceCode = parameters.get('device_code');
  const refreshToken = parameters.get('refresh_token');
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  context.note({ clientId });

  if (deviceCode !== undefined) {
    if (refreshToken !== undefined) return refuseMalformed('Send either refresh_token or device_code, not both.');
    if (grantType !== DEVICE_GRANT) return refuseMalformed(`grant_type must be ${DEVICE_GRANT} with a device_code.`);
    return exchangeDeviceCode(service.grantDeps, {
      clientId,
      deviceCode,
      getCertificate: () => service.getPresentedCertificate(context),
    });
  }
  if (refreshToken === undefined) return refuseMalformed('Send a refresh_token, or a device_code with its grant_type.');
  if (grantType !== undefined && grantType !== 'refresh_token')
    return refuseMalformed('grant_type must be refresh_token with a refresh_token.');
  if (parameters.encoding !== 'json') return refuseMalformed('A refresh must be sent as application/json.');
  const certificate = service.getCertificate(context);
  return refresh(service.grantDeps, {
    clientId,
    refreshToken,
    arrivedAt: context.arrivedAt,
    ...(certificate !== undefined && { certificate }),
  });
}
