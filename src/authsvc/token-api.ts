import * as z from 'zod';
import { type Epoch, findTokenFault, getGrantState } from '../domain/grant.ts';
import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import { grantByCertificate } from '../grants/credential-grants.ts';
import { authorizeDevice, deriveRequestId, exchangeDeviceCode } from '../grants/device-grant.ts';
import { type Endpoint, type EndpointService, type EndpointSet, handleEndpoint } from '../grants/endpoint.ts';
import type { IssuedTokens } from '../grants/issue.ts';
import {
  accessTokenRateLimitKey,
  certificateRateLimitKey,
  deviceCodeRateLimitKey,
  type RateLimitKey,
  refreshTokenRateLimitKey,
} from '../grants/rate-limit-key.ts';
import { refresh } from '../grants/refresh.ts';
import { isGrantRevoked, revokeByToken } from '../grants/revoke.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import type { Parameters } from '../http/parameters.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { deviceNameField, getFieldNames, integerField, nonEmptyField, textField } from '../http/schema-fields.ts';
import { BEARER_ERRORS, CERTIFICATE_ERRORS, DEVICE_ERRORS, TOKEN_ERRORS } from './error-tables.ts';

/** Requests and responses. The endpoints take their parameter names and types from here, and so does the OpenAPI document. */

const clientId = nonEmptyField('The API integration.').meta({ examples: ['report-runner'] });
const scope = nonEmptyField('`resource:permission,permission` joined by `;`.').meta({
  examples: ['files:read;reports:read,write'],
});

export const TokenRequest = z.looseObject({
  client_id: clientId,
  grant_type: nonEmptyField(
    '`urn:ietf:params:oauth:grant-type:device_code` with a device_code; with a refresh_token `refresh_token`, or omitted.',
  ).exactOptional(),
  device_code: nonEmptyField('From Authorize/Device. Either this or a refresh_token.').exactOptional(),
  refresh_token: nonEmptyField('From the latest response; JSON only.').exactOptional(),
});

export const CertificateRequest = z.looseObject({ client_id: clientId, scope });

export const DeviceRequest = z.looseObject({ client_id: clientId, scope, device_name: deviceNameField });

export const TokenGrant = z.object({
  access_token: textField('Sent as `Authorization: Bearer …`; opaque to the client.'),
  refresh_token: textField('Exchanged for the next pair; valid once.'),
  expires_in: integerField('Seconds until the access token expires.'),
  expires: integerField('When the access token expires, in seconds since 1970.'),
  token_type: z.literal('Bearer'),
  scope: textField('As requested.'),
  refresh_until: integerField('When the grant expires, in seconds since 1970. It never changes.'),
});

export const CertificateGrant = TokenGrant.extend({
  identity: textField('The identity in the certificate, as `label:id`.'),
});

export const DeviceResponse = z.object({
  device_code: textField('Sent when polling for the token.'),
  user_code: textField('Shown to the user, as `XXXX-XXXX`.'),
  verification_uri: textField('Where the user enters it.'),
  verification_uri_complete: textField('The same URL with the code, for a QR code.'),
  expires_in: integerField('Seconds until the codes expire.'),
  interval: integerField('Minimum seconds between polls.'),
  expires: integerField('When the codes expire, in seconds since 1970.'),
});

const timestampFields = <N extends string>(name: N, description: string) =>
  ({
    [name]: z
      .string()
      .regex(/^\/Date\(\d+\)\/$/)
      .meta({ description }),
    [`${name}_ISO8601`]: z.string().regex(/^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
    [`${name}_unix_time`]: z.int().min(0),
  }) as { [K in N | `${N}_ISO8601`]: z.ZodString } & { [K in `${N}_unix_time`]: z.ZodInt };

export const VerifyResponse = z.object({
  application: clientId,
  identity: textField('The user, as `label:id`.'),
  scope: textField('The scope of the grant, as requested.'),
  valid_for: integerField('The total lifetime of the access token, in seconds.'),
  ...timestampFields('access_issued_on', 'When this access token was issued.'),
  ...timestampFields('grant_issued_on', 'When its grant was issued.'),
  ...timestampFields('expires', 'When its grant expires.'),
});

type EndpointName = 'token' | 'certificate' | 'device' | 'revoke' | 'verify';

export type TokenApiService = EndpointService<EndpointName>;
type TokenApiEndpoint = Endpoint<EndpointName, TokenApiService>;

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

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
  return refresh(service.grantDeps, {
    clientId,
    refreshToken,
    arrivedAt: context.arrivedAt,
    certificate: service.getCertificate(context),
  });
}

