import type { RefusalOf } from '../domain/refusal.ts';
import { as, type ErrorTable } from '../http/wire-error.ts';

const ANEW = 'Obtain a new grant through an Authorize call.';
const CLIENT = 'client_id does not match an API integration, or not the one of this credential.';
const CERTIFICATE = 'The client certificate';

/** Authorize/Token: only the six codes of the specification, and only HTTP 400. */
export const TOKEN_ERRORS: ErrorTable = {
  request_malformed: { status: 400, code: 'invalid_request', description: ({ detail }) => detail },
  client_id_missing: { status: 400, code: 'invalid_request', description: 'client_id is required.' },
  too_many_requests: {
    status: 400,
    code: 'invalid_request',
    description: ({ retryAfter }) => `Too many requests. Temporary; retry after ${retryAfter} s.`,
  },
  client_unknown: { status: 400, code: 'invalid_grant', description: CLIENT },
  client_mismatch: { status: 400, code: 'invalid_grant', description: CLIENT },
  device_flow_off: {
    status: 400,
    code: 'invalid_client',
    description: 'Browser-based authentication is disabled.',
  },
  grant_type_off: {
    status: 400,
    code: 'unauthorized_client',
    description: ({ grantType }) => `The integration does not allow the ${grantType} grant.`,
  },
  grant_type_unsupported: {
    status: 400,
    code: 'invalid_request',
    description: 'grant_type is not one that is served here.',
  },
  client_authentication_unsupported: {
    status: 400,
    code: 'invalid_request',
    description: 'Clients have no secret here: send client_id alone.',
  },
  scope_missing: { status: 400, code: 'invalid_scope', description: 'scope is required.' },
  scope_malformed: {
    status: 400,
    code: 'invalid_scope',
    description: ({ at }) =>
      `scope is malformed at character ${at + 1}; write resource:permission,permission;resource.`,
  },
  scope_exceeds_integration: {
    status: 400,
    code: 'invalid_scope',
    description: ({ excess }) => `scope exceeds the scope of the API integration by ${excess}.`,
  },
  scope_exceeds_access: {
    status: 400,
    code: 'invalid_grant',
    description: ({ excess }) => `The identity is not allowed this scope for the API integration: ${excess}.`,
  },
  scope_exceeds_grant: {
    status: 400,
    code: 'invalid_scope',
    description: ({ excess }) => `scope exceeds the scope of the grant by ${excess}.`,
  },
  certificate_missing: { status: 400, code: 'invalid_grant', description: `${CERTIFICATE} is missing.` },
  certificate_issuer_not_approved: {
    status: 400,
    code: 'invalid_grant',
    description: `${CERTIFICATE} was not issued by an approved issuer.`,
  },
  certificate_outside_validity: {
    status: 400,
    code: 'invalid_grant',
    description: `${CERTIFICATE} is not valid now.`,
  },
  certificate_revoked: {
    status: 400,
    code: 'invalid_grant',
    description: `${CERTIFICATE} was revoked by its issuer.`,
  },
  certificate_status_unknown: {
    status: 400,
    code: 'invalid_grant',
    description: `${CERTIFICATE} cannot be checked: the revocation list of its issuer is missing or out of date.`,
  },
  certificate_unusable: {
    status: 400,
    code: 'invalid_grant',
    description: ({ detail }) => `${CERTIFICATE} cannot be used here: ${detail}.`,
  },
  certificate_name_unclear: {
    status: 400,
    code: 'invalid_grant',
    description: ({ detail }) => `${CERTIFICATE} has no single clear identity: ${detail}.`,
  },
  identity_unknown: {
    status: 400,
    code: 'unauthorized_client',
    description: 'The identity of this grant is not in the directory any more.',
  },
  identity_disabled: {
    status: 400,
    code: 'unauthorized_client',
    description: 'The identity of this grant is disabled.',
  },
  identity_without_access: {
    status: 400,
    code: 'unauthorized_client',
    description: 'The identity of this grant has no access to any API integration.',
  },
  identity_not_allowed: {
    status: 400,
    code: 'unauthorized_client',
    description: 'The identity is not allowed this API integration by this kind of grant.',
  },
  refresh_token_forged: {
    status: 400,
    code: 'invalid_grant',
    description: `The refresh token is not valid. ${ANEW}`,
  },
  grant_unknown: {
    status: 400,
    code: 'invalid_grant',
    description: `The grant of this refresh token is not known. ${ANEW}`,
  },
  grant_expired: {
    status: 400,
    code: 'invalid_grant',
    description: `The grant has expired (refresh_until has passed). ${ANEW}`,
  },
  grant_revoked: { status: 400, code: 'invalid_grant', description: `The grant was revoked. ${ANEW}` },
  refresh_token_spent: {
    status: 400,
    code: 'invalid_grant',
    description: 'The refresh token was used already; use the one of the latest answer.',
  },
  refresh_token_reused: {
    status: 400,
    code: 'invalid_grant',
    description: `The refresh token was used before, so the whole grant has been ended. ${ANEW}`,
  },
  certificate_binding_unmet: {
    status: 400,
    code: 'invalid_grant',
    description: 'The grant is bound to a client certificate; present it on this connection.',
  },
  device_code_unknown: {
    status: 400,
    code: 'invalid_grant',
    description: 'The device_code is invalid. Start again with Authorize/Device.',
  },
  device_code_expired: {
    status: 400,
    code: 'invalid_grant',
    description: 'The device_code has expired. Start again with Authorize/Device.',
  },
  device_code_spent: {
    status: 400,
    code: 'invalid_grant',
    description:
      'The device_code was used already; it is valid once only. Start again with Authorize/Device.',
  },
  device_pending: {
    status: 400,
    code: 'authorization_pending',
    description: 'The browser confirmation is missing. Retry after the interval.',
  },
  device_polled_early: {
    status: 400,
    code: 'authorization_pending',
    description: 'The browser confirmation is missing. Retry after the interval.',
  },
  device_denied: {
    status: 400,
    code: 'invalid_grant',
    description: 'The user refused this device. Start again with Authorize/Device.',
  },
  device_closed: {
    status: 400,
    code: 'invalid_grant',
    description:
      'The user ID or password was wrong too often, so the device_code was closed. Start again with Authorize/Device.',
  },
  device_requests_full: {
    status: 400,
    code: 'invalid_request',
    description: 'Too many devices are waiting for confirmation. Temporary; retry later.',
  },
  token_missing: { status: 400, code: 'invalid_request', description: 'A bearer token is required.' },
  token_invalid: { status: 400, code: 'invalid_request', description: 'The bearer token is not valid.' },
  token_scope_unmet: {
    status: 400,
    code: 'invalid_request',
    description: ({ scope }) => `The bearer token does not carry the scope ${scope}.`,
  },
};

