import type { Refusal } from '../../domain/refusal.ts';
import { REJECTION_FAULTS } from '../../domain/token-rejection.ts';
import { type ProxyRefusal, TOKEN_FAULT_DESCRIPTIONS } from '../../proxy/policy/refusals.ts';

/** All reasons of the API, the token API and the OAuth endpoints. */
const REASON_TEXTS = {
  // The API refuses requests for these reasons.
  token_missing: 'The request has no access token.',
  token_invalid: 'The access token is not valid.',
  insufficient_scope: 'The token does not include the scope that the rule requires.',
  client_not_allowed: 'The rule is for other clients.',
  no_rule: 'No rule matches the request.',
  malformed: 'The request is malformed or ambiguous.',
  misdirected: 'The request names a host that is not served.',
  misdirected_connection:
    'The request names a host with other rules for client certificates than the host of its TLS connection.',
  target_too_long: 'The request target is longer than limits.url.',
  head_too_large: 'The header section is larger than limits.headers.',
  method_not_allowed: 'The method is not served.',
  transfer_coding_unsupported: 'The request has a transfer coding other than chunked.',
  expectation_failed: 'The request has an Expect header other than 100-continue.',
  rate_limited: 'The caller exceeded a limit of the route.',
  proof_invalid: 'The DPoP proof is not accepted.',
  proof_nonce_required: 'The DPoP proof needs a nonce; clients repeat the request with it.',
  origin_not_allowed: 'The page that sent the request is not an allowed origin.',
  service_worker_script: 'The API may not serve service workers on the origin of the pages.',
  upgrade_not_allowed: 'The rule does not allow WebSockets.',
  websocket_version: 'The version of the WebSocket protocol is not supported.',
  body_too_large: 'The body is larger than limits.body, or than 16 KiB at the token service.',
  client_too_slow: 'The client sent the request too slowly.',
  upstream_failed: 'The upstream could not be reached, or the connection broke.',
  upstream_too_slow: 'The upstream did not respond in time.',
  overloaded: 'Too many requests were waiting.',
  too_many_requests_open: 'Too many requests from the network of the client were open.',
  too_many_event_streams: 'Too many event streams were open.',
  unavailable: 'The request could not be decided: a dependency is unreachable.',
  peer_not_trusted: 'Forward-auth requests are accepted from trusted proxies only.',
  original_request_ambiguous: 'The proxy did not say clearly which request it asks about.',
  // The token API and the OAuth endpoints refuse requests for these reasons.
  request_malformed: 'The request is malformed.',
  client_id_missing: 'The request has no client id.',
  client_unknown: 'No integration has this client id.',
  client_mismatch: 'The credential belongs to another client.',
  client_authentication_failed: 'The client secret, key or certificate is wrong.',
  client_authentication_required: 'The client must authenticate.',
  client_authentication_unsupported: 'The client authenticated with a method that is not supported.',
  client_document_invalid: 'The metadata document of the client cannot be used.',
  redirect_uri_invalid: 'The redirect URI is not registered for the client.',
  response_type_unsupported: 'The response type is not supported.',
  interaction_required: 'The user would have to sign in or approve, and the request forbids it.',
  grant_type_unsupported: 'The grant type is not supported.',
  grant_type_not_allowed: 'The integration does not allow this grant type.',
  grant_unknown: 'The grant does not exist.',
  grant_expired: 'The grant has expired.',
  grant_revoked: 'The grant has been revoked.',
  refresh_token_not_authentic: 'The refresh token was not issued by this service.',
  refresh_token_used: 'The refresh token was used before.',
  refresh_token_reused: 'The refresh token was used before: it may have been stolen, so its grant was revoked.',
  scope_missing: 'The request has no scope.',
  scope_malformed: 'The scope is malformed.',
  scope_exceeds_integration: 'The scope exceeds that of the integration.',
  scope_exceeds_access: 'The scope exceeds what the user may grant.',
  scope_exceeds_grant: 'The scope exceeds that of the grant.',
  target_invalid: 'The requested API is not one of the integration.',
  identity_unknown: 'The name in the certificate or token is not in the directory.',
  identity_disabled: 'The user is disabled.',
  identity_without_access: 'The user has no access to any integration.',
  identity_not_allowed: 'The user has no access to this integration.',
  subject_not_allowed: 'The integration does not accept tokens of this subject.',
  subject_token_invalid: 'The token to exchange is not valid.',
  subject_token_used: 'The token to exchange was used before.',
  certificate_missing: 'No client certificate was presented.',
  certificate_issuer_not_approved: 'The issuer of the client certificate is not approved.',
  certificate_outside_validity: 'The client certificate has expired or is not valid yet.',
  certificate_revoked: 'The client certificate has been revoked.',
  certificate_status_unknown: 'It is not known whether the client certificate has been revoked.',
  certificate_unusable: 'The client certificate is not for client authentication.',
  certificate_name_unusable: 'The client certificate has no usable name, or several.',
  certificate_binding_mismatch: 'The grant is bound to another client certificate.',
  proof_required: 'The client must send a DPoP proof.',
  proof_binding_mismatch: 'The grant is bound to another DPoP key.',
  code_unknown: 'The authorization code is unknown or has expired.',
  code_used: 'The authorization code was used before.',
  code_binding_mismatch: 'The authorization code belongs to another client, redirect URI or PKCE challenge.',
  device_flow_disabled: 'The device flow is disabled, or not allowed for the integration.',
  device_pending: 'The user has not approved the device yet.',
  device_polled_too_soon: 'The device asked again too soon.',
  device_code_unknown: 'The device code is unknown.',
  device_code_expired: 'The device code has expired.',
  device_code_used: 'The device code was used before.',
  device_denied: 'The user denied the request of the device.',
  device_closed: 'The request of the device was closed after too many failed sign-ins.',
  logout_token_invalid: 'The logout token is not valid.',
  introspection_not_allowed: 'The integration may not introspect tokens.',
  token_scope_insufficient: 'The token does not include the scope that the endpoint requires.',
  too_many_device_requests: 'Too many device requests are waiting for a user.',
  too_many_requests: 'The caller exceeded a rate limit.',
} as const satisfies Record<Refusal['reason'] | ProxyRefusal['reason'], string>;

