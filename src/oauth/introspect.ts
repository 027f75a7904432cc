import type { z } from 'zod';
import { type Bearer, bearerFault, type ShownCertificate } from '../domain/bearer.ts';
import { names } from '../domain/integration.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { covers, meet, type Scope, writeScope } from '../domain/scope.ts';
import { accessTokenCaller, certificateCaller } from '../grants/caller.ts';
import { identify } from '../grants/certificate-grant.ts';
import { presentedToken } from '../http/bearer.ts';
import type { Call } from '../http/call.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { OAuthService, Operation } from './service.ts';
import { type IntrospectionAnswer, IntrospectionRequest } from './wire.ts';
import { INTROSPECTION_ERRORS } from './wire-errors.ts';

const INACTIVE = { status: 200, body: { active: false } } as const;

/**
 * RFC 7662: what an access token is worth now, for a resource server that cannot or will not look itself. A refresh
 * token is told as inactive: no resource server is ever meant to see one, and one that does must not take it for an
 * access token.
 */
export const introspect: Operation = {
  name: 'introspect',
  path: '/oauth2/introspect',
  known: namesOf(IntrospectionRequest),
  errors: () => INTROSPECTION_ERRORS,
  caller(service, call) {
    const shown = presentedToken(call.request);
    if (shown.ok) return accessTokenCaller(service.desk, shown.value, call.clientAddress);
    return shown.refusal.reason === 'token_missing'
      ? certificateCaller(service.desk, service.certificateOf(call)?.der)
      : undefined;
  },
  async answer(service, call, parameters) {
    const caller = await callerMay(service, call);
    if (!caller.ok) return caller;
    const token = parameters.get('token');
    if (token === undefined) return refused({ reason: 'request_malformed', detail: 'token is required.' });
    const { desk } = service;
    const bearer = await desk.mint.readAccess(token, desk.now());
    if (bearer === undefined) return granted(INACTIVE);
    // Whether its certificate is presented is for the resource server to see; `cnf` tells which one it is.
    const worth = worthOf(service, bearer, () => presumed(bearer));
    if (!worth.ok) return granted(INACTIVE);
    return granted({
      status: 200,
      body: {
        active: true,
        // RFC 7662 §2.2: separated by spaces.
        scope: writeScope(worth.value).replaceAll(';', ' '),
        client_id: bearer.clientId,
        token_type: 'Bearer',
        exp: bearer.expires,
        iat: bearer.issuedAt,
        sub: bearer.identity,
        aud: service.publicUrl,
        iss: service.publicUrl,
        jti: `${bearer.grantId}.${bearer.generation}`,
        ...(bearer.boundTo !== undefined && { cnf: { 'x5t#S256': bearer.boundTo } }),
      } satisfies z.output<typeof IntrospectionAnswer>,
    });
  },
};

const presumed = ({ boundTo }: Bearer): ShownCertificate | undefined =>
  boundTo === undefined ? undefined : { fingerprint: boundTo, accepted: true };

/** The token's scope within the integration's scope of now, when it counts at all. */
function worthOf(
  { desk }: OAuthService,
  bearer: Bearer,
  certificate: () => ShownCertificate | undefined,
): Outcome<Scope> {
  const integration = desk.integrations.get(bearer.clientId);
  const fault = bearerFault(bearer, {
    now: desk.now(),
    revoked: desk.store.revocations.isRevoked(bearer),
    clientKnown: integration !== undefined,
    certificate,
  });
  if (fault !== undefined) return refused({ reason: 'token_invalid', why: fault });
  if (integration === undefined) return refused({ reason: 'token_invalid', why: 'client_removed' });
  return granted(meet(bearer.scope, integration.scope));
}

/** Tokens are not for everybody to try out (RFC 7662 §4): the caller shows a token, or its certificate. */
async function callerMay(service: OAuthService, call: Call): Promise<Outcome<unknown>> {
  const { desk, introspection } = service;
  const shown = presentedToken(call.request);
  if (!shown.ok && shown.refusal.reason !== 'token_missing') return shown;
  if (shown.ok) {
    const bearer = await desk.mint.readAccess(shown.value, desk.now());
    if (bearer === undefined) return refused({ reason: 'token_invalid', why: 'not_authentic' });
    call.note({ identity: bearer.identity, clientId: bearer.clientId });
    const worth = worthOf(service, bearer, () => service.shownCertificate(call));
    if (!worth.ok) return worth;
    const { requires } = introspection;
    if (requires !== undefined && covers(worth.value, requires)) return granted(undefined);
    return refused({
      reason: 'token_scope_unmet',
      scope: requires === undefined ? '(none suffices)' : writeScope(requires),
    });
  }
  const certificate = service.certificateOf(call)?.der;
  if (certificate === undefined) return shown;
  const known = await identify(desk, certificate);
  if (!known.ok) return known;
  const { person } = known.value;
  call.note({ identity: person.identity });
  return introspection.access.some((entry) => names(entry, person))
    ? granted(undefined)
    : refused({ reason: 'identity_not_allowed', identity: person.identity });
}
