import type { Refusal, RefusalOf } from '../domain/refusal.ts';
import { describeRefusal, type ErrorTable } from '../http/error-table.ts';

type ErrorCode = Pick<ErrorTable['request_malformed'], 'status' | 'code'>;

export const INVALID_REQUEST = { status: 400, code: 'invalid_request' } as const;
export const INVALID_GRANT = { status: 400, code: 'invalid_grant' } as const;
export const INVALID_SCOPE = { status: 400, code: 'invalid_scope' } as const;
export const UNAUTHORIZED_CLIENT = { status: 400, code: 'unauthorized_client' } as const;
export const INVALID_TARGET = { status: 400, code: 'invalid_target' } as const;
export const INVALID_CLIENT = { status: 401, code: 'invalid_client' } as const;

export const describe = <Description>(error: ErrorCode, description: Description) => ({ ...error, description });

/** The errors that both APIs describe alike. */
export const createCommonErrors = (newGrantHint: string) =>
  ({
    request_malformed: describe(INVALID_REQUEST, ({ detail }) => detail),
    client_id_missing: describe(INVALID_REQUEST, 'client_id is required.'),
    scope_missing: describe(INVALID_SCOPE, 'scope is required.'),
    scope_exceeds_integration: describe(
      INVALID_SCOPE,
      ({ excess }) =>
        `The API integration does not allow the scope ${excess}; request less, or have its administrator add it.`,
    ),
    scope_exceeds_grant: describe(INVALID_SCOPE, ({ excess }) => `The grant does not include the scope ${excess}.`),
    grant_type_not_allowed: describe(
      UNAUTHORIZED_CLIENT,
      ({ grantType }) => `The API integration does not allow the ${grantType} grant.`,
    ),
    certificate_binding_mismatch: describe(
      INVALID_GRANT,
      'The grant is bound to a client certificate; present it on this connection.',
    ),
    proof_binding_mismatch: describe(
      INVALID_GRANT,
      'The DPoP proof does not match the refresh token: send a proof with the key that the token is bound to, at oauth2/token, or none if it is not bound.',
    ),
    proof_required: describe(
      INVALID_REQUEST,
      'The API integration requires a DPoP proof; use oauth2/token with a DPoP header.',
    ),
    proof_invalid: describe(INVALID_REQUEST, ({ detail }) => `The DPoP proof is not accepted: ${detail}.`),
    proof_nonce_required: describe(
      INVALID_REQUEST,
      'Repeat the request with a DPoP proof that contains the nonce of the DPoP-Nonce header.',
    ),
    logout_token_invalid: describe(
      INVALID_REQUEST,
      'logout_token is not a valid logout token from a trusted issuer for this service.',
    ),
    identity_not_allowed: describe(
      UNAUTHORIZED_CLIENT,
      'The identity may not use this API integration with this grant type.',
    ),
    grant_unknown: describe(INVALID_GRANT, `The grant of this refresh token is not known. ${newGrantHint}`),
    grant_revoked: describe(INVALID_GRANT, `The grant was revoked. ${newGrantHint}`),
    refresh_token_not_authentic: describe(INVALID_GRANT, `The refresh token is not valid. ${newGrantHint}`),
    refresh_token_used: describe(
      INVALID_GRANT,
      'The refresh token was already used; use the one from the latest response.',
    ),
    refresh_token_reused: describe(
      INVALID_GRANT,
      `The refresh token was used before, so the whole grant was revoked. ${newGrantHint}`,
    ),
  }) satisfies Partial<ErrorTable>;

/** Errors of authorization codes and of the authorization endpoint. */
export const CODE_ERRORS = {
  redirect_uri_invalid: describe(
    INVALID_REQUEST,
    'redirect_uri is missing, or is not a redirect URI of the API integration.',
  ),
  client_document_invalid: describe(
    { status: 400, code: 'invalid_client' },
    'The metadata document at client_id cannot be used.',
  ),
  response_type_unsupported: describe(INVALID_REQUEST, 'response_type must be code.'),
  interaction_required: describe(INVALID_REQUEST, 'The user must approve the request: prompt=none is not supported.'),
  code_unknown: describe(INVALID_GRANT, 'The code is not valid, or has expired. Start a new authorization.'),
  code_used: describe(INVALID_GRANT, 'The code was already used, so the grant was revoked. Start a new authorization.'),
  code_binding_mismatch: describe(
    INVALID_GRANT,
    ({ parameter }) => `${parameter} does not match the authorization request of this code.`,
  ),
} satisfies Partial<ErrorTable>;

