import type { z } from 'zod';
import { granted, refused } from '../domain/outcome.ts';
import { askForDevice } from '../grants/device-grant.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { Operation } from './service.ts';
import { type DeviceAuthorizationAnswer, DeviceAuthorizationRequest } from './wire.ts';
import { DEVICE_AUTHORIZATION_ERRORS } from './wire-errors.ts';

/** RFC 8628 §3.1: a device asks for a code that a person confirms in a browser. */
export const deviceAuthorization: Operation = {
  name: 'device',
  path: '/oauth2/device_authorization',
  known: namesOf(DeviceAuthorizationRequest),
  errors: () => DEVICE_AUTHORIZATION_ERRORS,
  async answer(service, call, parameters) {
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    call.note({ clientId });
    const codes = await askForDevice(service.desk, {
      clientId,
      scope: parameters.get('scope'),
      from: call.clientAddress,
      dialect: { spaces: true },
    });
    if (!codes.ok) return codes;
    const { deviceCode, userCode, expiresIn, interval } = codes.value;
    const page = `${service.pagesUrl}${service.path}/device`;
    return granted({
      status: 200,
      body: {
        device_code: deviceCode,
        user_code: userCode,
        verification_uri: page,
        verification_uri_complete: `${page}?user_code=${userCode}`,
        expires_in: expiresIn,
        interval,
      } satisfies z.output<typeof DeviceAuthorizationAnswer>,
    });
  },
};
