import type { z } from 'zod';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { type Caller, certificateCaller, deviceCodeCaller, refreshTokenCaller } from '../grants/caller.ts';
import { grantByCertificate } from '../grants/certificate-grant.ts';
import { exchangeDeviceCode, requestIdOf } from '../grants/device-grant.ts';
import type { Issued } from '../grants/issue.ts';
import { refresh } from '../grants/refresh.ts';
import type { Call } from '../http/call.ts';
import type { Parameters } from '../http/parameters.ts';
import { limitName } from '../http/rate-limit.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { OAuthService, Operation } from './service.ts';
import { GRANT_TYPES, type TokenAnswer, TokenRequest } from './wire.ts';
import { CLIENT_CREDENTIALS_ERRORS, TOKEN_ERRORS } from './wire-errors.ts';

const [DEVICE_GRANT] = GRANT_TYPES;

const SPACES = { spaces: true } as const;

type Obtain = (
  service: OAuthService,
  call: Call,
  clientId: string,
  parameters: Parameters,
) => Promise<Outcome<Issued>>;

const missing = (name: string): Outcome<never> =>
  refused({ reason: 'request_malformed', detail: `${name} is required with this grant_type.` });

/** RFC 8628 §3.4. */
const byDeviceCode: Obtain = async ({ desk }, _call, clientId, parameters) => {
  const deviceCode = parameters.get('device_code');
  if (deviceCode === undefined) return missing('device_code');
  return exchangeDeviceCode(desk, { clientId, deviceCode, slowDown: true });
};

/** RFC 6749 §6. */
const byRefreshToken: Obtain = async (service, call, clientId, parameters) => {
  const refreshToken = parameters.get('refresh_token');
  if (refreshToken === undefined) return missing('refresh_token');
  const scope = parameters.get('scope');
  const certificate = service.certificateOf(call);
  return refresh(service.desk, {
    clientId,
    refreshToken,
    arrivedAt: call.arrivedAt,
    ...(scope !== undefined && { scope }),
    ...(certificate !== undefined && { certificate }),
  });
};

const callerByCertificate = (service: OAuthService, call: Call, parameters: Parameters): Caller =>
  certificateCaller(service.desk, service.certificateOf(call)?.der, parameters.get('client_id'));

/** RFC 6749 §4.4 by RFC 8705 §2: the certificate is the credential. */
const byCertificate: Obtain = async (service, call, clientId, parameters) => {
  const caller = callerByCertificate(service, call, parameters);
  const wait = await service.rates.certificate.take(caller ?? limitName(call.clientAddress));
  if (wait > 0) return refused({ reason: 'too_many_requests', retryAfter: wait });
  return grantByCertificate(service.desk, {
    clientId,
    scope: parameters.get('scope'),
    certificate: service.certificateOf(call)?.der,
    dialect: SPACES,
    accessOnly: true,
  });
};

const GRANTS: Readonly<Record<(typeof GRANT_TYPES)[number], Obtain>> = {
  [DEVICE_GRANT]: byDeviceCode,
  refresh_token: byRefreshToken,
  client_credentials: byCertificate,
};

/** The grant types that can succeed under this configuration. */
export const grantTypes = ({ desk, certificates }: OAuthService) =>
  GRANT_TYPES.filter(
    (name) =>
      (name !== DEVICE_GRANT || desk.policy.device.enabled) &&
      (name !== 'client_credentials' || certificates),
  );

export const token: Operation = {
  name: 'token',
  path: '/oauth2/token',
  known: namesOf(TokenRequest),
  errors: (parameters) =>
    parameters.get('grant_type') === 'client_credentials' ? CLIENT_CREDENTIALS_ERRORS : TOKEN_ERRORS,
  caller(service, call, parameters) {
    const { desk } = service;
    const grantType = parameters.get('grant_type');
    if (grantType === 'client_credentials') return callerByCertificate(service, call, parameters);
    return grantType === DEVICE_GRANT
      ? deviceCodeCaller(desk, requestIdOf(parameters.get('device_code') ?? ''))
      : refreshTokenCaller(desk, parameters.get('refresh_token'), call.clientAddress);
  },
  async answer(service, call, parameters) {
    const grantType = parameters.get('grant_type');
    if (grantType === undefined)
      return refused({ reason: 'request_malformed', detail: 'grant_type is required.' });
    const known = grantTypes(service).find((name) => name === grantType);
    if (known === undefined) return refused({ reason: 'grant_type_unsupported', grantType });
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    call.note({ clientId });

    const issued = await GRANTS[known](service, call, clientId, parameters);
    if (!issued.ok) return issued;
    const { grant, pair, expiresIn } = issued.value;
    call.note({ identity: grant.identity, grantId: grant.id });
    return granted({
      status: 200,
      body: {
        access_token: pair.accessToken,
        token_type: 'Bearer',
        expires_in: expiresIn,
        // RFC 6749 §4.4.3: client_credentials get none.
        ...(grantType !== 'client_credentials' && { refresh_token: pair.refreshToken }),
        scope: grant.scope,
      } satisfies z.output<typeof TokenAnswer>,
    });
  },
};
