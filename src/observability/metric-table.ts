/**
 * All metrics; the exposition and the table in docs/observability.md are generated from them. Label values are rules,
 * upstreams and constants, never client input: clients cannot create series.
 */
interface MetricFamily {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: readonly string[];
  /** How gauges of several processes are combined. */
  readonly aggregation: 'sum' | 'max' | 'min';
  readonly buckets: readonly number[];
}

/** In seconds. */
const REQUEST_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30] as const;
const STORE_BUCKETS = [
  0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
] as const;

const createFamily = (
  type: MetricFamily['type'],
  help: string,
  labels: readonly string[],
  options: Partial<MetricFamily> = {},
): MetricFamily => ({ type, help, labels, aggregation: 'sum', buckets: [], ...options });

const counter = (help: string, ...labels: string[]): MetricFamily => createFamily('counter', help, labels);
const gauge = (aggregation: MetricFamily['aggregation'], help: string, ...labels: string[]): MetricFamily =>
  createFamily('gauge', help, labels, { aggregation });
const histogram = (buckets: readonly number[], help: string, ...labels: string[]): MetricFamily =>
  createFamily('histogram', help, labels, { buckets });

export const METRICS = {
  gatehouse_build_info: gauge(
    'max',
    'Always 1; the labels are the versions of gatehouse and Node.js.',
    'version',
    'node',
  ),
  gatehouse_workers: gauge('sum', 'Worker processes included in this response.'),
  gatehouse_ready: gauge('min', '1 while /readyz reports ready.'),
  gatehouse_http_requests_total: counter(
    'Completed requests, by matching rule, method and status.',
    'rule',
    'method',
    'code',
  ),
  gatehouse_http_request_duration_seconds: histogram(
    REQUEST_BUCKETS,
    'From the request head to the end of the response; for event streams, until the response head of the upstream. Without WebSockets.',
    'rule',
  ),
  gatehouse_http_requests_in_flight: gauge('sum', 'Active requests, including WebSockets.'),
  gatehouse_auth_decisions_total: counter('Access decisions about requests, and their reasons.', 'decision', 'reason'),
  gatehouse_rate_limited_requests_total: counter(
    'Requests beyond a limit of their route (routes[].rate, limits.routes), by rule and name of the limit.',
    'rule',
    'limit',
  ),
  gatehouse_rate_limit_keys: gauge('sum', 'Callers, addresses and routes that limits of routes count at present.'),
  gatehouse_rate_limit_overflow_total: counter(
    'Requests that were counted together with those of other callers, because too many callers were counted.',
  ),
  gatehouse_connections: gauge('sum', 'Open client connections.'),
  gatehouse_connections_refused_total: counter(
    'Connections that were closed, or not accepted, because of limits.connections.',
  ),
  gatehouse_client_memory_bytes: gauge(
    'sum',
    'Memory that is held for requests of clients without a token, for buffered request bodies and for unread responses.',
  ),
  gatehouse_client_memory_limit_bytes: gauge(
    'sum',
    'Limit of gatehouse_client_memory_bytes: a twelfth of the memory limit of the container.',
  ),
  gatehouse_client_memory_evictions_total: counter(
    'Connections, requests and responses that were aborted because of this limit. The client network or identity that holds the most is first.',
  ),
  gatehouse_tls_handshakes_total: counter(
    'Successful TLS handshakes: `full`, or `resumed` from a previous session.',
    'kind',
  ),
  gatehouse_tls_handshake_failures_total: counter('Failed TLS handshakes.'),
  gatehouse_tokens_issued_total: counter('Access tokens issued, by grant type.', 'grant'),
  gatehouse_refresh_reuse_detected_total: counter('Used refresh tokens that were presented again: a sign of theft.'),
  gatehouse_revocations_total: counter('Revoked grants.'),
  gatehouse_sign_ins_total: counter('Sign-ins on the confirmation page.', 'outcome'),
  gatehouse_revocation_lag_seconds: gauge(
    'max',
    'Time since this process last knew all revocations; 0 with the embedded store.',
  ),
  gatehouse_store_up: gauge('min', '1 when the store can be read and written.'),
  gatehouse_store_operation_duration_seconds: histogram(
    STORE_BUCKETS,
    'Duration of store operations, including failed ones.',
    'op',
  ),
  gatehouse_store_errors_total: counter('Failed store operations.', 'op'),
  gatehouse_store_records_refused_total: counter(
    'Records of the store that failed authentication and were treated as absent.',
    'kind',
    'reason',
  ),
  gatehouse_store_revocations_restored_total: counter(
    'Revocations that were missing from Redis and were restored from memory.',
  ),
  gatehouse_tls_cert_not_after_seconds: gauge(
    'min',
    'Expiry of certificates as Unix time: of the listener, and of approved issuers.',
    'cert',
  ),
  gatehouse_crl_next_update_seconds: gauge(
    'min',
    'Next update of the revocation list of an issuer, as Unix time.',
    'issuer',
  ),
  gatehouse_crl_age_seconds: gauge('max', 'Age of the revocation list of an issuer, since its thisUpdate.', 'issuer'),
  gatehouse_crl_fetches_total: counter(
    'Attempts to fetch a revocation list: `success` or `failure`.',
    'url',
    'outcome',
  ),
  gatehouse_crl_fetch_success_timestamp_seconds: gauge(
    'min',
    'When a revocation list was last fetched, as Unix time; 0 if never.',
    'url',
  ),
  gatehouse_ocsp_responses_total: counter(
    'Responses of OCSP responders: `good`, `revoked`, `unknown` or `failure` (including no response).',
    'issuer',
    'outcome',
  ),
  gatehouse_issuer_keys_age_seconds: gauge(
    'max',
    'Time since the keys of a trusted issuer were fetched. Absent before the first time. `client <id>`: the keys of an integration.',
    'issuer',
  ),
  gatehouse_issuer_key_fetches_total: counter(
    'Attempts to fetch the keys of a trusted issuer or an integration: `success` or `failure`.',
    'issuer',
    'outcome',
  ),
  gatehouse_issuer_keys_fetch_success_timestamp_seconds: gauge(
    'min',
    'When the keys of a trusted issuer or an integration were last fetched, as Unix time; 0 if never.',
    'issuer',
  ),
  gatehouse_issuer_keys_usable: gauge(
    'min',
    '1 while the keys of a trusted issuer or an integration are known; 0 before the first fetch, and when the last ones are too old (`maxStaleness`): its tokens get 503.',
    'issuer',
  ),
  gatehouse_issuer_introspection_usable: gauge(
    'min',
    '1 while the introspection endpoint of a trusted issuer responds; 0 since a request to it failed: opaque tokens whose state is not cached get 503.',
    'issuer',
  ),
  gatehouse_config_last_reload_successful: gauge(
    'min',
    '1 after the start and after an applied reload; 0 while the configuration on disk is rejected and the previous one stays in use.',
  ),
  gatehouse_config_reload_success_timestamp_seconds: gauge(
    'min',
    'When the current configuration was applied, as Unix time.',
  ),
  gatehouse_config_reload_failed_total: counter('Rejected configurations.'),
  gatehouse_upstream_requests_total: counter('Upstream responses, by status class.', 'upstream', 'code'),
  gatehouse_upstream_request_duration_seconds: histogram(
    REQUEST_BUCKETS,
    'From forwarding a request to the response head of the upstream.',
    'upstream',
  ),
  gatehouse_upstream_errors_total: counter(
    'Requests without a complete response from the upstream.',
    'upstream',
    'kind',
  ),
  gatehouse_upstream_pending: gauge(
    'sum',
    'Active requests to an upstream, including event streams and WebSockets.',
    'upstream',
  ),
  gatehouse_upstream_streams: gauge('sum', 'Open event streams and WebSockets of an upstream.', 'upstream'),
  gatehouse_upstream_ejected: gauge('max', 'Ejected targets of an upstream.', 'upstream'),
  gatehouse_upstream_targets: gauge('max', 'Targets of an upstream.', 'upstream'),
  gatehouse_event_loop_lag_seconds: gauge('max', 'Longest recent delay of the event loop.'),
  gatehouse_log_lines_dropped_total: counter('Dropped log lines.'),
  gatehouse_audit_events_total: counter('Audit events.', 'event'),
  gatehouse_audit_dropped_total: counter('Audit events dropped because the sink did not accept them.'),
  gatehouse_audit_failures_total: counter('Failed deliveries to the audit sink.'),
  gatehouse_audit_pending: gauge('sum', 'Audit events waiting for delivery.'),
  gatehouse_audit_blocked: gauge('max', '1 while the audit sink does not accept events.'),
  gatehouse_spans_dropped_total: counter('Spans dropped because the collector did not accept them.'),
  process_cpu_seconds_total: counter('CPU time of all processes.'),
  process_resident_memory_bytes: gauge('sum', 'Resident memory of all processes.'),
  process_start_time_seconds: gauge('min', 'Start of the first process, as Unix time.'),
  process_open_fds: gauge('sum', 'Open file descriptors.'),
  nodejs_heap_size_used_bytes: gauge('sum', 'JavaScript heap in use.'),
  nodejs_heap_size_total_bytes: gauge('sum', 'JavaScript heap reserved.'),
  nodejs_gc_seconds_total: counter('Time spent in garbage collection.'),
} as const satisfies Record<string, MetricFamily>;

export type MetricName = keyof typeof METRICS;
export const METRIC_NAMES = Object.keys(METRICS) as readonly MetricName[];
