import type { Metrics } from '../observability/metrics.ts';
import type { Store } from '../ports/store.ts';
import type { HandOver } from '../proxy/fast/grammar.ts';
import type { Upstreams } from '../proxy/upstreams.ts';
import type { CertificateFiles } from '../tls/certificate-files.ts';
import type { PublicListener } from '../tls/listener.ts';

export interface Measured {
  readonly files: () => CertificateFiles;
  readonly upstreams: Upstreams;
  readonly listener: Pick<PublicListener, 'connections'>;
  readonly store: Store;
  readonly now: () => number;
}

/** What can be read off a running gateway when somebody asks. Returns what to call when another configuration is in force. */
export function gatewayMetrics(
  metrics: Metrics,
  { files, upstreams, listener, store, now }: Measured,
): () => void {
  let takenAt = now();
  metrics.collect((set) => {
    const { server, issuers, crls } = files();
    set('gatehouse_workers', 1);
    set('gatehouse_connections', listener.connections());
    set('gatehouse_revocation_lag_seconds', store.revocationLag?.() ?? 0);
    set('gatehouse_config_reload_success_timestamp_seconds', takenAt);
    set('gatehouse_tls_cert_not_after_seconds', server?.notAfter, 'listener');
    for (const [name, notAfter] of lastEnds(issuers.map(({ name, facts }) => [name, facts.notAfter])))
      set('gatehouse_tls_cert_not_after_seconds', notAfter, `issuer:${name}`);
    for (const { issuer, nextUpdate } of crls.inForce(now()))
      set('gatehouse_crl_next_update_seconds', nextUpdate, issuer);
    for (const { name, pending, targets, ejected } of upstreams.states()) {
      set('gatehouse_upstream_pending', pending, name);
      set('gatehouse_upstream_targets', targets, name);
      set('gatehouse_upstream_ejected', ejected, name);
    }
  });
  return () => {
    takenAt = now();
  };
}

/** A CA that changes its key has two certificates under one name: the one that lasts longer counts. */
const lastEnds = (ends: readonly (readonly [name: string, end: number])[]): Map<string, number> => {
  const latest = new Map<string, number>();
  for (const [name, end] of ends) latest.set(name, Math.max(end, latest.get(name) ?? 0));
  return latest;
};

/** Counts connections that came to nothing. */
export function turnedAway(metrics: Metrics): (by: 'handshake' | 'connection') => void {
  const handshakes = metrics.counter('gatehouse_tls_handshake_failures_total');
  const connections = metrics.counter('gatehouse_connections_refused_total');
  return (by) => {
    (by === 'handshake' ? handshakes : connections).value += 1;
  };
}

/** Counts connections whose handshake ended well. */
export function secured(metrics: Metrics): (resumed: boolean) => void {
  const full = metrics.counter('gatehouse_tls_handshakes_total', 'full');
  const again = metrics.counter('gatehouse_tls_handshakes_total', 'resumed');
  return (resumed) => {
    (resumed ? again : full).value += 1;
  };
}

export interface LaneCounts {
  fast(): void;
  full(reason: HandOver | 'other' | undefined): void;
}

/** Counts requests by the lane they took; `other`: the fast lane never had the connection, as with HTTP/2. */
export function laneCounts(metrics: Metrics): LaneCounts {
  const fast = metrics.counter('gatehouse_lane_requests_total', 'fast', 'ordinary');
  const full = new Map<string, { value: number }>();
  return {
    fast() {
      fast.value += 1;
    },
    full(reason = 'other') {
      let counter = full.get(reason);
      if (counter === undefined)
        full.set(reason, (counter = metrics.counter('gatehouse_lane_requests_total', 'full', reason)));
      counter.value += 1;
    },
  };
}
