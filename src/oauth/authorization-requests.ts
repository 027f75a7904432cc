import type { z } from 'zod';
import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import {
  findClientRedirect,
  pushAuthorizationRequest,
  readAuthorizationRequest,
} from '../grants/authorization-request.ts';
import { authorizeDevice } from '../grants/device-grant.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { authenticateRequest, readProof } from './client-authentication.ts';
import { DEVICE_AUTHORIZATION_ERRORS, PUSHED_AUTHORIZATION_ERRORS } from './error-tables.ts';
import {
  DeviceAuthorizationRequest,
  type DeviceAuthorizationResponse,
  PushedAuthorizationRequest,
  type PushedAuthorizationResponse,
} from './schemas.ts';
import { formBody, type OAuthEndpoint, type OAuthService } from './service.ts';

/** RFC 8628 §3.1. */
export const deviceAuthorization: OAuthEndpoint = {
  name: 'device',
  method: 'POST',
  path: '/oauth2/device_authorization',
  errors: () => DEVICE_AUTHORIZATION_ERRORS,
  body: formBody(DeviceAuthorizationRequest),
  async handle(service, context, parameters) {
    const client = await authenticateRequest(service, context, parameters, { required: true });
    if (!client.ok) return client;
    const named = {
      ...parameters,
      get: (name: string) => (name === 'client_id' ? client.value.clientId : parameters.get(name)),
    };
    const authorized = await authorizeDevice(service, context, named, {
      scopeSyntax: { allowSpaces: true },
      clientAuthenticated: client.value.isAuthenticated,
    });
    if (!authorized.ok) return authorized;
    const body: z.output<typeof DeviceAuthorizationResponse> = authorized.value.response;
    return ok({ status: 200, body });
  },
};

const { parameterNames, encodings } = formBody(PushedAuthorizationRequest);

/** RFC 9449 §10.1: a proof binds the code like `dpop_jkt`. */
async function readProofKey(
  service: OAuthService,
  context: RequestContext,
  parameters: Parameters,
): Promise<Outcome<string | undefined>> {
  const requestedKey = parameters.get('dpop_jkt');
  const proof = await readProof(service, context);
  if (!proof.ok || proof.value === undefined) return proof.ok ? ok(requestedKey) : proof;
  // Not remembered: clients without credentials could fill the memory. Repeated, it gives no more than this request.
  service.proofs?.complete(proof.value, false);
  const { proofKey } = proof.value;
  return requestedKey === undefined || requestedKey === proofKey
    ? ok(proofKey)
    : refused({ reason: 'proof_invalid', detail: 'its key is not that of dpop_jkt' });
}

/** RFC 9126 §2. */
export const pushedAuthorization: OAuthEndpoint = {
  name: 'par',
  method: 'POST',
  path: '/oauth2/par',
  errors: () => PUSHED_AUTHORIZATION_ERRORS,
  body: { parameterNames: [...parameterNames, 'request', 'request_uri'], encodings },
  async handle(service, context, parameters) {
    const client = await authenticateRequest(service, context, parameters, { required: true });
    if (!client.ok) return client;
    // RFC 9126 §2.1.
    if (parameters.get('request_uri') !== undefined) return refuseMalformed('request_uri must not be pushed.');
    const proofKey = await readProofKey(service, context, parameters);
    if (!proofKey.ok) return proofKey;
    const known: ReadonlyMap<string, string | undefined> = new Map([
      ['client_id', client.value.clientId],
      ['dpop_jkt', proofKey.value],
    ]);
    const named: Parameters = {
      ...parameters,
      get: (name) => (known.has(name) ? known.get(name) : parameters.get(name)),
    };
    const redirect = await findClientRedirect(service.grantDeps, named);
    if (!redirect.ok) return redirect;
    const request = readAuthorizationRequest(service.grantDeps, redirect.value, named, service);
    if (!request.ok) return request;
    const { requestUri, expiresIn } = pushAuthorizationRequest(service.grantDeps, request.value);
    const body: z.output<typeof PushedAuthorizationResponse> = {
      request_uri: requestUri,
      expires_in: expiresIn,
    };
    return ok({ status: 201, body });
  },
};