const TEXTS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.entries(TOKEN_FAULT_DESCRIPTIONS).map(([fault, text]) => [`token_${fault}`, text])),
  ...REASON_TEXTS,
  no_such_endpoint: 'The token service has no such endpoint.',
  upstream_aborted: 'The upstream ended the response early.',
  store_unavailable: 'The store is unreachable.',
  internal_error: 'Internal error; the log has the details under this request id.',
};

/**
 * What a reason of the access log means, in sentences. A reason is a code, or a code and a detail (`code: detail` or
 * `code (detail)`); the detail of a token is why its issuer's token is rejected.
 */
export function describeReason(reason: string): string {
  const [, code = '', afterColon, inBrackets] = /^(\w+)(?:: (.*)| \((.*)\))?$/s.exec(reason) ?? [];
  const detail = afterColon ?? inBrackets;
  const text = getOwn(TEXTS, code);
  if (text === undefined) return `${reason.replaceAll('_', ' ')}.`;
  if (detail === undefined) return text;
  if (code === 'insufficient_scope') return `The token does not include ${detail}, which the rule requires.`;
  const rejection = getOwn(REJECTION_FAULTS, detail.split(' ', 1)[0] ?? '');
  if (rejection !== undefined && code.startsWith('token_')) return `${text} ${rejection.replaceAll('`', '')}`;
  return `${text.slice(0, -1)}: ${detail}.`;
}

const getOwn = (texts: Readonly<Record<string, string>>, name: string): string | undefined =>
  Object.hasOwn(texts, name) ? texts[name] : undefined;
