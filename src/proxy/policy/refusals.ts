import type { TokenFault } from '../../domain/refusal.ts';
import { formatOAuthScope, formatScope, type Scope } from '../../domain/scope.ts';
import { createGrpcResult, type GrpcCall, getGrpcStatus } from '../../http/grpc.ts';
import type { Reply } from '../../http/reply.ts';
import type { HeadRefusal } from '../../http/request-head.ts';
import { Fault } from '../../ports/fault.ts';
import type { RootPage } from './root-page.ts';

/** Every reason to refuse a proxied request. The table below has the responses. */
export type ProxyRefusal =
  | HeadRefusal
  | { readonly reason: 'misdirected' }
  | { readonly reason: 'misdirected_connection' }
  | { readonly reason: 'token_missing' }
  /** `scheme`: with which it was sent; omitted: Bearer. `detail`: for the log only. */
  | {
      readonly reason: 'token_invalid';
      readonly fault: TokenFault;
      readonly scheme?: 'dpop';
      readonly detail?: string;
    }
  | { readonly reason: 'proof_invalid'; readonly detail: string }
  | { readonly reason: 'proof_nonce_required'; readonly nonce: string }
  | { readonly reason: 'no_rule' }
  | { readonly reason: 'client_not_allowed'; readonly scope?: Scope }
  | { readonly reason: 'insufficient_scope'; readonly scope: Scope }
  | { readonly reason: 'service_worker_script' }
  | { readonly reason: 'upgrade_not_allowed' }
  | { readonly reason: 'websocket_version' }
  | { readonly reason: 'origin_not_allowed' }
  | { readonly reason: 'body_too_large' }
  | { readonly reason: 'client_too_slow' }
  | { readonly reason: 'upstream_failed' }
  | { readonly reason: 'upstream_too_slow' }
  /** The time in `grpc-timeout` has passed. */
  | { readonly reason: 'deadline_exceeded' }
  | { readonly reason: 'peer_not_trusted' }
  | { readonly reason: 'original_request_ambiguous'; readonly detail: string }
  | { readonly reason: 'overloaded'; readonly retryAfter: number }
  /** The client's network has as many open requests as it may. */
  | { readonly reason: 'too_many_requests_open'; readonly retryAfter: number }
  | { readonly reason: 'too_many_event_streams'; readonly retryAfter: number }
  | {
      readonly reason: 'rate_limited';
      /** The name of the limit. */
      readonly limit: string;
      readonly retryAfter: number;
      /** The values of RateLimit-Policy and RateLimit. */
      readonly policy: string;
      readonly state: string;
    }
  /** `detail`: for the log only. */
  | { readonly reason: 'unavailable'; readonly retryAfter: number; readonly detail?: string };

/** A front proxy sent the certificate header twice, or under a similar name. */
export const AMBIGUOUS_CERTIFICATE = {
  reason: 'malformed',
  detail: 'it is ambiguous which client certificate is forwarded',
} as const satisfies ProxyRefusal;

/** The request cannot be decided, because of a dependency or an internal error. */
export function refuseUndecided(error: unknown): ProxyRefusal {
  if (!(error instanceof Fault)) return { reason: 'unavailable', retryAfter: 1 };
  const { code, issuer, retryAfter } = error;
  return {
    reason: 'unavailable',
    retryAfter,
    detail: `${code}${issuer === undefined ? '' : ` (issuer ${issuer})`}`,
  };
}

interface ErrorResponse {
  readonly status: number;
  readonly error: string;
  readonly description: string;
  /** Closes the connection: where the next request begins may be unknown. */
  readonly close?: true;
}

type RefusalWithReason<R extends ProxyRefusal['reason']> = Extract<ProxyRefusal, { reason: R }>;
type ErrorResponses = {
  readonly [R in ProxyRefusal['reason']]: ErrorResponse | ((refusal: RefusalWithReason<R>) => ErrorResponse);
};

