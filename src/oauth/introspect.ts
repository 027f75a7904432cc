import type { z } from 'zod';
import { findTokenFault, type PresentedCertificate, type VerifiedToken } from '../domain/grant.ts';
import { type Integration, isConfidential, matchesUser } from '../domain/integration.ts';
import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import { covers, formatOAuthScope, intersectScopes, type Scope } from '../domain/scope.ts';
import { identifyByCertificate } from '../grants/credential-grants.ts';
import { accessTokenRateLimitKey, certificateRateLimitKey } from '../grants/rate-limit-key.ts';
import { readBearerToken } from '../http/bearer-token.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { formatConfirmation } from '../tokens/access-token.ts';
import { authenticateRequest, hasClientCredential } from './client-authentication.ts';
import { INTROSPECTION_ERRORS } from './error-tables.ts';
import { IntrospectionRequest, type IntrospectionResponse } from './schemas.ts';
import { formBody, type OAuthEndpoint, type OAuthService } from './service.ts';

const INACTIVE = { status: 200, body: { active: false } } as const;

/** RFC 7662, for access tokens only: a resource server must not accept a refresh token, so those are inactive. */
export const introspect: OAuthEndpoint = {
  name: 'introspect',
  method: 'POST',
  path: '/oauth2/introspect',
  body: formBody(IntrospectionRequest),
  errors: () => INTROSPECTION_ERRORS,
  identifyCaller(service, context, parameters) {
    if (hasClientCredential(context, parameters)) return undefined;
    const presented = readBearerToken(context.request);
    if (presented.ok) return accessTokenRateLimitKey(service.grantDeps, presented.value, context.clientAddress);
    return presented.refusal.reason === 'token_missing'
      ? certificateRateLimitKey(service.grantDeps, service.getCertificate(context)?.der)
      : undefined;
  },
  async handle(service, context, parameters) {
    const token = parameters.get('token');
    const caller = await authorizeCaller(service, context, parameters);
    if (!caller.ok) return caller;
    if (token === undefined) return refuseMalformed('token is required.');
    const { grantDeps } = service;
    const bearer = await grantDeps.tokenIssuer.readAccessToken(token, grantDeps.now());
    if (bearer === undefined) return ok(INACTIVE);
    // The resource server checks the presented certificate and proof against `cnf`.
    const effectiveScope = getEffectiveScope(service, bearer, () => presumeCertificate(bearer), bearer.proofKey);
    if (!effectiveScope.ok) return ok(INACTIVE);
    return ok({
      status: 200,
      body: {
        active: true,
        // RFC 7662 §2.2: separated by spaces.
        scope: formatOAuthScope(effectiveScope.value),
        client_id: bearer.clientId,
        token_type: bearer.proofKey === undefined ? 'Bearer' : 'DPoP',
        exp: bearer.expires,
        iat: bearer.issuedAt,
        sub: bearer.identity,
        ...omitUndefined({
          username: bearer.profile?.name,
          email: bearer.profile?.email,
          cnf: formatConfirmation(bearer),
        }),
        ...(bearer.profile?.groups !== undefined && { groups: [...bearer.profile.groups] }),
        aud: bearer.audience?.[0] ?? service.publicUrl,
        iss: service.publicUrl,
        jti: `${bearer.grantId}.${bearer.generation}`,
      } satisfies z.output<typeof IntrospectionResponse>,
    });
  },
};

const presumeCertificate = ({ boundTo }: VerifiedToken): PresentedCertificate | undefined =>
  boundTo === undefined ? undefined : { fingerprint: boundTo, accepted: true };

/** The scope of a valid token, limited to the current scope of its integration. */
function getEffectiveScope(
  { grantDeps }: OAuthService,
  bearer: VerifiedToken,
  certificate: () => PresentedCertificate | undefined,
  proofKey?: string,
): Outcome<Scope> {
  const integration = grantDeps.integrations.get(bearer.clientId);
  const fault = findTokenFault(bearer, {
    now: grantDeps.now(),
    revoked: grantDeps.store.revocations.isRevoked(bearer),
    clientKnown: integration !== undefined,
    proofKey,
    certificate,
  });
  if (fault !== undefined) return refused({ reason: 'token_invalid', fault });
  if (integration === undefined) return refused({ reason: 'token_invalid', fault: 'client_removed' });
  return ok(intersectScopes(bearer.scope, integration.scope));
}

/** May it obtain a token with the required scope for itself? Then it may introspect with its credential as well. */
export const mayClientIntrospect = (
  { requires }: OAuthService['introspection'],
  integration: Integration | undefined,
): boolean =>
  integration !== undefined &&
  requires !== undefined &&
  isConfidential(integration) &&
  integration.grants.has('client') &&
  covers(integration.scope, requires);

async function authorizeClient(
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
): Promise<Outcome<unknown>> {
  const client = await authenticateRequest(service, context, parameters, { required: true });
  if (!client.ok) return client;
  const { clientId } = client.value;
  return mayClientIntrospect(service.introspection, service.grantDeps.integrations.get(clientId))
    ? ok(undefined)
    : refused({ reason: 'introspection_not_allowed', clientId });
}

/**
 * RFC 7662 §2.1: the caller authenticates as a client, with an access token or with the certificate of a user or workload. Any valid
 * token may introspect itself.
 */
async function authorizeCaller(
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
): Promise<Outcome<unknown>> {
  const { grantDeps, introspection } = service;
  const presented = readBearerToken(context.request);
  if (hasClientCredential(context, parameters)) {
    // RFC 6749 §2.3: no more than one method in each request.
    return presented.ok
      ? refuseMalformed('Use one method of authentication, not several.')
      : authorizeClient(service, context, parameters);
  }
  if (!presented.ok && presented.refusal.reason !== 'token_missing') return presented;
  if (presented.ok) {
    const bearer = await grantDeps.tokenIssuer.readAccessToken(presented.value, grantDeps.now());
    if (bearer === undefined) return refused({ reason: 'token_invalid', fault: 'not_authentic' });
    context.note({ identity: bearer.identity, clientId: bearer.clientId });
    const certificate = bearer.boundTo === undefined ? undefined : await service.getPresentedCertificate(context);
    const effectiveScope = getEffectiveScope(service, bearer, () => certificate);
    if (!effectiveScope.ok) return effectiveScope;
    if (presented.value === parameters.get('token')) return ok(undefined);
    if (bearer.audience !== undefined) return refused({ reason: 'token_invalid', fault: 'wrong_audience' });
    const { requires } = introspection;
    if (requires !== undefined && covers(effectiveScope.value, requires)) return ok(undefined);
    return refused({
      reason: 'token_scope_insufficient',
      scope: requires === undefined ? '(none: introspection.requires is not set)' : formatOAuthScope(requires),
    });
  }
  const certificate = service.getCertificate(context)?.der;
  if (certificate === undefined) return presented;
  const identified = await identifyByCertificate(grantDeps, certificate);
  if (!identified.ok) return identified;
  const { user } = identified.value;
  context.note({ identity: user.identity });
  return introspection.access.some((entry) => matchesUser(entry, user))
    ? ok(undefined)
    : refused({ reason: 'identity_not_allowed', identity: user.identity });
}
