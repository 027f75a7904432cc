import type { RefusalOf } from '../domain/refusal.ts';
import {
  AUTHORIZATION_ERRORS,
  CODE_ERRORS,
  createCertificateErrors,
  createCommonErrors,
  createIdentityErrors,
  describe,
  INVALID_BEARER_TOKEN,
  INVALID_CLIENT,
  INVALID_GRANT,
  INVALID_REQUEST,
  INVALID_SCOPE,
  INVALID_TARGET,
  TOKEN_FAULT_TEXTS,
  UNAUTHORIZED_CLIENT,
} from '../grants/common-errors.ts';
import type { ErrorTable } from '../http/error-table.ts';

const SUBJECT_TOKEN_FAULTS = {
  malformed: 'it has no jti, and each token is accepted once here',
  not_authentic: 'it is not a valid token from a trusted issuer for this service',
  expired: 'it has expired',
  not_yet_valid: 'it is not valid yet',
  revoked: 'it was revoked',
  client_removed: 'its client is not known',
  wrong_audience: 'it was issued for another API',
  certificate_not_presented: 'it is bound to a client certificate that was not presented',
  certificate_rejected: 'it is bound to a client certificate that is not accepted',
  proof_missing: 'it is bound to a DPoP key, and there is no proof with this key',
  not_proof_bound: 'it is not bound to a DPoP key',
} as const satisfies Record<RefusalOf<'subject_token_invalid'>['fault'], string>;

const NEW_GRANT_HINT = 'Obtain a new grant.';

const COMMON_ERRORS = createCommonErrors(NEW_GRANT_HINT);

/** POST oauth2/token (RFC 6749 §5.2, RFC 8628 §3.5, RFC 8705 §2). */
export const TOKEN_ERRORS: ErrorTable = {
  ...COMMON_ERRORS,
  // RFC 9449 §5 and §8.
  proof_invalid: { ...COMMON_ERRORS.proof_invalid, code: 'invalid_dpop_proof' },
  proof_nonce_required: { ...COMMON_ERRORS.proof_nonce_required, code: 'use_dpop_nonce' },
  ...createCertificateErrors(INVALID_CLIENT),
  too_many_requests: describe(
    { status: 429, code: 'temporarily_unavailable' },
    ({ retryAfter }) => `Too many requests; retry after ${retryAfter} s.`,
  ),
  client_unknown: describe({ status: 400, code: 'invalid_client' }, 'client_id does not match an API integration.'),
  client_mismatch: describe(INVALID_GRANT, 'The credential was issued to another client.'),
  client_authentication_unsupported: describe(
    INVALID_CLIENT,
    'The API integration has no such credential: send client_id in the body, and a client certificate where needed.',
  ),
  client_authentication_required: describe(
    INVALID_CLIENT,
    'The API integration must authenticate with its client secret or its key.',
  ),
  client_authentication_failed: describe(INVALID_CLIENT, 'Client authentication failed.'),
  target_invalid: describe(INVALID_TARGET, ({ target }) => `The API integration does not issue tokens for ${target}.`),
  subject_token_invalid: describe(
    INVALID_GRANT,
    ({ fault }) => `assertion is not usable: ${SUBJECT_TOKEN_FAULTS[fault]}.`,
  ),
  subject_not_allowed: describe(INVALID_GRANT, 'The API integration does not accept tokens for this subject.'),
  subject_token_used: describe(INVALID_GRANT, 'The token was already exchanged; it is valid once only.'),
  device_flow_disabled: describe(UNAUTHORIZED_CLIENT, 'Device authorization is disabled for this API integration.'),
  grant_type_unsupported: describe(
    { status: 400, code: 'unsupported_grant_type' },
    'This grant_type is not supported; see grant_types_supported in the metadata.',
  ),
  scope_malformed: describe(
    INVALID_SCOPE,
    ({ at }) =>
      `scope is malformed at character ${at + 1}; write resource:permission,permission with spaces between items.`,
  ),
  scope_exceeds_access: describe(
    INVALID_SCOPE,
    ({ excess }) => `The identity is not allowed this scope for the API integration: ${excess}.`,
  ),
  certificate_missing: describe(
    INVALID_CLIENT,
    'A client certificate is required; none was presented on this connection.',
  ),
  identity_unknown: describe(UNAUTHORIZED_CLIENT, 'The identity is not in the directory.'),
  identity_disabled: describe(UNAUTHORIZED_CLIENT, 'The identity is disabled.'),
  identity_without_access: describe(UNAUTHORIZED_CLIENT, 'The identity has no access to any API integration.'),
  grant_expired: describe(INVALID_GRANT, `The grant has expired. ${NEW_GRANT_HINT}`),
  device_code_unknown: describe(INVALID_GRANT, 'The device_code is not valid. Start again.'),
  device_code_expired: describe({ status: 400, code: 'expired_token' }, 'The device_code has expired. Start again.'),
  device_code_used: describe(INVALID_GRANT, 'The device_code was already used; it is valid once only. Start again.'),
  device_pending: describe(
    { status: 400, code: 'authorization_pending' },
    'Not confirmed yet. Poll again after the interval.',
  ),
  device_polled_too_soon: describe(
    { status: 400, code: 'slow_down' },
    'Polled before the interval was over. From now on wait 5 seconds longer.',
  ),
  device_denied: describe({ status: 400, code: 'access_denied' }, 'The user refused this device.'),
  device_closed: describe(
    { status: 400, code: 'access_denied' },
    'The user ID or password was wrong too often, so the device_code was closed.',
  ),
  too_many_device_requests: describe(
    { status: 429, code: 'temporarily_unavailable' },
    'Too many devices are waiting for confirmation; retry later.',
  ),
  ...CODE_ERRORS,
  introspection_not_allowed: describe(
    UNAUTHORIZED_CLIENT,
    'The API integration may not introspect tokens: it needs the client grant and the scope that introspection.requires names.',
  ),
  token_missing: describe(INVALID_REQUEST, 'token is required.'),
  token_invalid: describe(INVALID_REQUEST, 'The token is not valid.'),
  token_scope_insufficient: describe(INVALID_REQUEST, ({ scope }) => `The token does not have the scope ${scope}.`),
};