export const TOKEN_FAULT_DESCRIPTIONS = {
  malformed: 'The access token is malformed.',
  not_authentic: 'The access token was not issued by this service.',
  expired: 'The access token has expired.',
  not_yet_valid: 'The access token is not valid yet.',
  revoked: 'The access token has been revoked.',
  client_removed: 'The integration of this access token has been removed.',
  wrong_audience: 'The access token was issued for another API.',
  certificate_not_presented: 'The access token is bound to a certificate that was not presented.',
  certificate_rejected: 'The access token is bound to a certificate that is no longer accepted.',
  proof_missing: 'The access token is bound to a DPoP key, and the request has no proof.',
  not_proof_bound: 'The access token is not bound to a DPoP key; send it with the Bearer scheme.',
} as const satisfies Record<TokenFault, string>;

const respond = (status: number, error: string, description: string): ErrorResponse => ({ status, error, description });

const respondAndClose = (status: number, error: string, description: string): ErrorResponse => ({
  ...respond(status, error, description),
  close: true,
});

const ERROR_RESPONSES: ErrorResponses = {
  malformed: ({ detail }) => respondAndClose(400, 'invalid_request', `The request is not acceptable: ${detail}.`),
  misdirected: respondAndClose(421, 'misdirected_request', 'This host is not served here.'),
  // RFC 9110 §15.5.20: the certificate policy of this host differs from that of the server name in the handshake.
  misdirected_connection: respondAndClose(421, 'misdirected_request', 'use a separate connection for this host'),
  method_not_allowed: respondAndClose(405, 'method_not_allowed', 'This method is not served.'),
  transfer_coding_unsupported: respondAndClose(
    501,
    'not_implemented',
    'The only supported transfer coding is chunked.',
  ),
  expectation_failed: respondAndClose(417, 'expectation_failed', 'The only supported expectation is 100-continue.'),
  target_too_long: respondAndClose(414, 'invalid_request', 'the request target is too long'),
  // RFC 6585 §5.
  head_too_large: respondAndClose(431, 'invalid_request', 'too many or too large header fields'),
  token_missing: respond(401, 'unauthorized', 'A bearer token is required.'),
  token_invalid: ({ fault }) => respond(401, 'invalid_token', TOKEN_FAULT_DESCRIPTIONS[fault]),
  // RFC 9449 §7.1.
  proof_invalid: ({ detail }) => respond(401, 'invalid_dpop_proof', `The DPoP proof is not accepted: ${detail}.`),
  // RFC 9449 §9.
  proof_nonce_required: respond(
    401,
    'use_dpop_nonce',
    'Repeat the request with a DPoP proof that contains the nonce of the DPoP-Nonce header.',
  ),
  no_rule: respond(404, 'not_found', 'No route matches this request.'),
  client_not_allowed: respond(403, 'insufficient_scope', 'The integration of this access token is not allowed here.'),
  insufficient_scope: ({ scope }) =>
    respond(403, 'insufficient_scope', `The access token lacks the required scope: ${formatOAuthScope(scope)}.`),
  service_worker_script: respond(
    403,
    'service_worker_not_allowed',
    'No service worker may be registered on the origin of the confirmation pages.',
  ),
  upgrade_not_allowed: respondAndClose(403, 'upgrade_not_allowed', 'No protocol upgrade is allowed here.'),
  websocket_version: respondAndClose(426, 'upgrade_required', 'The only WebSocket version served is 13.'),
  origin_not_allowed: respond(403, 'origin_not_allowed', 'This origin is not allowed.'),
  body_too_large: respondAndClose(413, 'content_too_large', 'The request body is too large.'),
  client_too_slow: respondAndClose(408, 'request_timeout', 'The request body did not arrive in time.'),
  upstream_failed: respond(502, 'bad_gateway', 'The upstream service did not respond properly.'),
  upstream_too_slow: respond(504, 'gateway_timeout', 'The upstream service did not respond in time.'),
  deadline_exceeded: respond(504, 'gateway_timeout', 'The deadline of the call has passed.'),
  peer_not_trusted: respond(403, 'access_denied', 'This peer is not a trusted proxy.'),
  original_request_ambiguous: ({ detail }) =>
    respond(403, 'invalid_request', `The original request is ambiguous: ${detail}.`),
  rate_limited: ({ limit }) =>
    respond(429, 'too_many_requests', `Too many requests: the limit "${limit}" of this route is exceeded.`),
  overloaded: respond(503, 'temporarily_unavailable', 'Too many requests are waiting; retry.'),
  too_many_requests_open: respondAndClose(
    503,
    'temporarily_unavailable',
    'too many requests of your network are open; retry later',
  ),
  too_many_event_streams: respond(503, 'temporarily_unavailable', 'Too many event streams are open; retry.'),
  unavailable: respond(503, 'temporarily_unavailable', 'Authorization is temporarily unavailable; retry.'),
};

