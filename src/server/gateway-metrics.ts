import { clientAccounts } from '../listener/client-accounts.ts';
import type { PublicListener } from '../listener/listener.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { CertificateFiles } from '../x509/certificate-files.ts';
import type { ProcessState } from './process-state.ts';
import type { ReloadState } from './reload-state.ts';

/** Registers gauges that are read on each scrape. */
export function registerGatewayMetrics(
  { metrics, upstreams, crlFetchers, issuerKeys, quotas, store, now }: ProcessState,
  reloads: ReloadState,
  listener: PublicListener,
  getFiles: () => CertificateFiles,
): void {
  const overflow = metrics.counter('gatehouse_rate_limit_overflow_total');
  const evictions = metrics.counter('gatehouse_client_memory_evictions_total');
  metrics.addCollector((set) => {
    const { server, crls, issuers } = getFiles();
    set('gatehouse_workers', 1);
    set('gatehouse_rate_limit_keys', quotas.size);
    overflow.value = quotas.overflowed;
    set('gatehouse_connections', listener.countConnections());
    set('gatehouse_client_memory_bytes', clientAccounts.bytes);
    set('gatehouse_client_memory_limit_bytes', clientAccounts.limit);
    evictions.value = clientAccounts.evictions;
    set('gatehouse_revocation_lag_seconds', store.revocationLag?.() ?? 0);
    set('gatehouse_config_reload_success_timestamp_seconds', reloads.appliedAt);
    const { isLastSuccessful } = reloads;
    set(
      'gatehouse_config_last_reload_successful',
      isLastSuccessful === undefined ? undefined : Number(isLastSuccessful),
    );
    set('gatehouse_tls_cert_not_after_seconds', server?.notAfter, 'listener');
    for (const [name, notAfter] of getLatestExpiries(issuers))
      set('gatehouse_tls_cert_not_after_seconds', notAfter, `issuer:${name}`);
    for (const { issuer, thisUpdate, nextUpdate } of crls.getCurrent(now())) {
      set('gatehouse_crl_next_update_seconds', nextUpdate, issuer);
      set('gatehouse_crl_age_seconds', now() - thisUpdate, issuer);
    }
    for (const { url, fetchedAt } of crlFetchers.list())
      set('gatehouse_crl_fetch_success_timestamp_seconds', fetchedAt ?? 0, url);
    for (const { name, state, fetchedAt } of issuerKeys.listStatus()) {
      set('gatehouse_issuer_keys_usable', state === 'available' || state === 'failing' ? 1 : 0, name);
      set('gatehouse_issuer_keys_age_seconds', fetchedAt === undefined ? undefined : now() - fetchedAt, name);
      set('gatehouse_issuer_keys_fetch_success_timestamp_seconds', fetchedAt ?? 0, name);
    }
    for (const { name, failure } of issuerKeys.listIntrospection())
      set('gatehouse_issuer_introspection_usable', failure === undefined ? 1 : 0, name);
    for (const { name, pending, streams, targets, ejected } of upstreams.getStatus()) {
      set('gatehouse_upstream_pending', pending, name);
      set('gatehouse_upstream_streams', streams, name);
      set('gatehouse_upstream_targets', targets, name);
      set('gatehouse_upstream_ejected', ejected, name);
    }
  });
}

/** A CA that changes its key has two certificates with one name: the later expiry is reported. */
function getLatestExpiries(issuers: CertificateFiles['issuers']): Map<string, number> {
  const latest = new Map<string, number>();
  for (const { name, facts } of issuers) latest.set(name, Math.max(facts.notAfter, latest.get(name) ?? 0));
  return latest;
}

/** Counts handshakes, and rejected connections. */
export function createListenerCounters(metrics: Metrics) {
  const full = metrics.counter('gatehouse_tls_handshakes_total', 'full');
  const resumptions = metrics.counter('gatehouse_tls_handshakes_total', 'resumed');
  const handshakes = metrics.counter('gatehouse_tls_handshake_failures_total');
  const connections = metrics.counter('gatehouse_connections_refused_total');
  return {
    onHandshake: (resumed: boolean): void => void ((resumed ? resumptions : full).value += 1),
    onRejected: (stage: 'handshake' | 'connection'): void =>
      void ((stage === 'handshake' ? handshakes : connections).value += 1),
  };
}
