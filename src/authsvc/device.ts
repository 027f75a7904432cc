import type { z } from 'zod';
import { ok } from '../domain/outcome.ts';
import { authorizeDevice } from '../grants/device-authorization.ts';
import { getFieldNames } from '../http/schema-fields.ts';
import { DEVICE_ERRORS } from './error-tables.ts';
import { DeviceRequest, type DeviceResponse } from './schemas.ts';
import type { TokenApiEndpoint } from './service.ts';

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