export function getErrorResponse<R extends ProxyRefusal['reason']>(refusal: RefusalWithReason<R>): ErrorResponse {
  const entry: ErrorResponse | ((refusal: RefusalWithReason<R>) => ErrorResponse) = ERROR_RESPONSES[refusal.reason];
  return typeof entry === 'function' ? entry(refusal) : entry;
}

/**
 * For the log and the metrics. Failures of gatehouse or the upstream are not refusals, but 501 and the limit of a network are: they are
 * about the request and its client.
 */
export const getLogDecision = (refusal: ProxyRefusal): 'refused' | 'failed' =>
  getErrorResponse(refusal).status > 501 && refusal.reason !== 'too_many_requests_open' ? 'failed' : 'refused';

/** For the log. */
export function getLogReason(refusal: ProxyRefusal): string {
  if (refusal.reason === 'token_invalid')
    return `token_${refusal.fault}${refusal.detail === undefined ? '' : `: ${refusal.detail}`}`;
  if (refusal.reason === 'insufficient_scope') return `insufficient_scope: ${formatScope(refusal.scope)}`;
  if (refusal.reason === 'rate_limited') return `rate_limited: ${refusal.limit}`;
  if (refusal.reason === 'unavailable' && refusal.detail !== undefined) return `unavailable: ${refusal.detail}`;
  if (refusal.reason === 'too_many_requests_open') return 'overloaded';
  if (refusal.reason === 'proof_invalid') return `proof_invalid: ${refusal.detail}`;
  return refusal.reason === 'malformed' ? `malformed: ${refusal.detail}` : refusal.reason;
}

/** RFC 9110 §5.6.4: inside a quoted string, quotes and backslashes are escaped. */
const quoteString = (text: string): string =>
  `"${text.replace(/[^\x20-\x7e]/g, '?').replace(/["\\]/g, String.raw`\$&`)}"`;

/** RFC 6750 §3: without a token, the challenge has no error code. `resourceMetadata`: the URL of RFC 9728 §5.1. */
export function formatChallenge(
  refusal: ProxyRefusal,
  resourceMetadata?: string,
  proofAlgorithms?: readonly string[],
): string | undefined {
  const { error, description } = getErrorResponse(refusal);
  const isMissing = refusal.reason === 'token_missing';
  if (!isMissing && !CHALLENGED_ERRORS.has(error)) return undefined;
  const parameters = isMissing
    ? ''
    : `, error=${quoteString(error)}, error_description=${quoteString(description)}${formatScopeParameters(refusal)}`;
  const metadata = resourceMetadata === undefined ? '' : `, resource_metadata=${quoteString(resourceMetadata)}`;
  const rest = `realm="gatehouse"${parameters}${metadata}`;
  if (proofAlgorithms === undefined || error === 'insufficient_scope') return `Bearer ${rest}`;
  // RFC 9449 §7.1: the error belongs to the scheme that the client used, or should have used.
  const algorithms = `algs=${quoteString(proofAlgorithms.join(' '))}`;
  return isProofRefusal(refusal)
    ? `DPoP ${rest}, ${algorithms}`
    : `Bearer ${rest}, DPoP realm="gatehouse", ${algorithms}`;
}

const CHALLENGED_ERRORS: ReadonlySet<string> = new Set([
  'invalid_token',
  'insufficient_scope',
  'invalid_dpop_proof',
  'use_dpop_nonce',
]);

const isProofRefusal = (refusal: ProxyRefusal): boolean =>
  refusal.reason === 'token_invalid'
    ? refusal.scheme === 'dpop' || refusal.fault === 'proof_missing'
    : refusal.reason === 'proof_invalid' || refusal.reason === 'proof_nonce_required';

