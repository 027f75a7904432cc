import type { z } from 'zod';
import { ok } from '../domain/outcome.ts';
import { authorizeDevice } from '../grants/device-authorization.ts';
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
    const authorized = await authorizeDevice(service, context, parameters, { allowSpaces: true });
    if (!authorized.ok) return authorized;
    const body: z.output<typeof DeviceAuthorizationResponse> = authorized.value.response;
    return ok({ status: 200, body });
  },
};
