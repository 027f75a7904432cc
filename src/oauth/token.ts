import type { z } from 'zod';
import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import { toOAuthScope } from '../domain/scope.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import type { AuthenticatedClient } from '../grants/client-authentication.ts';
import { exchangeCode } from '../grants/code-grant.ts';
import { grantByCertificate, grantByExchange, grantToClient } from '../grants/credential-grants.ts';
import { deriveRequestId, exchangeDeviceCode } from '../grants/device-grant.ts';
import type { IssuedTokens, TokenRequest } from '../grants/issue.ts';
import {
  certificateRateLimitKey,
  deviceCodeRateLimitKey,
  type RateLimitKey,
  refreshTokenRateLimitKey,
} from '../grants/rate-limit-key.ts';
import { refresh } from '../grants/refresh.ts';
import { createTargetCheck, readRequestedAudience } from '../grants/requested-audience.ts';
import type { ErrorTable } from '../http/error-table.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { type AcceptedProof, authenticateRequest, readProof } from './client-authentication.ts';
import { CLIENT_CREDENTIALS_ERRORS, TOKEN_ERRORS, TOKEN_EXCHANGE_ERRORS } from './error-tables.ts';
import {
  ACCESS_TOKEN_TYPE,
  GRANT_TYPES,
  SUBJECT_TOKEN_TYPE_URNS,
  TokenRequest as TokenRequestSchema,
  type TokenResponse,
} from './schemas.ts';
import { formBody, type OAuthEndpoint, type OAuthService } from './service.ts';

const [DEVICE_GRANT, , , TOKEN_EXCHANGE, JWT_BEARER, AUTHORIZATION_CODE] = GRANT_TYPES;

interface TokenCall {
  readonly service: OAuthService;
  readonly context: RequestContext;
  readonly parameters: Parameters;
}

type GrantHandler = (request: TokenRequest, call: TokenCall) => Promise<Outcome<IssuedTokens>>;

const refuseMissing = (name: string): Outcome<never> => refuseMalformed(`${name} is required with this grant_type.`);

/** RFC 8628 §3.4. */
const handleDeviceCode: GrantHandler = async (request, { service, parameters }) => {
  const deviceCode = parameters.get('device_code');
  if (deviceCode === undefined) return refuseMissing('device_code');
  return exchangeDeviceCode(service.grantDeps, { ...request, deviceCode, slowDown: true });
};

/** RFC 7636 §4.1. */
const VERIFIER = /^[A-Za-z0-9._~-]{43,128}$/;

/** RFC 6749 §4.1.3, RFC 7636 §4.5. */
const handleAuthorizationCode: GrantHandler = async (request, { service, parameters }) => {
  const code = parameters.get('code');
  if (code === undefined) return refuseMissing('code');
  const redirectUri = parameters.get('redirect_uri');
  if (redirectUri === undefined) return refuseMissing('redirect_uri');
  const verifier = parameters.get('code_verifier');
  if (verifier === undefined) return refuseMissing('code_verifier');
  if (!VERIFIER.test(verifier))
    return refuseMalformed('code_verifier must be 43 to 128 characters: letters, digits and -._~');
  const isTarget = createTargetCheck(parameters, service);
  return exchangeCode(service.grantDeps, { ...request, code, redirectUri, verifier, isTarget });
};

/** RFC 6749 §6. */
const handleRefreshToken: GrantHandler = async (request, { service, context, parameters }) => {
  const refreshToken = parameters.get('refresh_token');
  if (refreshToken === undefined) return refuseMissing('refresh_token');
  return refresh(service.grantDeps, {
    ...request,
    refreshToken,
    arrivedAt: context.arrivedAt,
    isTarget: createTargetCheck(parameters, service),
    scope: parameters.get('scope'),
    certificate: service.getCertificate(context),
  });
};

const identifyCertificateCaller = (
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
): RateLimitKey =>
  certificateRateLimitKey(service.grantDeps, service.getCertificate(context)?.der, parameters.get('client_id'));

