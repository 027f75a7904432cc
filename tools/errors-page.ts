import { BEARER_ERRORS, CERTIFICATE_ERRORS, DEVICE_ERRORS, TOKEN_ERRORS } from '../src/authsvc/error-tables.ts';
import type { RefusalOf, RefusalReason, TokenFault } from '../src/domain/refusal.ts';
import type { Mismatch } from '../src/domain/rule-matcher.ts';
import { DISCLOSED_FAULTS, REJECTION_FAULTS } from '../src/domain/token-rejection.ts';
import { describeRefusal, type ErrorTable } from '../src/http/error-table.ts';
import * as OAUTH from '../src/oauth/error-tables.ts';
import type { FaultCode } from '../src/ports/fault.ts';
import { getErrorResponse, getLogReason, type ProxyRefusal } from '../src/proxy/policy/refusals.ts';
import { getForwardAuthStatus } from '../src/proxy/policy/request-check.ts';

/** Each reason with example details. */
const EXAMPLES: { readonly [R in RefusalReason]: Omit<RefusalOf<R>, 'reason'> } = {
  request_malformed: { detail: '*What is wrong with the request.*' },
  client_id_missing: {},
  too_many_requests: { retryAfter: 1 },
  client_unknown: { clientId: '' },
  client_document_invalid: { clientId: '', detail: '' },
  client_mismatch: { grantId: '' },
  device_flow_disabled: {},
  grant_type_not_allowed: { grantType: 'certificate' },
  grant_type_unsupported: { grantType: 'password' },
  client_authentication_unsupported: {},
  client_authentication_required: { clientId: '' },
  client_authentication_failed: { clientId: '', method: '', detail: '' },
  target_invalid: { target: 'https://api.example.test' },
  subject_token_invalid: { fault: 'expired' },
  subject_not_allowed: { identity: '', detail: '' },
  subject_token_used: { identity: '' },
  logout_token_invalid: { detail: '' },
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
  certificate_name_unusable: { detail: '*why*' },
  identity_unknown: { subject: '' },
  identity_disabled: { identity: '' },
  identity_without_access: { identity: '' },
  identity_not_allowed: { identity: '' },
  refresh_token_not_authentic: {},
  grant_unknown: {},
  grant_expired: { refreshUntil: 0 },
  grant_revoked: {},
  refresh_token_used: { grantId: '' },
  refresh_token_reused: { grantId: '' },
  certificate_binding_mismatch: { grantId: '' },
  proof_binding_mismatch: { grantId: '' },
  proof_required: { clientId: '' },
  proof_invalid: { detail: '*why*' },
  proof_nonce_required: { nonce: '' },
  device_code_unknown: {},
  device_code_expired: {},
  device_code_used: {},
  device_pending: {},
  device_polled_too_soon: { retryAfter: 3 },
  device_denied: {},
  device_closed: {},
  too_many_device_requests: {},
  redirect_uri_invalid: { redirectUri: '' },
  response_type_unsupported: {},
  interaction_required: {},
  code_unknown: {},
  code_used: { grantId: '' },
  code_binding_mismatch: { parameter: 'code_verifier' },
  introspection_not_allowed: { clientId: '' },
  token_missing: {},
  token_invalid: { fault: 'expired' },
  token_scope_insufficient: { scope: 'tokens:introspect' },
};

const IDENTITY_REASONS = ['identity_unknown', 'identity_disabled', 'identity_not_allowed'] as const;
const REQUEST_REASONS = ['request_malformed', 'client_id_missing', 'too_many_requests', 'client_unknown'] as const;
const CERTIFICATE_REASONS = [
  'certificate_missing',
  'certificate_issuer_not_approved',
  'certificate_outside_validity',
  'certificate_revoked',
  'certificate_status_unknown',
  'certificate_unusable',
  'certificate_name_unusable',
] as const;
const REFRESH_REASONS = [
  'client_mismatch',
  'refresh_token_not_authentic',
  'grant_unknown',
  'grant_expired',
  'grant_revoked',
  'refresh_token_used',
  'refresh_token_reused',
  'certificate_binding_mismatch',
  'proof_binding_mismatch',
  'proof_required',
  // For grants with `bindToCertificate`, the certificate is validated again.
  'certificate_issuer_not_approved',
  'certificate_outside_validity',
  'certificate_revoked',
  'certificate_status_unknown',
  'certificate_unusable',
  ...IDENTITY_REASONS,
  'scope_exceeds_integration',
  'scope_exceeds_access',
] as const;
const DEVICE_CODE_REASONS = [
  'proof_required',
  'client_mismatch',
  'device_flow_disabled',
  'device_pending',
  'device_polled_too_soon',
  'device_code_unknown',
  'device_code_expired',
  'device_code_used',
  'device_denied',
  'device_closed',
  ...IDENTITY_REASONS,
  'scope_exceeds_integration',
  'scope_exceeds_access',
  // With `bindToCertificate`.
  'certificate_missing',
  'certificate_unusable',
] as const;
const SCOPE_REASONS = ['scope_missing', 'scope_malformed', 'scope_exceeds_integration'] as const;

