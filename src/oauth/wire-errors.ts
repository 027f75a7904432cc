import type { RefusalOf } from '../domain/refusal.ts';
import { as, type ErrorTable } from '../http/wire-error.ts';

const ANEW = 'Obtain a new grant.';
const CERTIFICATE = 'The client certificate';
/** RFC 6749 §5.2: client authentication failed; 401, because a certificate is a way to authenticate. */
const UNAUTHENTICATED = { status: 401, code: 'invalid_client' } as const;
const NO_GRANT = { status: 400, code: 'invalid_grant' } as const;
const NOT_FOR_CLIENT = { status: 400, code: 'unauthorized_client' } as const;
const BAD_SCOPE = { status: 400, code: 'invalid_scope' } as const;

/** POST oauth2/token (RFC 6749 §5.2, RFC 8628 §3.5, RFC 8705 §2). */
export const TOKEN_ERRORS: ErrorTable = {
  request_malformed: { status: 400, code: 'invalid_request', description: ({ detail }) => detail },
  client_id_missing: { status: 400, code: 'invalid_request', description: 'client_id is required.' },
  too_many_requests: {
    status: 429,
    code: 'temporarily_unavailable',
    description: ({ retryAfter }) => `Too many requests; retry after ${retryAfter} s.`,
  },
  client_unknown: {
    status: 400,
    code: 'invalid_client',
    description: 'client_id does not match an API integration.',
  },
  client_mismatch: { ...NO_GRANT, description: 'It was issued to another client.' },
  client_authentication_unsupported: {
    ...UNAUTHENTICATED,
    description:
      'Clients have no secret here: send client_id in the body, and where needed a client certificate.',
  },
  device_flow_off: {
    ...NOT_FOR_CLIENT,
    description: 'Device authorization is switched off for this API integration.',
  },
  grant_type_off: {
    ...NOT_FOR_CLIENT,
    description: ({ grantType }) => `The API integration does not allow grants by ${grantType}.`,
  },
  grant_type_unsupported: {
    status: 400,
    code: 'unsupported_grant_type',
    description: 'grant_type is not one that is served here; see grant_types_supported of the metadata.',
  },
  scope_missing: { ...BAD_SCOPE, description: 'scope is required.' },
  scope_malformed: {
    ...BAD_SCOPE,
    description: ({ at }) =>
      `scope is malformed at character ${at + 1}; write resource:permission,permission with spaces between items.`,
  },
  scope_exceeds_integration: {
    ...BAD_SCOPE,
    description: ({ excess }) => `scope exceeds the scope of the API integration by ${excess}.`,
  },
  scope_exceeds_access: {
    ...BAD_SCOPE,
    description: ({ excess }) => `The identity is not allowed this scope for the API integration: ${excess}.`,
  },
  scope_exceeds_grant: {
    ...BAD_SCOPE,
    description: ({ excess }) => `scope exceeds the scope of the grant by ${excess}.`,
  },
  certificate_missing: {
    ...UNAUTHENTICATED,
    description: 'A client certificate is required; none was presented on this connection.',
  },
  certificate_issuer_not_approved: {
    ...UNAUTHENTICATED,
    description: `${CERTIFICATE} was not issued by an approved issuer.`,
  },
  certificate_outside_validity: { ...UNAUTHENTICATED, description: `${CERTIFICATE} is not valid now.` },
  certificate_revoked: { ...UNAUTHENTICATED, description: `${CERTIFICATE} was revoked by its issuer.` },
  certificate_status_unknown: {
    ...UNAUTHENTICATED,
    description: `${CERTIFICATE} cannot be checked: the revocation list of its issuer is missing or out of date.`,
  },
  certificate_unusable: {
    ...UNAUTHENTICATED,
    description: ({ detail }) => `${CERTIFICATE} cannot be used here: ${detail}.`,
  },
  certificate_name_unclear: {
    ...UNAUTHENTICATED,
    description: ({ detail }) => `${CERTIFICATE} has no single clear identity: ${detail}.`,
  },
  identity_unknown: { ...NOT_FOR_CLIENT, description: 'The identity is not in the directory.' },
  identity_disabled: { ...NOT_FOR_CLIENT, description: 'The identity is disabled.' },
  identity_without_access: {
    ...NOT_FOR_CLIENT,
    description: 'The identity has no access to any API integration.',
  },
  identity_not_allowed: {
    ...NOT_FOR_CLIENT,
    description: 'The identity is not allowed this API integration by this kind of grant.',
  },
  refresh_token_forged: { ...NO_GRANT, description: `The refresh token is not valid. ${ANEW}` },
  grant_unknown: { ...NO_GRANT, description: `The grant of this refresh token is not known. ${ANEW}` },
  grant_expired: { ...NO_GRANT, description: `The grant has expired. ${ANEW}` },
  grant_revoked: { ...NO_GRANT, description: `The grant was revoked. ${ANEW}` },
  refresh_token_spent: {
    ...NO_GRANT,
    description: 'The refresh token was used already; use the one of the latest answer.',
  },
  refresh_token_reused: {
    ...NO_GRANT,
    description: `The refresh token was used before, so the whole grant has been ended. ${ANEW}`,
  },
  certificate_binding_unmet: {
    ...NO_GRANT,
    description: 'The grant is bound to a client certificate; present it on this connection.',
  },
  device_code_unknown: { ...NO_GRANT, description: 'The device_code is not valid. Start again.' },
  device_code_expired: {
    status: 400,
    code: 'expired_token',
    description: 'The device_code has expired. Start again.',
  },
  device_code_spent: {
    ...NO_GRANT,
    description: 'The device_code was used already; it is valid once only. Start again.',
  },
  device_pending: {
    status: 400,
    code: 'authorization_pending',
    description: 'Nobody has confirmed yet. Ask again after the interval.',
  },
  device_polled_early: {
    status: 400,
    code: 'slow_down',
    description: 'Asked before the interval was over. From now on wait 5 seconds longer.',
  },
  device_denied: { status: 400, code: 'access_denied', description: 'The user refused this device.' },
  device_closed: {
    status: 400,
    code: 'access_denied',
    description: 'The user ID or password was wrong too often, so the device_code was closed.',
  },
  device_requests_full: {
    status: 429,
    code: 'temporarily_unavailable',
    description: 'Too many devices are waiting for confirmation; retry later.',
  },
  token_missing: { status: 400, code: 'invalid_request', description: 'token is required.' },
  token_invalid: { status: 400, code: 'invalid_request', description: 'The token is not valid.' },
  token_scope_unmet: {
    status: 400,
    code: 'invalid_request',
    description: ({ scope }) => `The token does not carry the scope ${scope}.`,
  },
};

