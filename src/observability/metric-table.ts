/**
 * Every metric there is: the single source of what is scraped and of the table in docs/observability.md.
 *
 * Labels hold rules, upstreams and words of ours, never a path, a name or an address that somebody sent: a stranger
 * cannot make a new series.
 */
export interface Family {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: readonly string[];
  /** How the gauges of several processes become one. */
  readonly join: 'sum' | 'max' | 'min';
  readonly buckets: readonly number[];
}

const NO_BUCKETS: readonly number[] = [];
/** Seconds. From an answer out of memory to one that keeps a person waiting. */
const REQUEST_BUCKETS = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
] as const;
const STORE_BUCKETS = [
  0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
] as const;

const counter = (help: string, ...labels: string[]): Family => ({
  type: 'counter',
  help,
  labels,
  join: 'sum',
  buckets: NO_BUCKETS,
});
const gauge = (join: Family['join'], help: string, ...labels: string[]): Family => ({
  type: 'gauge',
  help,
  labels,
  join,
  buckets: NO_BUCKETS,
});
const histogram = (buckets: readonly number[], help: string, ...labels: string[]): Family => ({
  type: 'histogram',
  help,
  labels,
  join: 'sum',
  buckets,
});

export const METRICS = {
  gatehouse_build_info: gauge('max', 'Always 1; the labels tell what is running.', 'version', 'node'),
  gatehouse_workers: gauge('sum', 'Processes that serve and whose figures are in this answer.'),
  gatehouse_ready: gauge('min', '1 while /readyz says ready.'),
  gatehouse_http_requests_total: counter(
    'Requests that have ended, by the rule that matched, the method and the status.',
    'rule',
    'method',
    'code',
  ),
  gatehouse_http_request_duration_seconds: histogram(
    REQUEST_BUCKETS,
    'From the head of a request to the end of its answer. WebSockets are not in it.',
    'rule',
  ),
  gatehouse_http_requests_in_flight: gauge('sum', 'Requests being worked on, WebSockets included.'),
  gatehouse_auth_decisions_total: counter('What was decided about requests, and why.', 'decision', 'reason'),
  gatehouse_lane_requests_total: counter(
    'Requests by the lane they took, and why a connection was given to the full one (`other`: it never was in the fast one, as with HTTP/2).',
    'lane',
    'reason',
  ),
  gatehouse_connections: gauge('sum', 'Open connections of clients.'),
  gatehouse_connections_refused_total: counter('Connections closed for being beyond limits.connections.'),
  gatehouse_tls_handshakes_total: counter(
    'TLS handshakes that ended well: `full`, or `resumed` from a session of before.',
    'kind',
  ),
  gatehouse_tls_handshake_failures_total: counter('TLS handshakes that came to nothing.'),
  gatehouse_tokens_issued_total: counter('Access tokens handed out, by the kind of grant.', 'grant'),
  gatehouse_refresh_reuse_detected_total: counter('Spent refresh tokens that came back: a sign of theft.'),
  gatehouse_revocations_total: counter('Grants ended before their time.'),
  gatehouse_sign_ins_total: counter('Sign-ins on the confirmation page.', 'outcome'),
  gatehouse_revocation_lag_seconds: gauge(
    'max',
    'How long ago this process was last sure to know every revocation; 0 with the embedded store.',
  ),
  gatehouse_store_up: gauge('min', '1 when the store can be read and written.'),
  gatehouse_store_operation_duration_seconds: histogram(
    STORE_BUCKETS,
    'How long the store took, whatever came of it.',
    'op',
  ),
  gatehouse_store_errors_total: counter('Operations the store could not do.', 'op'),
  gatehouse_store_records_refused_total: counter(
    'Records of the store that failed authentication and were treated as absent.',
    'kind',
    'reason',
  ),
  gatehouse_store_records_unauthenticated_total: counter(
    'Records without a MAC that were accepted (store.unauthenticatedRecords).',
    'kind',
  ),
  gatehouse_store_revocations_restored_total: counter(
    'Revocations that were missing from Redis and were put back from memory.',
  ),
  gatehouse_tls_cert_not_after_seconds: gauge(
    'min',
    'When a certificate ends, as a Unix time: of the listener, and of approved issuers.',
    'cert',
  ),
  gatehouse_crl_next_update_seconds: gauge(
    'min',
    'When the revocation list in force of an issuer runs out, as a Unix time.',
    'issuer',
  ),
  gatehouse_config_reload_success_timestamp_seconds: gauge(
    'min',
    'When the configuration in force was taken, as a Unix time.',
  ),
  gatehouse_config_reload_failed_total: counter('Configurations that could not be taken.'),
  gatehouse_upstream_requests_total: counter(
    'Answers of upstreams, by the class of their status.',
    'upstream',
    'code',
  ),
  gatehouse_upstream_request_duration_seconds: histogram(
    REQUEST_BUCKETS,
    'From handing a request over to the head of the upstream’s answer.',
    'upstream',
  ),
  gatehouse_upstream_errors_total: counter(
    'Requests an upstream did not answer properly.',
    'upstream',
    'kind',
  ),
  gatehouse_upstream_pending: gauge('sum', 'What an upstream was given and has not ended.', 'upstream'),
  gatehouse_upstream_ejected: gauge('max', 'Targets of an upstream that are left out.', 'upstream'),
  gatehouse_upstream_targets: gauge('max', 'Targets of an upstream.', 'upstream'),
  gatehouse_event_loop_lag_seconds: gauge('max', 'The longest the event loop was held up lately.'),
  gatehouse_log_lines_dropped_total: counter('Log lines nobody took in time.'),
  gatehouse_audit_events_total: counter('What went to the audit log.', 'event'),
  gatehouse_audit_dropped_total: counter('Audit events lost since their sink took none.'),
  gatehouse_audit_failures_total: counter('Attempts to hand audit events over that failed.'),
  gatehouse_audit_pending: gauge('sum', 'Audit events that wait to be handed over.'),
  gatehouse_audit_blocked: gauge('max', '1 while the audit sink takes nothing.'),
  gatehouse_spans_dropped_total: counter('Spans lost since the collector took none.'),
  process_cpu_seconds_total: counter('Processor time used, by all processes.'),
  process_resident_memory_bytes: gauge('sum', 'Memory held, by all processes.'),
  process_start_time_seconds: gauge('min', 'When the first process started, as a Unix time.'),
  process_open_fds: gauge('sum', 'Open file descriptors.'),
  nodejs_heap_size_used_bytes: gauge('sum', 'JavaScript heap in use.'),
  nodejs_heap_size_total_bytes: gauge('sum', 'JavaScript heap set aside.'),
  nodejs_gc_seconds_total: counter('Time spent collecting garbage.'),
} as const satisfies Record<string, Family>;

export type MetricName = keyof typeof METRICS;
export const METRIC_NAMES = Object.keys(METRICS) as readonly MetricName[];
export const familyOf = (name: MetricName): Family => METRICS[name];
