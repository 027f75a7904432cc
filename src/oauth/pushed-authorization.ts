import type { z } from 'zod';
import { ok, refused } from '../domain/outcome.ts';
import {
  findClientRedirect,
  pushAuthorizationRequest,
  readAuthorizationRequest,
} from '../grants/authorization-request.ts';
import type { Parameters } from '../http/parameters.ts';
import { authenticateRequest } from './client-authentication.ts';
import { PUSHED_AUTHORIZATION_ERRORS } from './error-tables.ts';
import { PushedAuthorizationRequest, type PushedAuthorizationResponse } from './schemas.ts';
import { formBody, type OAuthEndpoint } from './service.ts';

const { parameterNames, encodings } = formBody(PushedAuthorizationRequest);

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
    if (parameters.get('request_uri') !== undefined)
      return refused({ reason: 'request_malformed', detail: 'request_uri must not be pushed.' });
    const named: Parameters = {
      ...parameters,
      get: (name) => (name === 'client_id' ? client.value.clientId : parameters.get(name)),
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