/** RFC 6749 §4.4: the client authenticates with its secret or key, or with a certificate (RFC 8705 §2). No refresh token (§4.4.3). */
const handleClientCredentials: GrantHandler = async (request, { service, context, parameters }) => {
  const scope = parameters.get('scope');
  if (request.clientAuthenticated === true) return grantToClient(service.grantDeps, { ...request, scope });
  const caller = identifyCertificateCaller(service, context, parameters);
  const wait = await service.rateLimits.certificate.take(caller ?? getRateLimitKey(context.clientAddress));
  if (wait > 0) return refused({ reason: 'too_many_requests', retryAfter: wait });
  return grantByCertificate(service.grantDeps, {
    ...request,
    scope,
    certificate: service.getCertificate(context)?.der,
    scopeSyntax: { allowSpaces: true },
    accessOnly: true,
  });
};

/** RFC 8693 §2.1. */
const handleTokenExchange: GrantHandler = async (request, { service, parameters }) => {
  const subjectToken = parameters.get('subject_token');
  if (subjectToken === undefined) return refuseMissing('subject_token');
  const type = parameters.get('subject_token_type');
  if (type === undefined) return refuseMissing('subject_token_type');
  const subjectTokenType = SUBJECT_TOKEN_TYPE_URNS.get(type);
  if (subjectTokenType === undefined)
    return refuseMalformed(`subject_token_type must be one of ${[...SUBJECT_TOKEN_TYPE_URNS.keys()].join(', ')}.`);
  // There is no delegation: ignoring it would issue a token that does not identify the actor.
  if (parameters.get('actor_token') !== undefined || parameters.get('actor_token_type') !== undefined)
    return refuseMalformed('actor_token is not supported.');
  if ((parameters.get('requested_token_type') ?? ACCESS_TOKEN_TYPE) !== ACCESS_TOKEN_TYPE)
    return refuseMalformed(`requested_token_type must be ${ACCESS_TOKEN_TYPE}.`);
  const scope = parameters.get('scope');
  return grantByExchange(service.grantDeps, { ...request, scope, subjectToken, subjectTokenType });
};

/** RFC 7523 §2.1. */
const handleJwtBearer: GrantHandler = async (request, { service, parameters }) => {
  const subjectToken = parameters.get('assertion');
  if (subjectToken === undefined) return refuseMissing('assertion');
  const scope = parameters.get('scope');
  return grantByExchange(service.grantDeps, { ...request, scope, subjectToken, subjectTokenType: 'jwt' });
};

const GRANT_HANDLERS: Readonly<Record<(typeof GRANT_TYPES)[number], GrantHandler>> = {
  [DEVICE_GRANT]: handleDeviceCode,
  refresh_token: handleRefreshToken,
  client_credentials: handleClientCredentials,
  [TOKEN_EXCHANGE]: handleTokenExchange,
  [JWT_BEARER]: handleJwtBearer,
  [AUTHORIZATION_CODE]: handleAuthorizationCode,
};

/** Can `client_credentials` be authenticated with a certificate? With other grant types, a certificate does not authenticate the client. */
export const hasCertificateGrant = ({ grantDeps, acceptsCertificates }: OAuthService): boolean =>
  acceptsCertificates && grantDeps.integrations.values().some(({ grants }) => grants.has('certificate'));

/** The grant types that can succeed under this configuration. */
export function getSupportedGrantTypes(service: OAuthService) {
  const { grantDeps } = service;
  const hasExchange = grantDeps.integrations.values().some(({ exchange = [] }) => exchange.length > 0);
  const hasClientGrant = grantDeps.integrations.values().some(({ grants }) => grants.has('client'));
  const isSupported: Readonly<Record<(typeof GRANT_TYPES)[number], boolean>> = {
    [DEVICE_GRANT]: grantDeps.policy.device.enabled,
    refresh_token: true,
    client_credentials: hasCertificateGrant(service) || hasClientGrant,
    [TOKEN_EXCHANGE]: hasExchange,
    [JWT_BEARER]: hasExchange,
    [AUTHORIZATION_CODE]: grantDeps.integrations.values().some(hasCodeGrant),
  };
  return GRANT_TYPES.filter((name) => isSupported[name]);
}

const ERROR_TABLES: ReadonlyMap<string | undefined, ErrorTable> = new Map([
  ['client_credentials', CLIENT_CREDENTIALS_ERRORS],
  [TOKEN_EXCHANGE, TOKEN_EXCHANGE_ERRORS],
]);

