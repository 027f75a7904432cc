import {
  BEARER_ERRORS,
  CERTIFICATE_ERRORS,
  DEVICE_ERRORS,
  describe,
  type ErrorTable,
  TOKEN_ERRORS,
} from '../src/authsvc/wire-errors.ts';
import type { RefusalOf, RefusalReason } from '../src/domain/refusal.ts';
import { type ProxyRefusal, wordingOf } from '../src/proxy/refuse.ts';

/** Each reason with facts that stand for whatever a real refusal would carry. */
const EXAMPLES: { readonly [R in RefusalReason]: Omit<RefusalOf<R>, 'reason'> } = {
  request_malformed: { detail: '*What is wrong with the request.*' },
  client_id_missing: {},
  too_many_requests: { retryAfter: 1 },
  client_unknown: { clientId: '' },
  client_mismatch: { grantId: '' },
  device_flow_off: {},
  grant_type_off: { grantType: 'certificate' },
  scope_missing: {},
  scope_malformed: { at: 6 },
  scope_exceeds_integration: { excess: 'files:write' },
  scope_exceeds_access: { excess: 'files:write' },
  certificate_missing: {},
  certificate_issuer_not_approved: {},
  certificate_outside_validity: {},
  certificate_revoked: {},
  certificate_status_unknown: {},
  certificate_unusable: { detail: '*why*' },
  certificate_name_unclear: { detail: '*why*' },
  identity_unknown: { who: '' },
  identity_disabled: { identity: '' },
  identity_without_access: { identity: '' },
  identity_not_allowed: { identity: '' },
  refresh_token_forged: {},
  grant_unknown: {},
  grant_expired: { refreshUntil: 0 },
  grant_revoked: {},
  refresh_token_spent: { grantId: '' },
  refresh_token_reused: { grantId: '' },
  certificate_binding_unmet: { grantId: '' },
  device_code_unknown: {},
  device_code_expired: {},
  device_code_spent: {},
  device_pending: {},
  device_denied: {},
  device_closed: {},
  device_requests_full: {},
  token_missing: {},
  token_invalid: { why: 'expired' },
};

const WHO = ['identity_unknown', 'identity_disabled', 'identity_not_allowed'] as const;
const SENT = ['request_malformed', 'client_id_missing', 'too_many_requests', 'client_unknown'] as const;
const ASKED = ['scope_missing', 'scope_malformed', 'scope_exceeds_integration'] as const;

