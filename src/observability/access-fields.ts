/** Fields of the access log, in order; the table in docs/observability.md is generated from them. */
export const ACCESS_FIELDS = {
  time: 'Time of the line, RFC 3339, UTC.',
  level: '`info`.',
  event: '`request`.',
  worker: 'Worker process, if there are several.',
  request_id: 'Id of the request; also in the `X-Request-Id` header of the response and of the upstream request.',
  trace_id: 'Trace of the request (W3C Trace Context).',
  from: 'Address of the client.',
  method: 'Request method.',
  path: 'Request path, up to 512 characters, without the query.',
  status:
    'Response status; 101 for a WebSocket. For a refused gRPC call, the status that other clients get: the response has 200.',
  grpc_status: 'Code of the result of a gRPC call, from 0 to 16, where there was a result.',
  grpc_method: 'Method of a gRPC call, as `package.Service/Method`, up to 128 characters.',
  aborted: '`true` if the client disconnected before the response was complete.',
  ms: 'Milliseconds from the request head to the end of the response.',
  upstream_ms: 'Milliseconds until the response head of the upstream.',
  bytes_in: 'Bytes of the request body sent to the upstream.',
  bytes_out: 'Bytes of the response body received from the upstream.',
  rule: 'Rule that matched, such as `routes[0] /files/**` or `authsvc:token`.',
  decision:
    '`forwarded`, `allowed`, `handled`, `refused`, `would_refuse` or `failed`: gatehouse or the upstream could not serve the request (502, 503, 504).',
  reason: 'Why the request was refused, or how it ended.',
  identity: 'Identity of the caller, as `label:id`.',
  name: 'User name of the caller, if its token contains it. Omitted if `identity` is excluded or pseudonymised.',
  client: 'Client id of the integration.',
  grant:
    'Id of the grant; all requests of one sign-in share it. Like `client`, it is also logged if an authentic token is refused, such as a revoked one.',
  upstream: 'Name of the upstream.',
  original: 'Method and path of the request that another gateway checked (forward-auth).',
} as const;

export type AccessField = keyof typeof ACCESS_FIELDS;

/** These are needed to interpret a line. */
const KEPT_FIELDS = new Set('time level event worker request_id method status aborted ms decision'.split(' '));

/** The fields that `log.access.exclude` may name. */
export const EXCLUDABLE_FIELDS = Object.keys(ACCESS_FIELDS).filter((name) => !KEPT_FIELDS.has(name)) as AccessField[];

export const PSEUDONYMISABLE_FIELDS = ['from', 'identity', 'client', 'grant'] as const satisfies readonly AccessField[];
