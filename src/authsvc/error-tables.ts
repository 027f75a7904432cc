import {
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
  UNAUTHORIZED_CLIENT,
} from '../grants/common-errors.ts';
import type { ErrorTable } from '../http/error-table.ts';

const NEW_GRANT_HINT = 'Obtain a new grant through an Authorize call.';
const CLIENT_MISMATCH_TEXT = 'client_id does not match an API integration, or the credential belongs to another one.';
const RESTART_HINT = 'Start again with Authorize/Device.';

const PENDING = {
  status: 400,
  code: 'authorization_pending',
  description: 'The browser confirmation is missing. Retry after the interval.',
} as const;

/** Authorize/Token: only the six codes of the specification, and only HTTP 400. */
export const TOKEN_ERRORS: ErrorTable = {
  ...createCommonErrors(NEW_GRANT_HINT),
  ...createCertificateErrors(INVALID_GRANT),
  too_many_requests: describe(
    INVALID_REQUEST,
    ({ retryAfter }) => `Too many requests. Temporary; retry after ${retryAfter} s.`,
  ),
  client_unknown: describe(INVALID_GRANT, CLIENT_MISMATCH_TEXT),
  client_mismatch: describe(INVALID_GRANT, CLIENT_MISMATCH_TEXT),
  device_flow_disabled: describe({ status: 400, code: 'invalid_client' }, 'Browser-based authentication is disabled.'),
  grant_type_unsupported: describe(INVALID_REQUEST, 'This grant_type is not supported.'),
  client_authentication_unsupported: describe(
    INVALID_REQUEST,
    'Client secrets are not supported: send client_id only.',
  ),
  client_authentication_required: describe(
    INVALID_GRANT,
    'The API integration must authenticate with its client secret or its key: use oauth2/token.',
  ),
  client_authentication_failed: describe(INVALID_REQUEST, 'Client authentication failed.'),
  target_invalid: describe(INVALID_GRANT, 'The API integration does not issue tokens for this audience.'),
  subject_token_invalid: describe(INVALID_GRANT, 'The token is not valid.'),
  subject_not_allowed: describe(UNAUTHORIZED_CLIENT, 'The API integration no longer accepts tokens for this subject.'),
  subject_token_used: describe(INVALID_GRANT, 'The token was already exchanged.'),
  scope_malformed: describe(
    INVALID_SCOPE,
    ({ at }) => `scope is malformed at character ${at + 1}; write resource:permission,permission;resource.`,
  ),
  scope_exceeds_access: describe(
    INVALID_GRANT,
    ({ excess }) => `The identity is not allowed this scope for the API integration: ${excess}.`,
  ),
  certificate_missing: describe(INVALID_GRANT, 'The client certificate is missing.'),
  identity_unknown: describe(UNAUTHORIZED_CLIENT, 'The identity of this grant is no longer in the directory.'),
  identity_disabled: describe(UNAUTHORIZED_CLIENT, 'The identity of this grant is disabled.'),
  identity_without_access: describe(
    UNAUTHORIZED_CLIENT,
    'The identity of this grant has no access to any API integration.',
  ),
  grant_expired: describe(INVALID_GRANT, `The grant has expired (refresh_until has passed). ${NEW_GRANT_HINT}`),
  device_code_unknown: describe(INVALID_GRANT, `The device_code is invalid. ${RESTART_HINT}`),
  device_code_expired: describe(INVALID_GRANT, `The device_code has expired. ${RESTART_HINT}`),
  device_code_used: describe(INVALID_GRANT, `The device_code was already used; it is valid once only. ${RESTART_HINT}`),
  device_pending: PENDING,
  device_polled_too_soon: PENDING,
  device_denied: describe(INVALID_GRANT, `The user refused this device. ${RESTART_HINT}`),
  device_closed: describe(
    INVALID_GRANT,
    `The user ID or password was wrong too often, so the device_code was closed. ${RESTART_HINT}`,
  ),
  too_many_device_requests: describe(
    INVALID_REQUEST,
    'Too many devices are waiting for confirmation. Temporary; retry later.',
  ),
  ...CODE_ERRORS,
  introspection_not_allowed: describe(UNAUTHORIZED_CLIENT, 'The API integration may not introspect tokens.'),
  token_missing: describe(INVALID_REQUEST, 'A bearer token is required.'),
  token_invalid: describe(INVALID_REQUEST, 'The bearer token is not valid.'),
  token_scope_insufficient: describe(
    INVALID_REQUEST,
    ({ scope }) => `The bearer token does not have the scope ${scope}.`,
  ),
};

const ACCESS_DENIED = { status: 401, code: 'access_denied' } as const;
const TOO_MANY_REQUESTS = { status: 429, code: 'invalid_request' } as const;

/** Authorize/Certificate: 401 where the caller is not identified. */
export const CERTIFICATE_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: { ...TOKEN_ERRORS.too_many_requests, ...TOO_MANY_REQUESTS },
  client_unknown: { ...TOKEN_ERRORS.client_unknown, description: 'client_id does not match an API integration.' },
  certificate_missing: describe(
    INVALID_CLIENT,
    'A client certificate is required; none was presented on this connection.',
  ),
  ...createCertificateErrors(INVALID_CLIENT),
  ...createIdentityErrors(ACCESS_DENIED),
  scope_exceeds_access: { ...TOKEN_ERRORS.scope_exceeds_access, code: 'invalid_scope' },
};

/** Authorize/Device. */
export const DEVICE_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: { ...TOKEN_ERRORS.too_many_requests, ...TOO_MANY_REQUESTS },
  too_many_device_requests: { ...TOKEN_ERRORS.too_many_device_requests, ...TOO_MANY_REQUESTS },
  client_unknown: { ...TOKEN_ERRORS.client_unknown, description: 'client_id does not match an API integration.' },
  client_authentication_required: describe(
    UNAUTHORIZED_CLIENT,
    'The API integration must authenticate with its client secret or its key: use oauth2/device_authorization.',
  ),
  grant_type_not_allowed: {
    ...TOKEN_ERRORS.grant_type_not_allowed,
    description: 'No user may use this API integration with browser-based authentication.',
  },
};

/** Revoke/Token and Authorize/Verify: the caller presents an access token (RFC 6750). */
export const BEARER_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: { ...TOKEN_ERRORS.too_many_requests, ...TOO_MANY_REQUESTS },
  token_missing: describe(
    { status: 401, code: 'invalid_token' },
    'Send the access token as Authorization: Bearer <access_token>.',
  ),
  token_invalid: INVALID_BEARER_TOKEN,
};
