import type { Refusal } from '../domain/refusal.ts';
import { describeRefusal, type ErrorTable } from '../http/error-table.ts';
import {
  CODE_ERRORS,
  createCommonErrors,
  formatErrorDescription,
  INVALID_SCOPE,
  INVALID_TARGET,
} from './common-errors.ts';

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