const UNAUTHENTICATED = { status: 401, code: 'invalid_client' } as const;
const DENIED = { status: 401, code: 'access_denied' } as const;
const BUSY = { status: 429, code: 'invalid_request' } as const;

/** Authorize/Certificate: who the caller is decides between 401 and 400. */
export const CERTIFICATE_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: as(TOKEN_ERRORS.too_many_requests, BUSY),
  client_unknown: as(TOKEN_ERRORS.client_unknown, {
    description: 'client_id does not match an API integration.',
  }),
  certificate_missing: as(TOKEN_ERRORS.certificate_missing, {
    ...UNAUTHENTICATED,
    description: 'A client certificate is required; none was presented on this connection.',
  }),
  certificate_issuer_not_approved: as(TOKEN_ERRORS.certificate_issuer_not_approved, UNAUTHENTICATED),
  certificate_outside_validity: as(TOKEN_ERRORS.certificate_outside_validity, UNAUTHENTICATED),
  certificate_revoked: as(TOKEN_ERRORS.certificate_revoked, UNAUTHENTICATED),
  certificate_status_unknown: as(TOKEN_ERRORS.certificate_status_unknown, UNAUTHENTICATED),
  certificate_unusable: as(TOKEN_ERRORS.certificate_unusable, UNAUTHENTICATED),
  certificate_name_unclear: as(TOKEN_ERRORS.certificate_name_unclear, UNAUTHENTICATED),
  identity_unknown: as(TOKEN_ERRORS.identity_unknown, {
    ...DENIED,
    description: 'The identity in the certificate is not in the directory.',
  }),
  identity_disabled: as(TOKEN_ERRORS.identity_disabled, {
    ...DENIED,
    description: 'The identity in the certificate is disabled.',
  }),
  identity_without_access: as(TOKEN_ERRORS.identity_without_access, {
    ...DENIED,
    description: 'The identity in the certificate has no access to any API integration.',
  }),
  scope_exceeds_access: as(TOKEN_ERRORS.scope_exceeds_access, { code: 'invalid_scope' }),
};

/** Authorize/Device. */
export const DEVICE_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: as(TOKEN_ERRORS.too_many_requests, BUSY),
  device_requests_full: as(TOKEN_ERRORS.device_requests_full, BUSY),
  client_unknown: as(TOKEN_ERRORS.client_unknown, {
    description: 'client_id does not match an API integration.',
  }),
  grant_type_off: as(TOKEN_ERRORS.grant_type_off, {
    description: 'Nobody is allowed this API integration by browser-based authentication.',
  }),
};

/** Revoke/Token and Authorize/Verify: the caller shows an access token (RFC 6750). */
export const BEARER_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  too_many_requests: as(TOKEN_ERRORS.too_many_requests, BUSY),
  token_missing: {
    status: 401,
    code: 'invalid_token',
    description: 'Send the access token as Authorization: Bearer <access_token>.',
  },
  token_invalid: { status: 401, code: 'invalid_token', description: ({ why }) => TOKEN_FAULTS[why] },
};

const TOKEN_FAULTS = {
  malformed: 'The access token is malformed.',
  not_authentic: 'The access token was not issued by this service.',
  expired: 'The access token has expired; refresh it.',
  not_yet_valid: 'The access token is not valid yet.',
  revoked: 'The access token was revoked.',
  client_removed: 'The API integration of this access token does not exist any more.',
  certificate_not_presented:
    'The access token is bound to a client certificate that was not presented on this connection.',
  certificate_refused: 'The access token is bound to a client certificate that is no longer accepted.',
} as const satisfies Record<RefusalOf<'token_invalid'>['why'], string>;
