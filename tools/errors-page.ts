import {
  BEARER_ERRORS,
  CERTIFICATE_ERRORS,
  DEVICE_ERRORS,
  TOKEN_ERRORS,
} from '../src/authsvc/wire-errors.ts';
import type { RefusalOf, RefusalReason } from '../src/domain/refusal.ts';
import { describe, type ErrorTable } from '../src/http/wire-error.ts';
import * as OAUTH from '../src/oauth/wire-errors.ts';
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
  grant_type_unsupported: { grantType: 'password' },
  client_authentication_unsupported: {},
  scope_missing: {},
  scope_malformed: { at: 6 },
  scope_exceeds_integration: { excess: 'files:write' },
  scope_exceeds_access: { excess: 'files:write' },
  scope_exceeds_grant: { excess: 'files:write' },
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
  device_polled_early: { retryAfter: 3 },
  device_denied: {},
  device_closed: {},
  device_requests_full: {},
  token_missing: {},
  token_invalid: { why: 'expired' },
  token_scope_unmet: { scope: 'tokens:introspect' },
};

const WHO = ['identity_unknown', 'identity_disabled', 'identity_not_allowed'] as const;
const SENT = ['request_malformed', 'client_id_missing', 'too_many_requests', 'client_unknown'] as const;
const CERTIFICATE = [
  'certificate_missing',
  'certificate_issuer_not_approved',
  'certificate_outside_validity',
  'certificate_revoked',
  'certificate_status_unknown',
  'certificate_unusable',
  'certificate_name_unclear',
] as const;
const REFRESH = [
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
] as const;
const DEVICE_CODE = [
  'client_mismatch',
  'device_flow_off',
  'device_pending',
  'device_polled_early',
  'device_code_unknown',
  'device_code_expired',
  'device_code_spent',
  'device_denied',
  'device_closed',
  ...WHO,
  'scope_exceeds_integration',
  'scope_exceeds_access',
] as const;
const ASKED = ['scope_missing', 'scope_malformed', 'scope_exceeds_integration'] as const;

export interface ToldOperation {
  readonly title: string;
  /** Below the service path. */
  readonly paths: readonly string[];
  readonly table: ErrorTable;
  readonly reasons: readonly RefusalReason[];
}