/** POST Authorize/Certificate: a grant for the identity in the client certificate. */
export const certificate: TokenApiEndpoint = {
  name: 'certificate',
  method: 'POST',
  path: '/authorize/certificate',
  errors: () => CERTIFICATE_ERRORS,
  internalErrorStatus: 400,
  body: { parameterNames: getFieldNames(CertificateRequest), encodings: ['json'] },
  identifyCaller: (service, context, parameters) =>
    certificateRateLimitKey(service.grantDeps, service.getCertificate(context)?.der, parameters.get('client_id')),
  async handle(service, context, parameters) {
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    context.note({ clientId });
    const issued = await grantByCertificate(service.grantDeps, {
      clientId,
      scope: parameters.get('scope'),
      certificate: service.getCertificate(context)?.der,
    });
    if (!issued.ok) return issued;
    const { grant } = issued.value;
    context.note({ identity: grant.identity, grantId: grant.id });
    return ok({
      status: 200,
      body: {
        ...formatTokenGrant(issued.value),
        identity: grant.identity,
      } satisfies z.output<typeof CertificateGrant>,
    });
  },
};

/** Section 2.1 of the specification. */
const formatTokenGrant = ({ grant, pair, expiresIn }: IssuedTokens): z.output<typeof TokenGrant> => ({
  access_token: pair.accessToken,
  refresh_token: pair.refreshToken,
  expires_in: expiresIn,
  expires: grant.accessExpires,
  token_type: 'Bearer',
  scope: grant.scope,
  refresh_until: grant.refreshUntil,
});

/** POST Authorize/Device: codes for a device whose user confirms in a browser. */
export const device: TokenApiEndpoint = {
  name: 'device',
  method: 'POST',
  path: '/authorize/device',
  errors: () => DEVICE_ERRORS,
  internalErrorStatus: 400,
  body: { parameterNames: getFieldNames(DeviceRequest), encodings: ['json', 'form'] },
  async handle(service, context, parameters) {
    const authorized = await authorizeDevice(service, context, parameters);
    if (!authorized.ok) return authorized;
    const { response, expires } = authorized.value;
    return ok({ status: 200, body: { ...response, expires } satisfies z.output<typeof DeviceResponse> });
  },
};

/**
 * GET Revoke/Token: revokes the whole grant. Any authentic token suffices, even if it has expired, was superseded or
 * revoked, or is presented without its certificate.
 */