/** RFC 6749 §4.1.2.1 and §5.2: printable ASCII without quotes and backslashes. */
export const formatErrorDescription = (text: string): string =>
  text.replaceAll('"', "'").replace(/[^\x20-\x5b\x5d-\x7e]/g, '?');

/** Errors of the client certificate itself. */
export const createCertificateErrors = (error: ErrorCode) =>
  ({
    certificate_issuer_not_approved: describe(error, 'The client certificate was not issued by an approved issuer.'),
    certificate_outside_validity: describe(error, 'The client certificate is not valid now.'),
    certificate_revoked: describe(error, 'The client certificate was revoked by its issuer.'),
    certificate_status_unknown: describe(
      error,
      'The client certificate cannot be checked: its issuer has no current revocation list, or its OCSP responder does not know it.',
    ),
    certificate_unusable: describe(error, ({ detail }) => `The client certificate cannot be used here: ${detail}.`),
    certificate_name_unusable: describe(
      error,
      ({ detail }) => `The client certificate has no single clear identity: ${detail}.`,
    ),
  }) satisfies Partial<ErrorTable>;

/** RFC 6750 §3.1: the access token with which a caller authenticates. */
export const INVALID_BEARER_TOKEN = describe(
  { status: 401, code: 'invalid_token' },
  ({ fault }: RefusalOf<'token_invalid'>) => TOKEN_FAULT_TEXTS[fault],
);

export const TOKEN_FAULT_TEXTS = {
  malformed: 'The access token is malformed.',
  not_authentic: 'The access token was not issued by this service.',
  expired: 'The access token has expired; refresh it.',
  not_yet_valid: 'The access token is not valid yet.',
  revoked: 'The access token was revoked.',
  client_removed: 'The API integration of this access token no longer exists.',
  wrong_audience: 'The access token was issued for another API.',
  certificate_not_presented:
    'The access token is bound to a client certificate that was not presented on this connection.',
  certificate_rejected: 'The access token is bound to a client certificate that is no longer accepted.',
  proof_missing: 'The access token is bound to a DPoP key; this endpoint accepts bearer tokens only.',
  not_proof_bound: 'The access token is not bound to a DPoP key.',
} as const satisfies Record<RefusalOf<'token_invalid'>['fault'], string>;

/** Where the certificate authenticates the caller, an unusable identity is an authentication error. */
export const createIdentityErrors = (error: ErrorCode) =>
  ({
    identity_unknown: describe(error, 'The identity in the certificate is not in the directory.'),
    identity_disabled: describe(error, 'The identity in the certificate is disabled.'),
    identity_without_access: describe(error, 'The identity in the certificate has no access to any API integration.'),
  }) satisfies Partial<ErrorTable>;

const COMMON_ERRORS = createCommonErrors('');

/** RFC 6749 §4.1.2.1, RFC 8707 §2, OpenID Connect Core §3.1.2.6. */
export const AUTHORIZATION_ERRORS = {
  request_malformed: COMMON_ERRORS.request_malformed,
  redirect_uri_invalid: CODE_ERRORS.redirect_uri_invalid,
  response_type_unsupported: {
    ...CODE_ERRORS.response_type_unsupported,
    code: 'unsupported_response_type',
  },
  interaction_required: { ...CODE_ERRORS.interaction_required, code: 'interaction_required' },
  grant_type_not_allowed: COMMON_ERRORS.grant_type_not_allowed,
  scope_malformed: {
    ...INVALID_SCOPE,
    description: ({ at }) =>
      `scope is malformed at character ${at + 1}; write resource:permission,permission with spaces between items.`,
  },
  scope_exceeds_integration: COMMON_ERRORS.scope_exceeds_integration,
  target_invalid: {
    ...INVALID_TARGET,
    description: ({ target }) => `The API integration does not issue tokens for ${target}.`,
  },
} satisfies Partial<ErrorTable>;

/** The parameters of an error response. */
export function describeAuthorizationError(refusal: Refusal): {
  readonly error: string;
  readonly error_description: string;
} {
  if (!Object.hasOwn(AUTHORIZATION_ERRORS, refusal.reason))
    return { error: 'server_error', error_description: 'The request cannot be processed.' };
  const { code, description } = describeRefusal(AUTHORIZATION_ERRORS as unknown as ErrorTable, refusal);
  return { error: code, error_description: formatErrorDescription(description) };
}
