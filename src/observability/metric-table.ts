/** Upper bounds of the buckets, in seconds. */
const BUCKETS = {
  request: [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  store: [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1],
} as const;

/**
 * All metrics; the exposition and the table in docs/observability.md are generated from them. Each key is the type, the name and the
 * labels. A gauge has the way in which those of several processes are combined, a histogram has its buckets. Label values are rules,
 * upstreams and constants, never client input: clients cannot create series.
 */
const DEFINITIONS = {
  'gauge/max gatehouse_build_info version node': 'Always 1; the labels are the versions of gatehouse and Node.js.',
  'gauge/sum gatehouse_workers': 'Worker processes included in this response.',
  'gauge/min gatehouse_ready': '1 while /readyz reports ready.',
  'counter gatehouse_http_requests_total rule method code': 'Completed requests, by matching rule, method and status.',
  'histogram/request gatehouse_http_request_duration_seconds rule':
    'From the request head to the end of the response; for event streams, until the response head of the upstream. Without WebSockets.',
  'gauge/sum gatehouse_http_requests_in_flight': 'Active requests, including WebSockets.',
  'counter gatehouse_auth_decisions_total decision reason': 'Access decisions about requests, and their reasons.',
  'counter gatehouse_rate_limited_requests_total rule limit':
    'Requests beyond a limit of their route (routes[].rate, limits.routes), by rule and name of the limit.',
  'gauge/sum gatehouse_rate_limit_keys': 'Callers, addresses and routes that limits of routes count at present.',
  'counter gatehouse_rate_limit_overflow_total':
    'Requests that were counted together with those of other callers, because too many callers were counted.',
  'gauge/sum gatehouse_connections': 'Open client connections.',
  'counter gatehouse_connections_refused_total':
    'Connections that were closed, or not accepted, because of limits.connections.',
  'gauge/sum gatehouse_client_memory_bytes':
    'Memory that is held for requests of clients without a token, for buffered request bodies and for unread responses.',
  'gauge/sum gatehouse_client_memory_limit_bytes':
    'Limit of gatehouse_client_memory_bytes: a twelfth of the memory limit of the container.',
  'counter gatehouse_client_memory_evictions_total':
    'Connections, requests and responses that were aborted because of this limit. The client network or identity that holds the most is first.',
  'counter gatehouse_tls_handshakes_total kind':
    'Successful TLS handshakes: `full`, or `resumed` from a previous session.',
  'counter gatehouse_tls_handshake_failures_total': 'Failed TLS handshakes.',
  'counter gatehouse_tokens_issued_total grant': 'Access tokens issued, by grant type.',
  'counter gatehouse_refresh_reuse_detected_total': 'Used refresh tokens that were presented again: a sign of theft.',
  'counter gatehouse_revocations_total': 'Revoked grants.',
  'counter gatehouse_sign_ins_total outcome': 'Sign-ins on the confirmation page.',
  'gauge/max gatehouse_revocation_lag_seconds':
    'Time since this process last knew all revocations; 0 with the embedded store.',
  'gauge/min gatehouse_store_up': '1 when the store can be read and written.',
  'histogram/store gatehouse_store_operation_duration_seconds op':
    'Duration of store operations, including failed ones.',
  'counter gatehouse_store_errors_total op': 'Failed store operations.',
  'counter gatehouse_store_records_refused_total kind reason':
    'Records of the store that failed authentication and were treated as absent.',
  'counter gatehouse_store_revocations_restored_total':
    'Revocations that were missing from Redis and were restored from memory.',
  'gauge/min gatehouse_tls_cert_not_after_seconds cert':
    'Expiry of certificates as Unix time: of the listener, and of approved issuers.',
  'gauge/min gatehouse_crl_next_update_seconds issuer':
    'Next update of the revocation list of an issuer, as Unix time.',
  'gauge/max gatehouse_crl_age_seconds issuer': 'Age of the revocation list of an issuer, since its thisUpdate.',
  'counter gatehouse_crl_fetches_total url outcome': 'Attempts to fetch a revocation list: `success` or `failure`.',
  'gauge/min gatehouse_crl_fetch_success_timestamp_seconds url':
    'When a revocation list was last fetched, as Unix time; 0 if never.',
  'counter gatehouse_ocsp_responses_total issuer outcome':
    'Responses of OCSP responders: `good`, `revoked`, `unknown` or `failure` (including no response).',
  'gauge/max gatehouse_issuer_keys_age_seconds issuer':
    'Time since the keys of a trusted issuer were fetched. Absent before the first time. `client <id>`: the keys of an integration.',
  'counter gatehouse_issuer_key_fetches_total issuer outcome':
    'Attempts to fetch the keys of a trusted issuer or an integration: `success` or `failure`.',
  'gauge/min gatehouse_issuer_keys_fetch_success_timestamp_seconds issuer':
    'When the keys of a trusted issuer or an integration were last fetched, as Unix time; 0 if never.',
  'gauge/min gatehouse_issuer_keys_usable issuer':
    '1 while the keys of a trusted issuer or an integration are known; 0 before the first fetch, and when the last ones are too old (`maxStaleness`): its tokens get 503.',
  'gauge/min gatehouse_issuer_introspection_usable issuer':
    '1 while the introspection endpoint of a trusted issuer responds; 0 since a request to it failed: opaque tokens whose state is not cached get 503.',
  'gauge/min gatehouse_config_last_reload_successful':
    '1 after the start and after an applied reload; 0 while the configuration on disk is rejected and the previous one stays in use.',
  'gauge/min gatehouse_config_reload_success_timestamp_seconds':
    'When the current configuration was applied, as Unix time.',
  'counter gatehouse_config_reload_failed_total': 'Rejected configurations.',
  'counter gatehouse_upstream_requests_total upstream code': 'Upstream responses, by status class.',
  'histogram/request gatehouse_upstream_request_duration_seconds upstream':
    'From forwarding a request to the response head of the upstream.',
  'counter gatehouse_upstream_errors_total upstream kind': 'Requests without a complete response from the upstream.',
  'counter gatehouse_grpc_results_total upstream code':
    'Results of gRPC calls (`grpc-status`, from 0 to 16), including those of gatehouse. A call without a result is not counted.',
  'gauge/sum gatehouse_upstream_pending upstream':
    'Active requests to an upstream, including event streams and WebSockets.',
  'gauge/sum gatehouse_upstream_streams upstream': 'Open event streams and WebSockets of an upstream.',
  'gauge/max gatehouse_upstream_ejected upstream': 'Ejected targets of an upstream.',
  'gauge/max gatehouse_upstream_targets upstream': 'Targets of an upstream.',
  'gauge/max gatehouse_event_loop_lag_seconds': 'Longest recent delay of the event loop.',
  'counter gatehouse_log_lines_dropped_total': 'Dropped log lines.',
  'counter gatehouse_audit_events_total event': 'Audit events.',
  'counter gatehouse_audit_dropped_total': 'Audit events dropped because the sink did not accept them.',
  'counter gatehouse_audit_failures_total': 'Failed deliveries to the audit sink.',
  'gauge/sum gatehouse_audit_pending': 'Audit events waiting for delivery.',
  'gauge/max gatehouse_audit_blocked': '1 while the audit sink does not accept events.',
  'counter gatehouse_spans_dropped_total': 'Spans dropped because the collector did not accept them.',
  'counter process_cpu_seconds_total': 'CPU time of all processes.',
  'gauge/sum process_resident_memory_bytes': 'Resident memory of all processes.',
  'gauge/min process_start_time_seconds': 'Start of the first process, as Unix time.',
  'gauge/sum process_open_fds': 'Open file descriptors.',
  'gauge/sum nodejs_heap_size_used_bytes': 'JavaScript heap in use.',
  'gauge/sum nodejs_heap_size_total_bytes': 'JavaScript heap reserved.',
  'counter nodejs_gc_seconds_total': 'Time spent in garbage collection.',
} as const satisfies Record<`${Kind} ${string}`, string>;

type Aggregation = 'sum' | 'max' | 'min';
type Kind = 'counter' | `gauge/${Aggregation}` | `histogram/${keyof typeof BUCKETS}`;
type NameIn<Key> = Key extends `${string} ${infer Rest}`
  ? Rest extends `${infer Name} ${string}`
    ? Name
    : Rest
  : never;

interface MetricFamily {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: readonly string[];
  /** How gauges of several processes are combined. */
  readonly aggregation: Aggregation;
  readonly buckets: readonly number[];
}

export type MetricName = NameIn<keyof typeof DEFINITIONS>;

export const METRICS = Object.fromEntries(
  Object.entries(DEFINITIONS).map(([key, help]) => {
    const [kind = '', name, ...labels] = key.split(' ');
    const [type, detail] = kind.split('/');
    const aggregation = type === 'gauge' ? detail : 'sum';
    const buckets = type === 'histogram' ? BUCKETS[detail as keyof typeof BUCKETS] : [];
    return [name, { type, help, labels, aggregation, buckets }];
  }),
) as Readonly<Record<MetricName, MetricFamily>>;

export const METRIC_NAMES = Object.keys(METRICS) as readonly MetricName[];