/** RFC 6750 §3: a list with spaces. The token API takes no spaces, so it is repeated in that syntax. */
function formatScopeParameters(refusal: ProxyRefusal): string {
  if (!('scope' in refusal) || refusal.scope === undefined) return '';
  const list = formatOAuthScope(refusal.scope);
  const own = list.includes(' ') ? `, gatehouse_scope=${quoteString(formatScope(refusal.scope))}` : '';
  return `, scope=${quoteString(list)}${own}`;
}

export const SUPPORTED_METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

export interface RefusalOptions {
  readonly requestId: string;
  /** Where the resource is described (RFC 9728). */
  readonly resourceMetadata?: string | undefined;
  /** Algorithms of DPoP proofs; omitted: DPoP is not offered. */
  readonly proofAlgorithms?: readonly string[] | undefined;
  /** Overrides the table. */
  readonly override?: { readonly status: number; readonly close: boolean };
  /** So that pages of other origins can read it. */
  readonly cors?: Readonly<Record<string, string>> | undefined;
  /** In place of the JSON body. It is the same with and without a route, so it has no CORS fields. */
  readonly page?: RootPage | undefined;
  /** The refused call. */
  readonly grpc?: GrpcCall | undefined;
}

/** The response to a refused request. */
export function createRefusalReply(refusal: ProxyRefusal, options: RefusalOptions): Reply {
  const errorResponse = getErrorResponse(refusal);
  const { status, close = false } = options.override ?? errorResponse;
  const { error, description } = errorResponse;
  const { text, headers } = options.page ?? {
    text: JSON.stringify({ error, error_description: description, request_id: options.requestId }),
    headers: { 'content-type': 'application/json; charset=utf-8' },
  };
  const wwwAuthenticate = formatChallenge(refusal, options.resourceMetadata, options.proofAlgorithms);
  return {
    ...(options.grpc === undefined ? { status, body: text } : { status: 200, loggedStatus: status }),
    close,
    headers: {
      'cache-control': 'no-store',
      ...(options.grpc === undefined ? headers : getGrpcFields(refusal, options.grpc)),
      'x-content-type-options': 'nosniff',
      'x-request-id': options.requestId,
      ...(status === 405 && { allow: SUPPORTED_METHODS }),
      // RFC 6455 §4.4, RFC 9110 §15.5.22.
      ...(status === 426 && { upgrade: 'websocket', 'sec-websocket-version': '13' }),
      ...(wwwAuthenticate !== undefined && { 'www-authenticate': wwwAuthenticate }),
      ...(refusal.reason === 'proof_nonce_required' && { 'dpop-nonce': refusal.nonce }),
      ...('retryAfter' in refusal && { 'retry-after': String(refusal.retryAfter) }),
      // draft-ietf-httpapi-ratelimit-headers.
      ...(refusal.reason === 'rate_limited' && {
        'ratelimit-policy': refusal.policy,
        ratelimit: refusal.state,
      }),
      ...(options.page === undefined && options.cors),
      ...(options.grpc?.isWeb === true && exposeGrpcResult(options.cors)),
    },
  };
}

/** The result of a refused call, as its trailers have it. */
export function getGrpcResult(refusal: ProxyRefusal): Readonly<Record<string, string>> {
  const { status, description } = getErrorResponse(refusal);
  return createGrpcResult(getGrpcStatus(status), description);
}

const getGrpcFields = (refusal: ProxyRefusal, { contentType }: GrpcCall): Readonly<Record<string, string>> => ({
  'content-type': contentType,
  ...getGrpcResult(refusal),
  // gRPC A6: when a client may retry.
  ...('retryAfter' in refusal && { 'grpc-retry-pushback-ms': String(refusal.retryAfter * 1_000) }),
});

/** Without it, a page of another origin cannot read the result. */
function exposeGrpcResult(cors: RefusalOptions['cors']): Readonly<Record<string, string>> {
  if (cors?.['Access-Control-Allow-Origin'] === undefined) return {};
  const exposed = cors['Access-Control-Expose-Headers'];
  return { 'Access-Control-Expose-Headers': `${exposed === undefined ? '' : `${exposed}, `}grpc-status, grpc-message` };
}
