import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { deviceCodeCaller, refreshTokenCaller } from '../grants/caller.ts';
import { exchangeDeviceCode, requestIdOf } from '../grants/device-grant.ts';
import type { Issued } from '../grants/issue.ts';
import { refresh } from '../grants/refresh.ts';
import type { Call } from '../http/call.ts';
import type { Parameters } from '../http/parameters.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { Operation, Service } from './service.ts';
import { tokenGrant } from './token-grant.ts';
import { TokenRequest } from './wire.ts';
import { TOKEN_ERRORS } from './wire-errors.ts';

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

const malformed = (detail: string): Outcome<never> => refused({ reason: 'request_malformed', detail });

/** POST Authorize/Token: refreshes a token, or gives the first one after device authorization. */
export const token: Operation = {
  name: 'token',
  method: 'POST',
  head: false,
  path: '/authorize/token',
  errors: TOKEN_ERRORS,
  fault: { status: 400, code: 'invalid_request' },
  body: { known: namesOf(TokenRequest), accepted: ['json', 'form'] },
  caller({ desk }, { clientAddress }, parameters) {
    const deviceCode = parameters.get('device_code');
    return deviceCode === undefined
      ? refreshTokenCaller(desk, parameters.get('refresh_token'), clientAddress)
      : deviceCodeCaller(desk, requestIdOf(deviceCode));
  },
  async answer(service, call, parameters) {
    const issued = await obtain(service, call, parameters);
    if (!issued.ok) return issued;
    const { grant } = issued.value;
    call.note({ identity: grant.identity, clientId: grant.clientId, grantId: grant.id });
    return granted({ status: 200, body: tokenGrant(issued.value) });
  },
};

async function obtain(service: Service, call: Call, parameters: Parameters): Promise<Outcome<Issued>> {
  const clientId = parameters.get('client_id');
  const grantType = parameters.get('grant_type');
  const deviceCode = parameters.get('device_code');
  const refreshToken = parameters.get('refresh_token');
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  call.note({ clientId });

  if (deviceCode !== undefined) {
    if (refreshToken !== undefined) return malformed('Send either refresh_token or device_code, not both.');
    if (grantType !== DEVICE_GRANT)
      return malformed(`grant_type must be ${DEVICE_GRANT} with a device_code.`);
    return exchangeDeviceCode(service.desk, { clientId, deviceCode });
  }
  if (refreshToken === undefined)
    return malformed('Send a refresh_token, or a device_code with its grant_type.');
  if (grantType !== undefined && grantType !== 'refresh_token')
    return malformed('grant_type, where it is sent with a refresh_token, must be refresh_token.');
  if (parameters.encoding !== 'json') return malformed('A refresh must be sent as application/json.');
  const certificate = service.certificateOf(call);
  return refresh(service.desk, {
    clientId,
    refreshToken,
    arrivedAt: call.arrivedAt,
    ...(certificate !== undefined && { certificate }),
  });
}