export const revoke: TokenApiEndpoint = {
  name: 'revoke',
  method: 'GET',
  path: '/revoke/token',
  errors: () => BEARER_ERRORS,
  identifyCaller: identifyBearerCaller,
  async handle(service, context) {
    const { 'sec-purpose': secPurpose = '', purpose: oldPurpose = '' } = context.request.headers;
    if (/prefetch|prerender/i.test(String([secPurpose, oldPurpose])))
      return refuseMalformed('A prefetch request does not revoke the token.');
    const token = readBearerToken(context.request);
    if (!token.ok) return token;
    const { grantDeps } = service;
    // Needs no store read, so that this process rejects the token even while the store is unreachable.
    const claims = await grantDeps.tokenIssuer.openAccessToken(token.value, grantDeps.now());
    if (claims === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
    context.note({ grantId: claims.grantId });
    const revoked = await revokeByToken(grantDeps, claims, { by: 'access_token' });
    if (!revoked.ok) return revoked;
    if (revoked.value !== undefined)
      context.note({ identity: revoked.value.identity, clientId: revoked.value.clientId });
    return ok({ status: 200, body: {} });
  },
};

/** GET Authorize/Verify: the validity of an access token, and its grant. */
export const verify: TokenApiEndpoint = {
  name: 'verify',
  method: 'GET',
  allowsHead: true,
  path: '/authorize/verify',
  errors: () => BEARER_ERRORS,
  identifyCaller: identifyBearerCaller,
  async handle(service, context) {
    const { grantDeps } = service;
    const token = readBearerToken(context.request);
    if (!token.ok) return token;
    const bearer = await grantDeps.tokenIssuer.readAccessToken(token.value, grantDeps.now());
    if (bearer === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
    context.note({ identity: bearer.identity, clientId: bearer.clientId, grantId: bearer.grantId });
    const certificate = bearer.boundTo === undefined ? undefined : await service.getPresentedCertificate(context);
    const fault = findTokenFault(bearer, {
      now: grantDeps.now(),
      revoked: grantDeps.store.revocations.isRevoked(bearer),
      clientKnown: grantDeps.integrations.has(bearer.clientId),
      certificate: () => certificate,
    });
    if (fault !== undefined) return refused({ reason: 'token_invalid', fault });
    // The response has no audience: an API that asks here would accept tokens of another one.
    if (bearer.audience !== undefined) return refused({ reason: 'token_invalid', fault: 'wrong_audience' });
    const found = await grantDeps.store.grants.read(bearer.grantId);
    if (
      found === undefined ||
      getGrantState(found.record, found.now) !== 'live' ||
      isGrantRevoked(grantDeps, found.record)
    )
      return refused({ reason: 'token_invalid', fault: 'revoked' });
    const grant = found.record;
    return ok({
      status: 200,
      body: {
        application: bearer.clientId,
        identity: bearer.identity,
        scope: grant.scope,
        valid_for: bearer.expires - bearer.issuedAt,
        ...formatTimestamp('access_issued_on', bearer.issuedAt),
        ...formatTimestamp('grant_issued_on', grant.issuedAt),
        ...formatTimestamp('expires', grant.refreshUntil),
      },
    });
  },
};

const formatTimestamp = (name: string, time: Epoch) => ({
  [name]: `/Date(${time * 1_000})/`,
  [`${name}_ISO8601`]: new Date(time * 1_000).toISOString().replace('.000Z', 'Z'),
  [`${name}_unix_time`]: time,
});

/** For rate limits: the grant of an authentic access token, even an expired one. */
async function identifyBearerCaller(
  { grantDeps }: TokenApiService,
  { request, clientAddress }: RequestContext,
): Promise<RateLimitKey> {
  const token = readBearerToken(request);
  return token.ok ? accessTokenRateLimitKey(grantDeps, token.value, clientAddress) : undefined;
}

const TOKEN_API: EndpointSet<TokenApiEndpoint['name'], TokenApiService> = {
  endpoints: [token, certificate, device, revoke, verify],
  getRule: (name) => `authsvc:${name}`,
  getAuditName: (name) => name,
  formatError: (code, description) => ({ Error: code, Error_description: description }),
  formatChallenge: (name, code) =>
    name === 'certificate' ? 'Mutual realm="gatehouse"' : `Bearer realm="gatehouse", error="${code}"`,
  // A resumed TLS session has only the leaf certificate, so its chain is unknown: a new handshake is needed.
  closesConnection: ({ reason }, context) =>
    reason === 'certificate_issuer_not_approved' && context.certificate() !== undefined,
};

export const TOKEN_API_PATHS: readonly string[] = TOKEN_API.endpoints.map(({ path }) => path);

/** The token API of the specification. Paths are compared without case. */
export const handleTokenApi = (service: TokenApiService, context: RequestContext, subpath: string): Promise<Reply> =>
  handleEndpoint(TOKEN_API, service, context, subpath);