export interface DocumentedOperation {
  readonly title: string;
  /** Relative to the service path. */
  readonly paths: readonly string[];
  readonly table: ErrorTable;
  readonly reasons: readonly RefusalReason[];
}

/** The reasons of each operation; the type check below fails if one is missing. */
export const TOKEN_API = [
  {
    title: 'POST Authorize/Token, with a refresh_token',
    paths: ['/Authorize/Token'],
    table: TOKEN_ERRORS,
    reasons: [...REQUEST_REASONS, ...REFRESH_REASONS],
  },
  {
    title: 'POST Authorize/Token, with a device_code',
    paths: ['/Authorize/Token'],
    table: TOKEN_ERRORS,
    reasons: [...REQUEST_REASONS, ...DEVICE_CODE_REASONS],
  },
  {
    title: 'POST Authorize/Certificate',
    paths: ['/Authorize/Certificate'],
    table: CERTIFICATE_ERRORS,
    reasons: [
      ...REQUEST_REASONS,
      ...CERTIFICATE_REASONS,
      ...IDENTITY_REASONS,
      'identity_without_access',
      'grant_type_not_allowed',
      'proof_required',
      ...SCOPE_REASONS,
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST Authorize/Device',
    paths: ['/Authorize/Device'],
    table: DEVICE_ERRORS,
    reasons: [
      ...REQUEST_REASONS,
      'device_flow_disabled',
      'grant_type_not_allowed',
      ...SCOPE_REASONS,
      'too_many_device_requests',
    ],
  },
  {
    title: 'GET Revoke/Token and GET Authorize/Verify',
    paths: ['/Revoke/Token', '/Authorize/Verify'],
    table: BEARER_ERRORS,
    reasons: ['token_missing', 'token_invalid', 'request_malformed', 'too_many_requests'],
  },
] as const satisfies readonly DocumentedOperation[];

const CLIENT_AUTHENTICATION_REASONS = [
  'client_authentication_unsupported',
  'client_authentication_required',
  'client_authentication_failed',
] as const;
const OAUTH_REQUEST_REASONS = [...REQUEST_REASONS, ...CLIENT_AUTHENTICATION_REASONS] as const;
const PROOF_REASONS = ['proof_invalid', 'proof_nonce_required'] as const;
const EXCHANGE_REASONS = [
  'proof_required',
  'subject_token_invalid',
  'subject_not_allowed',
  'subject_token_used',
  'grant_type_not_allowed',
  'target_invalid',
  'scope_malformed',
  'scope_exceeds_integration',
  'scope_exceeds_access',
  // With `bindToCertificate`.
  'certificate_missing',
  'certificate_unusable',
] as const;

/** The same for the OAuth endpoints. */
export const OAUTH_ENDPOINTS = [
  {
    title: 'POST oauth2/token, refresh_token',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [
      ...OAUTH_REQUEST_REASONS,
      'grant_type_unsupported',
      ...PROOF_REASONS,
      ...REFRESH_REASONS,
      'scope_malformed',
      'scope_exceeds_grant',
    ],
  },
  {
    title: 'POST oauth2/token, device_code',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [...OAUTH_REQUEST_REASONS, 'grant_type_unsupported', ...PROOF_REASONS, ...DEVICE_CODE_REASONS],
  },
  {
    title: 'POST oauth2/token, authorization_code',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [
      ...OAUTH_REQUEST_REASONS,
      'grant_type_unsupported',
      ...PROOF_REASONS,
      'proof_required',
      'grant_type_not_allowed',
      'code_unknown',
      'code_used',
      'code_binding_mismatch',
      'client_mismatch',
      'target_invalid',
      ...IDENTITY_REASONS,
      'scope_exceeds_integration',
      'scope_exceeds_access',
      // With `bindToCertificate`.
      'certificate_missing',
      'certificate_unusable',
    ],
  },
  {
    title: 'POST oauth2/token, client_credentials',
    paths: ['/oauth2/token'],
    table: OAUTH.CLIENT_CREDENTIALS_ERRORS,
    reasons: [
      ...OAUTH_REQUEST_REASONS,
      'grant_type_unsupported',
      ...PROOF_REASONS,
      ...CERTIFICATE_REASONS,
      ...IDENTITY_REASONS,
      'identity_without_access',
      'grant_type_not_allowed',
      'proof_required',
      'scope_malformed',
      'scope_exceeds_integration',
      'scope_exceeds_access',
    ],
  },
  {
    title: 'POST oauth2/token, token-exchange',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_EXCHANGE_ERRORS,
    reasons: [...OAUTH_REQUEST_REASONS, 'grant_type_unsupported', ...PROOF_REASONS, ...EXCHANGE_REASONS],
  },
  {
    title: 'POST oauth2/token, jwt-bearer',
    paths: ['/oauth2/token'],
    table: OAUTH.TOKEN_ERRORS,
    reasons: [...OAUTH_REQUEST_REASONS, 'grant_type_unsupported', ...PROOF_REASONS, ...EXCHANGE_REASONS],
  },
  {
    title: 'POST oauth2/device_authorization',
    paths: ['/oauth2/device_authorization'],
    table: OAUTH.DEVICE_AUTHORIZATION_ERRORS,
    reasons: [
      ...OAUTH_REQUEST_REASONS,
      'device_flow_disabled',
      'grant_type_not_allowed',
      ...SCOPE_REASONS,
      'too_many_device_requests',
    ],
  },
  {
    title: 'POST oauth2/par',
    paths: ['/oauth2/par'],
    table: OAUTH.PUSHED_AUTHORIZATION_ERRORS,
    reasons: [
      ...OAUTH_REQUEST_REASONS,
      ...PROOF_REASONS,
      'grant_type_not_allowed',
      'client_document_invalid',
      'redirect_uri_invalid',
      'response_type_unsupported',
      'interaction_required',
      'scope_malformed',
      'scope_exceeds_integration',
      'target_invalid',
    ],
  },
  {
    title: 'POST oauth2/revoke',
    paths: ['/oauth2/revoke'],
    table: OAUTH.REVOCATION_ERRORS,
    reasons: [
      'request_malformed',
      'too_many_requests',
      'client_authentication_unsupported',
      'client_authentication_failed',
      'token_missing',
      'client_mismatch',
    ],
  },
  {
    title: 'POST oauth2/backchannel_logout',
    paths: ['/oauth2/backchannel_logout'],
    table: OAUTH.LOGOUT_ERRORS,
    reasons: ['request_malformed', 'too_many_requests', 'token_missing', 'logout_token_invalid'],
  },
  {
    title: 'POST oauth2/introspect',
    paths: ['/oauth2/introspect'],
    table: OAUTH.INTROSPECTION_ERRORS,
    reasons: [
      'request_malformed',
      'too_many_requests',
      'client_id_missing',
      'client_authentication_unsupported',
      'client_authentication_failed',
      'introspection_not_allowed',
      'token_missing',
      'token_invalid',
      'token_scope_insufficient',
      ...CERTIFICATE_REASONS.slice(1),
      'identity_unknown',
      'identity_disabled',
      'identity_not_allowed',
    ],
  },
] as const satisfies readonly DocumentedOperation[];

type DocumentedReason = (typeof TOKEN_API | typeof OAUTH_ENDPOINTS)[number]['reasons'][number];
type AssertNever<T extends never> = T;
/** Does not compile if a reason is not documented for any operation. */
export type UndocumentedReason = AssertNever<Exclude<RefusalReason, DocumentedReason>>;

type ProxyReason = ProxyRefusal['reason'];
const PROXY: { readonly [R in ProxyReason]: Omit<Extract<ProxyRefusal, { reason: R }>, 'reason'> } = {
  malformed: { detail: '*why*' },
  token_missing: {},
  token_invalid: { fault: 'expired' },
  proof_invalid: { detail: '*why*' },
  proof_nonce_required: { nonce: '' },
  insufficient_scope: { scope: new Map([['files', new Set(['read'])]]) },
  client_not_allowed: {},
  no_rule: {},
  method_not_allowed: {},
  body_too_large: {},
  client_too_slow: {},
  misdirected: {},
  misdirected_connection: {},
  target_too_long: {},
  head_too_large: {},
  expectation_failed: {},
  transfer_coding_unsupported: {},
  service_worker_script: {},
  upgrade_not_allowed: {},
  websocket_version: {},
  origin_not_allowed: {},
  peer_not_trusted: {},
  original_request_ambiguous: { detail: '*why*' },
  upstream_failed: {},
  upstream_too_slow: {},
  deadline_exceeded: {},
  rate_limited: { limit: 'identity', retryAfter: 1, policy: '', state: '' },
  overloaded: { retryAfter: 1 },
  too_many_requests_open: { retryAfter: 1 },
  too_many_event_streams: { retryAfter: 5 },
  unavailable: { retryAfter: 1 },
};

const TOKEN_FAULTS = Object.keys({
  malformed: true,
  not_authentic: true,
  expired: true,
  not_yet_valid: true,
  revoked: true,
  client_removed: true,
  wrong_audience: true,
  certificate_not_presented: true,
  certificate_rejected: true,
  proof_missing: true,
  not_proof_bound: true,
} satisfies Record<TokenFault, true>);

/** One case per token fault, because their descriptions differ. */
const expandTokenFaults = (facts: object): readonly object[] =>
  'fault' in facts ? TOKEN_FAULTS.map((fault) => ({ ...facts, fault })) : [facts];

const proxyCases = (): ProxyRefusal[] =>
  Object.entries(PROXY).flatMap(([reason, facts]) =>
    expandTokenFaults(facts).map((known) => ({ reason, ...known }) as ProxyRefusal),
  );

/** Tokens of trusted issuers: the log has the exact reason. */
const FAULTS_WITH_DETAIL: ReadonlySet<string> = new Set(['not_authentic', ...DISCLOSED_FAULTS]);

const formatLogReason = (refusal: ProxyRefusal): string => {
  const plain = `\`${getLogReason(refusal).replace('*why*', '…')}\``;
  if (refusal.reason === 'token_invalid' && FAULTS_WITH_DETAIL.has(refusal.fault))
    return `${plain}, \`token_${refusal.fault}: …\``;
  if (refusal.reason === 'unavailable') return `${plain}, \`unavailable: …\``;
  return refusal.reason === 'no_rule' ? `${plain}, \`no_rule (…)\`` : plain;
};

/** The texts in the parentheses of `no_rule (…)`. */
const MISMATCHES: { readonly [M in Exclude<Mismatch, 'path'>]: string } = {
  host: 'it is for another host',
  method: 'it is for other methods',
  encoded_slash: 'the path has an encoded slash, which the rule does not allow',
  equivalent_path:
    'the path differs from that of the rule only in letter case or by a trailing slash, and the rule asks for more or limits requests more',
  ambiguous_path: 'an upstream may read the path as one that another rule restricts',
};

/** Reasons at `/authsvc/check` that also apply to proxied requests, apart from the status. */
const CHECKED: ReadonlySet<ProxyReason> = new Set([
  'malformed',
  'token_missing',
  'token_invalid',
  'proof_invalid',
  'proof_nonce_required',
  'insufficient_scope',
  'client_not_allowed',
  'no_rule',
  'method_not_allowed',
  'misdirected',
  'expectation_failed',
  'transfer_coding_unsupported',
  'service_worker_script',
  'origin_not_allowed',
  'rate_limited',
  'peer_not_trusted',
  'original_request_ambiguous',
  'unavailable',
]);

const FAULTS: { readonly [F in FaultCode]: string } = {
  store_unavailable: 'The store cannot be reached or does not respond.',
  store_full: 'The store has no space left.',
  store_corrupt: 'The store is damaged.',
  store_locked: 'The store is in use by another process.',
  store_record_unreadable: 'A record in the store cannot be read.',
  directory_unavailable: 'A directory or an OpenID provider cannot be reached.',
  certificate_status_unavailable:
    'It is not known whether the client certificate is revoked: its revocation list cannot be fetched, or its OCSP responder is unreachable. The log line `dependency_failed` with the same `request_id`, or for proxied requests `authorization_failed`, which is logged at most once a minute, names the URL; `ocsp_failed` or `crl_fetch_failed` says why. Let gatehouse reach the URL (name resolution, network policy, proxy), or correct `certificates.crls[].url` or `certificates.issuers[].ocsp.url`. Clients get the temporary error and can retry; their certificates are not the problem.',
  keys_unavailable: 'A key that is needed is not in `keys.file`, or the keys of a trusted issuer cannot be fetched.',
  introspection_unavailable: 'The introspection endpoint of a trusted issuer is unreachable or fails.',
  client_document_unavailable: 'The metadata document of a client that is not registered cannot be read now.',
  upstream_unavailable: 'An upstream cannot be reached.',
  upstream_timeout: 'An upstream did not respond in time.',
  audit_unavailable: 'The audit sink accepts no events, and `audit.failClosed` is set.',
  overloaded: 'Too many operations are in progress at the same time.',
};

/** Reasons of the confirmation pages, which respond with HTML instead of error codes. */
const PAGES: Readonly<Record<string, string>> = {
  not_a_navigation: 'The browser reports that a script or an embedded element sent the request (`Sec-Fetch-*`).',
  misdirected: 'The pages have a separate host (`pages.url`), and the request named another one.',
  'client_unknown, redirect_uri_invalid, …':
    'An authorization request that was refused: on a page if the client or its redirect URI is not valid, otherwise at the redirect URI.',
  device_code_unknown: 'No device is waiting for confirmation with the entered code.',
  sign_in_failed: 'The user name or the password is wrong, or the user is disabled.',
  openid_cancelled: 'Sign-in was cancelled at the OpenID provider.',
  openid_refused: 'The response from the OpenID provider was not accepted.',
  openid_not_reauthenticated:
    'The app asked for a new authentication (`prompt=login`, `max_age`), and the OpenID provider did not confirm one.',
  internal_error: 'An internal error; the log has `page_failed` with the same `request_id`.',
};

/** Reasons of requests that were served partially, or without a rule. */
const OTHER_REASONS: Readonly<Record<string, string>> = {
  preflight: 'A CORS preflight.',
  asterisk: '`OPTIONS *`.',
  no_resource: 'Protected resource metadata was requested for a path that needs no token (404).',
  service_path: 'At `/authsvc/check`: the path belongs to gatehouse itself (403).',
  unknown_token: 'An unknown token was sent to `oauth2/revoke`; the response is 200 (RFC 7009).',
  no_such_endpoint: 'The token service has no such endpoint (404).',
  client_disconnected: 'The client closed the connection before the response was complete.',
  upstream_aborted: 'The upstream closed the connection before its response was complete.',
  aborted: 'A WebSocket or another upgraded connection was closed on one side without notice.',
  upgrade_declined: 'The upstream did not accept the upgrade.',
  'ended: token_…': 'A WebSocket or another long response was ended with its token: expired, revoked, …',
  'ended: going_away': 'A WebSocket or another long response was ended because gatehouse is shutting down.',
  internal_error: 'An internal error; the log has the details, with the same `request_id`.',
};

const formatMeanings = (rows: Readonly<Record<string, string>>, head = 'reason'): string[] => [
  `| ${head} | meaning |`,
  '|---|---|',
  ...Object.entries(rows).map(([reason, meaning]) => `| \`${reason}\` | ${meaning} |`),
  '',
];

const formatTable = ({ title, table, reasons }: DocumentedOperation, code: string, text: string): string[] => [
  `### ${title}`,
  '',
  `| status | ${code} | ${text} | reason |`,
  '|---|---|---|---|',
  ...reasons.flatMap((reason) =>
    expandTokenFaults(EXAMPLES[reason]).map((facts) => {
      const response = describeRefusal(table, { reason, ...facts } as RefusalOf<typeof reason>);
      return `| ${response.status} | \`${response.code}\` | ${response.description} | \`${reason}\` |`;
    }),
  ),
  '',
];

/** The error codes of an operation by status. */
export function listErrorCodes(operations: readonly DocumentedOperation[], path: string): Map<number, Set<string>> {
  const codes = new Map<number, Set<string>>();
  for (const { paths, table, reasons } of operations)
    if (paths.includes(path))
      for (const reason of reasons) {
        const { status, code } = describeRefusal(table, {
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
    '<!-- Generated by `npm run docs` from src/authsvc/error-tables.ts, src/oauth/error-tables.ts and src/proxy/policy/refusals.ts. Change those, not this file. -->',
    '# Error responses',
    '',
    '*Reason* is the `reason` field of the log line and of the audit event of the same request. Texts in italics are',
    'placeholders. Descriptions may change in any release; programs should use the status and the code.',
    '',
    '## Token API',
    '',
    'The body is `{"Error": "…", "Error_description": "…"}`; `X-Request-Id` is the `request_id` of the log lines.',
    '',
    ...TOKEN_API.flatMap((operation) => formatTable(operation, 'Error', 'Error_description')),
    'On every operation: an unknown path is 404 `not_found`, another method is 405 `invalid_request` with `Allow`, a',
    'body over 16 KiB is 413 `invalid_request`. An internal failure is 400 `invalid_request` with `Retry-After` on the',
    'POST operations and 503 `temporarily_unavailable` with `Retry-After` on the GET ones; it never reports an invalid',
    'credential.',
    '',
    '## OAuth endpoints',
    '',
    'The body is `{"error": "…", "error_description": "…"}`; `X-Request-Id` is the `request_id` of the log lines.',
    '',
    ...OAUTH_ENDPOINTS.flatMap((operation) => formatTable(operation, 'error', 'error_description')),
    'On every operation: an unknown path is 404 `not_found`, another method is 405 `invalid_request` with `Allow`, a',
    'body over 16 KiB is 413 `invalid_request`, one that does not arrive in time 408. An internal failure is 503',
    '`temporarily_unavailable` with `Retry-After`. 401 responses have `WWW-Authenticate`.',
    '',
    '## Proxied requests',
    '',
    'The body is `{"error": "…", "error_description": "…", "request_id": "…"}`. Responses from the API itself are forwarded unchanged.',
    '',
    '| status | error | error_description | reason |',
    '|---|---|---|---|',
    ...proxyCases().map((refusal) => {
      const { status, error, description } = getErrorResponse(refusal);
      return `| ${status} | \`${error}\` | ${description} | ${formatLogReason(refusal)} |`;
    }),
    '',
    'If no rule matches, a caller with a valid token issued by gatehouse receives 404. Everyone else receives 401, as on every path that is not public, so that the paths of the API cannot be probed without a token that they accept.',
    'For a valid token issued by gatehouse and for an authentic one of a trusted issuer, the log then has `no_rule (…)`, with similar rules and why they do not match, such as',
    '`no_rule (routes[0] /files/**: method; routes[2] /Files: equivalent_path)`, or that none has this path:',
    '',
    ...formatMeanings(MISMATCHES, 'in the parentheses'),
    'With `trustedIssuers`, the log has the exact reason for JWTs and introspected tokens, and the configured name of the issuer if it is',
    'known: `token_not_authentic: unknown_key (issuer corp)`, `token_not_authentic: claim_mismatch tid (issuer corp)`. Values of the token are not',
    'logged, and the response is the same for all of them, with two exceptions: if the signature is valid and the rule accepts the issuer, the response to a JWT says that it has',
    'expired or was issued for another API, and the log has `token_expired: expired (issuer corp)` or `token_wrong_audience: wrong_audience (issuer corp)`:',
    '',
    ...formatMeanings(REJECTION_FAULTS, 'after the colon'),
    'The audit event `grant_denied` of a token exchange with the reason `subject_token_invalid` has these in `detail`, and the issuer in `issuer` if it is',
    'known. With the reason `subject_not_allowed`, it has `identity`, and `detail` is what did not match: `issuer_mismatch`, `subject_mismatch`, `claim_mismatch` with the name of the claim, or, at a refresh,',
    '`refresh_not_allowed`. That of a refused logout token (`operation` is `oauth2:logout`) has the reason `logout_token_invalid`, and `issuer` and `detail` in the same way.',
    '',
    'With `reportOnly`, the request is forwarded, `decision` is `would_refuse`, and `reason` says why it would have been refused.',
    '',
    '## Forward-auth',
    '',
    'Another gateway that checks a request at `/authsvc/check` receives 401, 429 and 503 as above, and 403 otherwise; see',
    '[forward-auth](forward-auth.md). The body is the same.',
    '',
    '| status | error | reason |',
    '|---|---|---|',
    ...proxyCases()
      .filter(({ reason }) => CHECKED.has(reason))
      .map(
        (refusal) =>
          `| ${getForwardAuthStatus(refusal)} | \`${getErrorResponse(refusal).error}\` | ${formatLogReason(refusal)} |`,
      ),
    '',
    '## The confirmation pages',
    '',
    'Responses are HTML pages. In addition to reasons of the token API, such as `identity_not_allowed`, the log has:',
    '',
    ...formatMeanings(PAGES),
    '## Other reasons in the log',
    '',
    ...formatMeanings(OTHER_REASONS),
    'A dependency of gatehouse failed (`decision` is `failed`, the response is the temporary error):',
    '',
    ...formatMeanings(FAULTS),
  ].join('\n');
}