/** Which reasons an operation can give. The tables have a row for all of them, so that none can be forgotten. */
const OPERATIONS = [
  {
    title: 'POST Authorize/Token, with a refresh_token',
    table: TOKEN_ERRORS,
    reasons: [
      ...SENT,
      'client_mismatch',
      'refresh_token_forged',
      'grant_unknown',
      'grant_expired',
      'grant_revoked',
      'refresh_token_spent',
      'refresh_token_reused',
      'certificate_binding_unmet',
      ...WHO,
      'scope_exceeds_integration',
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST Authorize/Token, with a device_code',
    table: TOKEN_ERRORS,
    reasons: [
      ...SENT,
      'client_mismatch',
      'device_flow_off',
      'device_pending',
      'device_code_unknown',
      'device_code_expired',
      'device_code_spent',
      'device_denied',
      'device_closed',
      ...WHO,
      'scope_exceeds_integration',
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST Authorize/Certificate',
    table: CERTIFICATE_ERRORS,
    reasons: [
      ...SENT,
      'certificate_missing',
      'certificate_issuer_not_approved',
      'certificate_outside_validity',
      'certificate_revoked',
      'certificate_status_unknown',
      'certificate_unusable',
      'certificate_name_unclear',
      ...WHO,
      'identity_without_access',
      'grant_type_off',
      ...ASKED,
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST Authorize/Device',
    table: DEVICE_ERRORS,
    reasons: [...SENT, 'device_flow_off', 'grant_type_off', ...ASKED, 'device_requests_full'],
  },
  {
    title: 'GET Revoke/Token and GET Authorize/Verify',
    table: BEARER_ERRORS,
    reasons: ['token_missing', 'token_invalid', 'request_malformed', 'too_many_requests'],
  },
] as const satisfies readonly {
  readonly title: string;
  readonly table: ErrorTable;
  readonly reasons: readonly RefusalReason[];
}[];

type Told = (typeof OPERATIONS)[number]['reasons'][number];
type Nothing<T extends never> = T;
/** Does not compile when a reason stands under no operation: a new refusal must be told about. */
export type Untold = Nothing<Exclude<RefusalReason, Told>>;

type ProxyReason = ProxyRefusal['reason'];
const PROXY: { readonly [R in ProxyReason]: Omit<Extract<ProxyRefusal, { reason: R }>, 'reason'> } = {
  malformed: { detail: '*why*' },
  token_missing: {},
  token_invalid: { why: 'expired' },
  scope_unmet: { scope: 'files:read' },
  client_not_admitted: {},
  no_rule: {},
  method_not_served: {},
  body_too_large: {},
  client_too_slow: {},
  misdirected: {},
  expectation_failed: {},
  coding_not_served: {},
  upgrade_not_served: {},
  websocket_version: {},
  origin_not_allowed: {},
  peer_not_listed: {},
  original_unclear: { detail: '*why*' },
  upstream_failed: {},
  upstream_too_slow: {},
  overloaded: { retryAfter: 1 },
  unavailable: { retryAfter: 1 },
};

/** docs/errors.md */
export function renderErrors(): string {
  return [
    '<!-- Generated by `npm run docs` from src/authsvc/wire-errors.ts and src/proxy/refuse.ts. Change those, not this file. -->',
    '# Every error answer',
    '',
    '*Reason* is what the log line and the audit event of the same request say (`reason`). Texts in italics stand for',
    'details of the case. Texts may be improved in any release; programs decide by status and code.',
    '',
    '## The token service',
    '',
    'The body is `{"Error": "…", "Error_description": "…"}`. It carries no `request_id`; find the log line by its time.',
    '',
    ...OPERATIONS.flatMap(({ title, table, reasons }) => [
      `### ${title}`,
      '',
      '| status | Error | Error_description | reason |',
      '|---|---|---|---|',
      ...reasons.map((reason) => {
        const { status, code, description } = describe(table, { reason, ...EXAMPLES[reason] } as RefusalOf<
          typeof reason
        >);
        return `| ${status} | \`${code}\` | ${description} | \`${reason}\` |`;
      }),
      '',
    ]),
    'On every operation: an unknown path is 404 `not_found`, another method is 405 `invalid_request` with `Allow`, a',
    'body over 16 KiB is 413 `invalid_request`. A failure of our own is 400 `invalid_request` with `Retry-After` on the',
    'POST operations and 503 `temporarily_unavailable` with `Retry-After` on the GET ones; it never says that something is',
    'wrong with a credential.',
    '',
    '## Requests to the API behind',
    '',
    'The body is `{"error": "…", "error_description": "…", "request_id": "…"}`. Answers of the API itself pass unchanged.',
    '',
    '| status | error | error_description | reason |',
    '|---|---|---|---|',
    ...Object.entries(PROXY).map(([reason, facts]) => {
      const { status, error, description } = wordingOf({ reason, ...facts } as ProxyRefusal);
      return `| ${status} | \`${error}\` | ${description} | \`${reason}\` |`;
    }),
    '',
    'Where no rule matches, only callers with a good token are told 404; all others get 401, as for every path that is not public.',
    '',
    'Another gateway that asks (`/authsvc/check`) gets 401 and 503 as above and 403 for everything else; see',
    '[forward-auth](forward-auth.md).',
    '',
  ].join('\n');
}