/** The same with `grant_type=client_credentials`: the identity is the certificate's, so it is what failed to authenticate. */
export const CLIENT_CREDENTIALS_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  identity_unknown: as(TOKEN_ERRORS.identity_unknown, {
    ...UNAUTHENTICATED,
    description: 'The identity in the certificate is not in the directory.',
  }),
  identity_disabled: as(TOKEN_ERRORS.identity_disabled, {
    ...UNAUTHENTICATED,
    description: 'The identity in the certificate is disabled.',
  }),
  identity_without_access: as(TOKEN_ERRORS.identity_without_access, {
    ...UNAUTHENTICATED,
    description: 'The identity in the certificate has no access to any API integration.',
  }),
};

/** POST oauth2/device_authorization (RFC 8628 §3.2). */
export const DEVICE_AUTHORIZATION_ERRORS: ErrorTable = {
  ...TOKEN_ERRORS,
  grant_type_off: as(TOKEN_ERRORS.grant_type_off, {
    description: 'Nobody is allowed this API integration by device authorization.',
  }),
};

/** POST oauth2/revoke (RFC 7009 §2.2.1). */
export const REVOCATION_ERRORS: ErrorTable = TOKEN_ERRORS;

/** POST oauth2/introspect (RFC 7662 §2.3): a caller whose token does not suffice is 401 too. */
export const INTROSPECTION_ERRORS: ErrorTable = {
  ...CLIENT_CREDENTIALS_ERRORS,
  token_missing: {
    ...UNAUTHENTICATED,
    description: 'Present a client certificate, or an access token as Authorization: Bearer <access_token>.',
  },
  token_invalid: {
    status: 401,
    code: 'invalid_token',
    description: ({ why }) => TOKEN_FAULTS[why],
  },
  token_scope_unmet: {
    status: 401,
    code: 'insufficient_scope',
    description: ({ scope }) => `The access token does not carry the scope ${scope}.`,
  },
  identity_not_allowed: as(TOKEN_ERRORS.identity_not_allowed, {
    ...UNAUTHENTICATED,
    description: 'The identity in the certificate may not ask about tokens.',
  }),
};

const TOKEN_FAULTS = {
  malformed: 'The access token of the caller is malformed.',
  not_authentic: 'The access token of the caller was not issued by this service.',
  expired: 'The access token of the caller has expired.',
  not_yet_valid: 'The access token of the caller is not valid yet.',
  revoked: 'The access token of the caller was revoked.',
  client_removed: 'The API integration of the caller does not exist any more.',
  certificate_not_presented:
    'The access token of the caller is bound to a client certificate that was not presented.',
  certificate_refused:
    'The access token of the caller is bound to a client certificate that is no longer accepted.',
} as const satisfies Record<RefusalOf<'token_invalid'>['why'], string>;
