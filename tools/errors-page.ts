import {
  BEARER_ERRORS,
  CERTIFICATE_ERRORS,
  DEVICE_ERRORS,
  TOKEN_ERRORS,
} from '../src/authsvc/wire-errors.ts';
import type { RefusalOf, RefusalReason, TokenFault } from '../src/domain/refusal.ts';
import type { Misfit } from '../src/domain/rule-matcher.ts';
import { describe, type ErrorTable } from '../src/http/wire-error.ts';
import * as OAUTH from '../src/oauth/wire-errors.ts';
import type { FaultCode } from '../src/ports/fault.ts';
import { statusOf } from '../src/proxy/check.ts';
import { type ProxyRefusal, reasonOf, wordingOf } from '../src/proxy/refuse.ts';

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
  // Of a grant with `bindToCertificate`: the certificate is judged again.
  'certificate_issuer_not_approved',
  'certificate_outside_validity',
  'certificate_revoked',
  'certificate_status_unknown',
  'certificate_unusable',
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

const TOKEN_FAULTS = Object.keys({
  malformed: true,
  not_authentic: true,
  expired: true,
  not_yet_valid: true,
  revoked: true,
  client_removed: true,
  certificate_not_presented: true,
  certificate_refused: true,
} satisfies Record<TokenFault, true>);

/** One for each fault of a token: texts differ. */
const casesOf = (facts: object): readonly object[] =>
  'why' in facts ? TOKEN_FAULTS.map((why) => ({ ...facts, why })) : [facts];

const proxyCases = (): ProxyRefusal[] =>
  Object.entries(PROXY).flatMap(([reason, facts]) =>
    casesOf(facts).map((known) => ({ reason, ...known }) as ProxyRefusal),
  );

/** What the `reason` of a log line looks like. */
const loggedAs = (refusal: ProxyRefusal): string => {
  const plain = `\`${reasonOf(refusal).replace('*why*', '…')}\``;
  return refusal.reason === 'no_rule' ? `${plain}, \`no_rule (…)\`` : plain;
};

/** In the parentheses of `no_rule (…)`; a rule with another path is not mentioned. */
const MISFITS: { readonly [M in Exclude<Misfit, 'path'>]: string } = {
  host: 'it is for another host',
  method: 'it is for other methods',
  encoded_slash: 'the path has an encoded slash, which the rule does not allow',
  other_spelling:
    'the path differs from that of the rule only in letter case or by a trailing slash, and the rule asks for more',
  other_reading: 'an upstream may read the path as one that another rule restricts',
};

/** Reasons at `/authsvc/check` that requests to the API have too, apart from the status. */
const CHECKED: ReadonlySet<ProxyReason> = new Set([
  'malformed',
  'token_missing',
  'token_invalid',
  'scope_unmet',
  'client_not_admitted',
  'no_rule',
  'method_not_served',
  'misdirected',
  'expectation_failed',
  'coding_not_served',
  'service_worker_script',
  'origin_not_allowed',
  'peer_not_listed',
  'original_unclear',
  'unavailable',
]);

const FAULTS: { readonly [F in FaultCode]: string } = {
  store_unavailable: 'The store cannot be reached or does not respond.',
  store_full: 'The store has no space left.',
  store_corrupt: 'The store is damaged.',
  store_locked: 'The store is in use by another process.',
  store_record_unreadable: 'A record in the store cannot be read.',
  directory_unavailable: 'A directory or an OpenID provider cannot be reached.',
  keys_unavailable: 'A key that is needed is not in `keys.file`.',
  upstream_unavailable: 'An upstream cannot be reached.',
  upstream_timeout: 'An upstream did not respond in time.',
  audit_unavailable: 'The audit sink takes nothing, and `audit.failClosed` is set.',
  overloaded: 'Too much is in progress at the same time.',
};