/** Which reasons an operation can give. The tables have a row for all of them, so that none can be forgotten. */
export const SEED = [
  {
    title: 'POST Authorize/Token, with a refresh_token',
    paths: ['/Authorize/Token'],
    table: TOKEN_ERRORS,
    reasons: [...SENT, ...REFRESH],
  },
  {
    title: 'POST Authorize/Token, with a device_code',
    paths: ['/Authorize/Token'],
    table: TOKEN_ERRORS,
    reasons: [...SENT, ...DEVICE_CODE],
  },
  {
    title: 'POST Authorize/Certificate',
    paths: ['/Authorize/Certificate'],
    table: CERTIFICATE_ERRORS,
    reasons: [
      ...SENT,
      ...CERTIFICATE,
      ...WHO,
      'identity_without_access',
      'grant_type_off',
      ...ASKED,
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST Authorize/Device',
    paths: ['/Authorize/Device'],
    table: DEVICE_ERRORS,
    reasons: [...SENT, 'device_flow_off', 'grant_type_off', ...ASKED, 'device_requests_full'],
  },
  {
    title: 'GET Revoke/Token and GET Authorize/Verify',
    paths: ['/Revoke/Token', '/Authorize/Verify'],
    table: BEARER_ERRORS,
    reasons: ['token_missing', 'token_invalid', 'request_malformed', 'too_many_requests'],
  },
] as const satisfies readonly ToldOperation[];

const SECRETLESS = [...SENT, 'client_authentication_unsupported'] as const;

/** The same for the standard face. */
export const STANDARD = [
  {
    title: 'POST oauth2/token, refresh_token',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [...SECRETLESS, 'grant_type_unsupported', ...REFRESH, 'scope_malformed', 'scope_exceeds_grant'],
  },
  {
    title: 'POST oauth2/token, device_code',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [...SECRETLESS, 'grant_type_unsupported', ...DEVICE_CODE],
  },
  {
    title: 'POST oauth2/token, client_credentials',
    paths: ['/oauth2/token'],
    table: OAUTH.CLIENT_CREDENTIALS_ERRORS,
    reasons: [
      ...SECRETLESS,
      'grant_type_unsupported',
      ...CERTIFICATE,
      ...WHO,
      'identity_without_access',
      'grant_type_off',
      'scope_malformed',
      'scope_exceeds_integration',
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST oauth2/device_authorization',
    paths: ['/oauth2/device_authorization'],
    table: OAUTH.DEVICE_AUTHORIZATION_ERRORS,
    reasons: [...SECRETLESS, 'device_flow_off', 'grant_type_off', ...ASKED, 'device_requests_full'],
  },
  {
    title: 'POST oauth2/revoke',
    paths: ['/oauth2/revoke'],
    table: OAUTH.REVOCATION_ERRORS,
    reasons: [
      'request_malformed',
      'too_many_requests',
      'client_authentication_unsupported',
      'token_missing',
      'client_mismatch',
    ],
  },
  {
    title: 'POST oauth2/introspect',
    paths: ['/oauth2/introspect'],
    table: OAUTH.INTROSPECTION_ERRORS,
    reasons: [
      'request_malformed',
      'too_many_requests',
      'client_authentication_unsupported',
      'token_missing',
      'token_invalid',
      'token_scope_unmet',
      ...CERTIFICATE.slice(1),
      'identity_unknown',
      'identity_disabled',
      'identity_not_allowed',
    ],
  },
] as const satisfies readonly ToldOperation[];

type Told = (typeof SEED | typeof STANDARD)[number]['reasons'][number];
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
  service_worker_script: {},
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

const tableOf = ({ title, table, reasons }: ToldOperation, code: string, text: string): string[] => [
  `### ${title}`,
  '',
  `| status | ${code} | ${text} | reason |`,
  '|---|---|---|---|',
  ...reasons.map((reason) => {
    const told = describe(table, { reason, ...EXAMPLES[reason] } as RefusalOf<typeof reason>);
    return `| ${told.status} | \`${told.code}\` | ${told.description} | \`${reason}\` |`;
  }),
  '',
];

/** The codes an operation gives with each status. */
export function codesOf(operations: readonly ToldOperation[], path: string): Map<number, Set<string>> {
  const codes = new Map<number, Set<string>>();
  for (const { paths, table, reasons } of operations)
    if (paths.includes(path))
      for (const reason of reasons) {
        const { status, code } = describe(table, {
          reason,
          ...EXAMPLES[reason],
        } as RefusalOf<typeof reason>);
        codes.set(status, (codes.get(status) ?? new Set()).add(code));
      }
  return codes;
}

/** docs/errors.md */
export function renderErrors(): string {
  return [
    '<!-- Generated by `npm run docs` from src/authsvc/wire-errors.ts, src/oauth/wire-errors.ts and src/proxy/refuse.ts. Change those, not this file. -->',
    '# Every error answer',
    '',
    '*Reason* is what the log line and the audit event of the same request say (`reason`). Texts in italics stand for',
    'details of the case. Texts may be improved in any release; programs decide by status and code.',
    '',
    '## The token service',
    '',
    'The body is `{"Error": "…", "Error_description": "…"}`; `X-Request-Id` is the `request_id` of the log lines.',
    '',
    ...SEED.flatMap((operation) => tableOf(operation, 'Error', 'Error_description')),
    'On every operation: an unknown path is 404 `not_found`, another method is 405 `invalid_request` with `Allow`, a',
    'body over 16 KiB is 413 `invalid_request`. A failure of our own is 400 `invalid_request` with `Retry-After` on the',
    'POST operations and 503 `temporarily_unavailable` with `Retry-After` on the GET ones; it never says that something is',
    'wrong with a credential.',
    '',
    '## The standard face',
    '',
    'The body is `{"error": "…", "error_description": "…"}`; `X-Request-Id` is the `request_id` of the log lines.',
    '',
    ...STANDARD.flatMap((operation) => tableOf(operation, 'error', 'error_description')),
    'On every operation: an unknown path is 404 `not_found`, another method is 405 `invalid_request` with `Allow`, a',
    'body over 16 KiB is 413 `invalid_request`, one that does not arrive in time 408. A failure of our own is 503',
    '`temporarily_unavailable` with `Retry-After`. 401 carries `WWW-Authenticate`.',
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
