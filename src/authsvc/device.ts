import type { z } from 'zod';
import { granted, refused } from '../domain/outcome.ts';
import { askForDevice } from '../grants/device-grant.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { Operation } from './service.ts';
import { type DeviceCodes, DeviceRequest } from './wire.ts';
import { DEVICE_ERRORS } from './wire-errors.ts';

/** POST Authorize/Device: a device asks for a code that a person confirms in a browser. */
export const device: Operation = {
  name: 'device',
  method: 'POST',
  head: false,
  path: '/authorize/device',
  errors: DEVICE_ERRORS,
  fault: { status: 400, code: 'invalid_request' },
  body: { known: namesOf(DeviceRequest), accepted: ['json', 'form'] },
  async answer(service, call, parameters) {
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    call.note({ clientId });
    const codes = await askForDevice(service.desk, {
      clientId,
      scope: parameters.get('scope'),
      from: call.clientAddress,
    });
    if (!codes.ok) return codes;
    const { deviceCode, userCode, expires, expiresIn, interval } = codes.value;
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
        expires,
      } satisfies z.output<typeof DeviceCodes>,
    });
  },
};
