import type { z } from 'zod';
import { ok } from '../domain/outcome.ts';
import { authorizeDevice } from '../grants/device-authorization.ts';
import { authenticateRequest } from './client-authentication.ts';
import { DEVICE_AUTHORIZATION_ERRORS } from './error-tables.ts';
import { DeviceAuthorizationRequest, type DeviceAuthorizationResponse } from './schemas.ts';
import { formBody, type OAuthEndpoint } from './service.ts';

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