/** RFC 8693 §2.2.2: an unusable subject_token is invalid_request, for whatever reason. */
export const TOKEN_EXCHANGE_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  subject_token_invalid: describe(
    INVALID_REQUEST,
    ({ fault }) => `subject_token is not usable: ${SUBJECT_TOKEN_FAULTS[fault]}.`,
  ),
  subject_not_allowed: { ...TOKEN_ERRORS.subject_not_allowed, ...INVALID_REQUEST },
  subject_token_used: { ...TOKEN_ERRORS.subject_token_used, ...INVALID_REQUEST },
};

/** With `grant_type=client_credentials` the certificate authenticates the client, so its identity is an authentication error. */
export const CLIENT_CREDENTIALS_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  ...createIdentityErrors(INVALID_CLIENT),
};

/** POST oauth2/device_authorization (RFC 8628 §3.2). */
export const DEVICE_AUTHORIZATION_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  grant_type_not_allowed: {
    ...TOKEN_ERRORS.grant_type_not_allowed,
    description: 'No user may use this API integration with device authorization.',
  },
};

/** POST oauth2/par (RFC 9126 §2.3): the errors of the authorization endpoint and of client authentication. */
export const PUSHED_AUTHORIZATION_ERRORS: ErrorTable = { ...TOKEN_ERRORS, ...AUTHORIZATION_ERRORS };

/** POST oauth2/revoke (RFC 7009 §2.2.1). */
export const REVOCATION_ERRORS: ErrorTable = TOKEN_ERRORS;

/** POST oauth2/backchannel_logout (OpenID Connect Back-Channel Logout 1.0 §2.8). */
export const LOGOUT_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  token_missing: describe(INVALID_REQUEST, 'logout_token is required.'),
};

/** POST oauth2/introspect (RFC 7662 §2.3): also 401 where the token of the caller lacks the scope. */
export const INTROSPECTION_ERRORS: ErrorTable = {
  ...CLIENT_CREDENTIALS_ERRORS,
  client_authentication_unsupported: {
    ...TOKEN_ERRORS.client_authentication_unsupported,
    description: 'The API integration has no credential of this kind.',
  },
  token_missing: describe(
    INVALID_CLIENT,
    'Authenticate with a client secret or key, a client certificate, or an access token as Authorization: Bearer <access_token>.',
  ),
  token_invalid: describe(INVALID_BEARER_TOKEN, ({ fault }: RefusalOf<'token_invalid'>) =>
    TOKEN_FAULT_TEXTS[fault].replace('The access token', "The caller's access token"),
  ),
  token_scope_insufficient: describe(
    { status: 401, code: 'insufficient_scope' },
    ({ scope }) => `The caller's access token does not have the scope ${scope}.`,
  ),
  identity_not_allowed: describe(INVALID_CLIENT, 'The identity in the certificate may not introspect tokens.'),
};
