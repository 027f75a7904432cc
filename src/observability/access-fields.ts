/** The fields of the line each request leaves, in their order; the source of the table in docs/observability.md. */
export const ACCESS_FIELDS = {
  time: 'When the line was written, RFC 3339, UTC.',
  level: '`info`.',
  event: '`request`.',
  worker: 'Process that served it, where there are several.',
  request_id: 'Id of the request; the answer and the upstream carry it as `X-Request-Id`.',
  trace_id: 'Trace the request belongs to (W3C Trace Context).',
  from: 'Address of the client.',
  method: 'Method.',
  path: 'Path, up to 512 characters. Never the query.',
  status: 'Status of the answer; 101 for a WebSocket.',
  aborted: '`true` when the client left before the answer was whole.',
  ms: 'Milliseconds from the head of the request to the end of the answer.',
  upstream_ms: 'Milliseconds until the upstream’s answer began.',
  bytes_in: 'Bytes of the body that went to the upstream.',
  bytes_out: 'Bytes of the body that came from the upstream.',
  rule: 'Rule that matched: `routes[0] /files/**`, `authsvc:token` and the like.',
  decision: '`forwarded`, `allowed`, `answered`, `refused`, `would_refuse` or `failed`.',
  reason: 'Why it was refused, or how it ended.',
  identity: 'Who is calling, as `label:id`.',
  client: 'Client id of the integration.',
  grant: 'Id of the grant: all that was done by one sign-in.',
  upstream: 'Upstream it went to, by its name.',
  original: 'Method and path another gateway asked about (forward-auth).',
} as const;

export type AccessField = keyof typeof ACCESS_FIELDS;

/** What privacy may ask to leave out; the rest is needed to make sense of a line. */
export const HIDEABLE_FIELDS = [
  'trace_id',
  'from',
  'path',
  'upstream_ms',
  'bytes_in',
  'bytes_out',
  'rule',
  'reason',
  'identity',
  'client',
  'grant',
  'upstream',
  'original',
] as const satisfies readonly AccessField[];

export const PSEUDONYM_FIELDS = [
  'from',
  'identity',
  'client',
  'grant',
] as const satisfies readonly AccessField[];
