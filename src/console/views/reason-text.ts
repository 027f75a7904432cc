import { REJECTION_FAULTS } from '../../domain/token-rejection.ts';
import { TOKEN_FAULT_DESCRIPTIONS } from '../../proxy/policy/refusals.ts';

const TEXTS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    Object.entries(TOKEN_FAULT_DESCRIPTIONS).map(([fault, text]) => [`token_${fault}`, text]),
  ),
  token_missing: 'The request has no access token.',
  insufficient_scope: 'The token does not include the scope that the rule requires.',
  client_not_allowed: 'The rule is for other clients.',
  no_rule: 'No rule matches the request.',
  malformed: 'The request is malformed or ambiguous.',
  no_such_endpoint: 'The token service has no such endpoint.',
  misdirected: 'The request names a host that is not served.',
  method_not_allowed: 'The method is not served.',
  rate_limited: 'The caller exceeded a limit of the route.',
  proof_invalid: 'The DPoP proof is not accepted.',
  proof_nonce_required: 'The DPoP proof needs a nonce; clients repeat the request with it.',
  origin_not_allowed: 'The page that sent the request is not an allowed origin.',
  upgrade_not_allowed: 'The rule does not allow WebSockets.',
  body_too_large: 'The body is larger than limits.body, or than 16 KiB at the token service.',
  client_too_slow: 'The client sent the request too slowly.',
  upstream_failed: 'The upstream could not be reached, or the connection broke.',
  upstream_too_slow: 'The upstream did not respond in time.',
  upstream_aborted: 'The upstream ended the response early.',
  overloaded: 'Too many requests were waiting.',
  unavailable: 'The request could not be decided: a dependency is unreachable.',
  store_unavailable: 'The store is unreachable.',
  peer_not_trusted: 'Forward-auth requests are accepted from trusted proxies only.',
  head_too_large: 'The header section is larger than limits.headers.',
  target_too_long: 'The request target is longer than limits.headers.',
  internal_error: 'Internal error; the log has the details under this request id.',
};

/**
 * What a reason of the access log means; undefined if the code explains itself. A reason is a code, or a code and a
 * detail; the detail of a token is why its issuer's token is rejected.
 */
export function describeReason(reason: string): string | undefined {
  const [code = '', detail = ''] = reason.split(': ', 2);
  const text = getOwn(TEXTS, code);
  const rejection = getOwn(REJECTION_FAULTS, detail.split(' ', 1)[0] ?? '');
  return text !== undefined && rejection !== undefined && code.startsWith('token_')
    ? `${text} ${rejection.replaceAll('`', '')}`
    : text;
}

const getOwn = (texts: Readonly<Record<string, string>>, name: string): string | undefined =>
  Object.hasOwn(texts, name) ? texts[name] : undefined;