/** The confirmation pages respond with pages, not with codes. */
const PAGES: Readonly<Record<string, string>> = {
  not_a_navigation:
    'The browser reports that a script or an embedded element sent the request (`Sec-Fetch-*`).',
  not_the_host_of_the_pages:
    'The pages have a host of their own (`pages.url`), and the request named another one.',
  device_code_unknown: 'The code that was typed is not one that waits for confirmation.',
  sign_in_failed: 'The user name or the password is wrong, or the person is disabled.',
  openid_cancelled: 'Sign-in was cancelled at the OpenID provider.',
  openid_refused: 'The response of the OpenID provider was not accepted.',
  failure: 'An error of gatehouse; the log has `page_failed` with the same `request_id`.',
};

/** Of requests that were served in part, or are answered without a rule. */
const OTHERS: Readonly<Record<string, string>> = {
  preflight: 'A CORS preflight was answered.',
  asterisk: '`OPTIONS *` was answered.',
  service_path: 'At `/authsvc/check`: the path is one of gatehouse itself (403).',
  unknown_token:
    'A token that is not known was to be revoked at `oauth2/revoke`; the response is 200 (RFC 7009).',
  target_too_long: 'The path and query are longer than `limits.url` (414).',
  head_too_large: 'The request head is larger than `limits.headers` (431).',
  client_left: 'The client closed the connection before the response was complete.',
  upstream_broke_off: 'The upstream closed the connection within its response.',
  broke_off: 'A WebSocket or another upgraded connection was closed on one side without notice.',
  upgrade_declined: 'The upstream answered a request for an upgrade without one.',
  'ended: token_…': 'A WebSocket or another long response was ended with its token: expired, revoked, …',
  'ended: going_away': 'A WebSocket or another long response was ended because gatehouse stops.',
  unexpected_error: 'An error of gatehouse; the log has it with the same `request_id`.',
};

const meanings = (rows: Readonly<Record<string, string>>, head = 'reason'): string[] => [
  `| ${head} | meaning |`,
  '|---|---|',
  ...Object.entries(rows).map(([reason, meaning]) => `| \`${reason}\` | ${meaning} |`),
  '',
];

const tableOf = ({ title, table, reasons }: ToldOperation, code: string, text: string): string[] => [
  `### ${title}`,
  '',
  `| status | ${code} | ${text} | reason |`,
  '|---|---|---|---|',
  ...reasons.flatMap((reason) =>
    casesOf(EXAMPLES[reason]).map((facts) => {
      const told = describe(table, { reason, ...facts } as RefusalOf<typeof reason>);
      return `| ${told.status} | \`${told.code}\` | ${told.description} | \`${reason}\` |`;
    }),
  ),
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
    ...proxyCases().map((refusal) => {
      const { status, error, description } = wordingOf(refusal);
      return `| ${status} | \`${error}\` | ${description} | ${loggedAs(refusal)} |`;
    }),
    '',
    'Where no rule matches, only callers with a good token are told 404; all others get 401, as for every path that is not public.',
    'The log then has `no_rule (…)`, with the rules that came near and why they do not match, such as',
    '`no_rule (routes[0] /files/**: method; routes[2] /Files: other_spelling)`, or that none has this path:',
    '',
    ...meanings(MISFITS, 'in the parentheses'),
    'With `reportOnly`, the request is forwarded, `decision` is `would_refuse`, and `reason` is what it would have been refused for.',
    '',
    '## Forward-auth',
    '',
    'Another gateway that asks about a request (`/authsvc/check`) gets 401 and 503 as above and 403 for everything else; see',
    '[forward-auth](forward-auth.md). The body is the same.',
    '',
    '| status | error | reason |',
    '|---|---|---|',
    ...proxyCases()
      .filter(({ reason }) => CHECKED.has(reason))
      .map((refusal) => `| ${statusOf(refusal)} | \`${wordingOf(refusal).error}\` | ${loggedAs(refusal)} |`),
    '',
    '## The confirmation pages',
    '',
    'Their responses are pages. Besides reasons of the token service, such as `identity_not_allowed`, the log has:',
    '',
    ...meanings(PAGES),
    '## Other reasons in the log',
    '',
    ...meanings(OTHERS),
    'A request that failed because of something gatehouse depends on (`decision` is `failed`, the response is the temporary error):',
    '',
    ...meanings(FAULTS),
  ].join('\n');
}