const acceptsCertificate = (service: OAuthService, context: RequestContext, clientId: string | undefined): boolean =>
  service.getCertificate(context) !== undefined &&
  service.grantDeps.integrations.get(clientId ?? '')?.grants.has('certificate') === true;

/** A refresh compares the target with the grant instead, and a code has one; the handlers refuse an unknown client. */
function resolveTarget(
  service: OAuthService,
  grantType: string,
  { clientId }: AuthenticatedClient,
  parameters: Parameters,
): Outcome<string | undefined> {
  const integration = service.grantDeps.integrations.get(clientId);
  if (integration === undefined || grantType === 'refresh_token' || grantType === AUTHORIZATION_CODE)
    return ok(undefined);
  return readRequestedAudience(parameters, integration, service);
}

/** RFC 9449 §11.1: the proof is used up if tokens are issued. A request that fails can be repeated with it. */
async function useProof(
  { proofs }: OAuthService,
  proof: AcceptedProof | undefined,
  issue: () => Promise<Outcome<IssuedTokens>>,
): Promise<Outcome<IssuedTokens>> {
  if (proof === undefined) return issue();
  let wasIssued = false;
  try {
    const issued = await issue();
    wasIssued = issued.ok;
    return issued;
  } finally {
    proofs?.complete(proof, wasIssued);
  }
}

export const token: OAuthEndpoint = {
  name: 'token',
  method: 'POST',
  path: '/oauth2/token',
  body: formBody(TokenRequestSchema),
  errors: (parameters) => ERROR_TABLES.get(parameters.get('grant_type')) ?? TOKEN_ERRORS,
  identifyCaller(service, context, parameters) {
    const { grantDeps } = service;
    const grantType = parameters.get('grant_type');
    if (grantType === 'client_credentials') return identifyCertificateCaller(service, context, parameters);
    if (grantType === TOKEN_EXCHANGE || grantType === JWT_BEARER || grantType === AUTHORIZATION_CODE) return undefined;
    return grantType === DEVICE_GRANT
      ? deviceCodeRateLimitKey(grantDeps, deriveRequestId(parameters.get('device_code') ?? ''))
      : refreshTokenRateLimitKey(grantDeps, parameters.get('refresh_token'), context.clientAddress);
  },
  async handle(service, context, parameters) {
    const grantType = parameters.get('grant_type');
    if (grantType === undefined) return refuseMalformed('grant_type is required.');
    const supportedType = getSupportedGrantTypes(service).find((name) => name === grantType);
    if (supportedType === undefined) return refused({ reason: 'grant_type_unsupported', grantType });
    // A certificate authenticates the client with client_credentials only: elsewhere it is that of a user or workload.
    const required =
      grantType !== 'client_credentials' || !acceptsCertificate(service, context, parameters.get('client_id'));
    const client = await authenticateRequest(service, context, parameters, { required });
    if (!client.ok) return client;

    const target = resolveTarget(service, grantType, client.value, parameters);
    if (!target.ok) return target;

    const proof = await readProof(service, context);
    if (!proof.ok) return proof;

    const issued = await useProof(service, proof.value, () =>
      GRANT_HANDLERS[supportedType](
        {
          clientId: client.value.clientId,
          clientAuthenticated: client.value.isAuthenticated,
          audience: target.value,
          proofKey: proof.value?.proofKey,
          getCertificate: () => service.getPresentedCertificate(context),
        },
        { service, context, parameters },
      ),
    );
    if (!issued.ok) return issued;
    const { grant, pair, expiresIn, isRefreshable } = issued.value;
    context.note({ identity: grant.identity, grantId: grant.id });
    return ok({
      status: 200,
      body: {
        access_token: pair.accessToken,
        token_type: grant.proofKey === undefined ? 'Bearer' : 'DPoP',
        expires_in: expiresIn,
        ...(grantType === TOKEN_EXCHANGE && { issued_token_type: ACCESS_TOKEN_TYPE }),
        ...(isRefreshable && { refresh_token: pair.refreshToken }),
        scope: toOAuthScope(grant.scope),
      } satisfies z.output<typeof TokenResponse>,
    });
  },
};
