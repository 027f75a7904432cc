import { expect, test } from 'vitest';
import { templateWith } from './helm.ts';
import { valuesFile } from './manifests.ts';

interface Contradiction {
  readonly name: string;
  /** A values file of the matrix, and the changes to it. */
  readonly from: string;
  readonly change: Readonly<Record<string, unknown>>;
  readonly message: string;
}

const redis = { type: 'redis', redis: { url: 'redis://redis.shop.svc:6379/0' } };

const CONTRADICTIONS: readonly Contradiction[] = [
  {
    name: 'no keys',
    from: 'embedded',
    change: { signing: { existingSecret: '' } },
    message: 'signing.existingSecret: is missing',
  },
  {
    name: 'two pods and the embedded store',
    from: 'embedded',
    change: { replicaCount: 2 },
    message: 'store.type: embedded supports only one pod',
  },
  {
    name: 'autoscaling and the embedded store',
    from: 'embedded',
    change: { autoscaling: { enabled: true } },
    message: 'set store.type: redis',
  },
  {
    name: 'sidecars and the embedded store',
    from: 'sidecar-embedded',
    change: { sidecar: { singleReplica: false } },
    message: 'gives each replica of your application its own store',
  },
  {
    name: 'a certificate from two places',
    from: 'cert-manager',
    change: { tls: { existingSecret: 'mine' } },
    message: 'tls: existingSecret and certManager.enabled contradict',
  },
  {
    name: 'a certificate, and TLS ended in front',
    from: 'embedded',
    change: { tls: { terminatedInFront: true } },
    message: 'tls.terminatedInFront: contradicts',
  },
  {
    name: 'TLS settings of a listener without TLS',
    from: 'ingress',
    change: { config: { listen: { tls: { askCertificate: 'always' } } } },
    message: 'config.listen.tls: has no effect',
  },
  {
    name: 'no certificate',
    from: 'embedded',
    change: { tls: { existingSecret: '' } },
    message: 'tls: no certificate is configured',
  },
  {
    name: 'cert-manager without an Issuer',
    from: 'cert-manager',
    change: { tls: { certManager: { issuerRef: { name: '' } } } },
    message: 'tls.certManager.issuerRef.name: is missing',
  },
  {
    name: 'two configurations',
    from: 'embedded',
    change: { existingConfigMap: 'mine' },
    message: 'config: has no effect with existingConfigMap',
  },
  {
    name: 'no address for clients',
    from: 'existing-configmap',
    change: { existingConfigMap: '' },
    message: 'config.publicUrl: is missing',
  },
  {
    name: 'client CAs from two places',
    from: 'embedded',
    change: { clientCA: { existingConfigMap: 'more' } },
    message: 'clientCA: existingSecret and existingConfigMap contradict',
  },
  {
    name: 'Redis without an address',
    from: 'embedded',
    change: { store: { type: 'redis' } },
    message: 'store.redis.url: is missing',
  },
  {
    name: 'Valkey of the chart beside a Redis',
    from: 'redis',
    change: { valkey: { enabled: true } },
    message: 'valkey.enabled: contradicts store.redis',
  },
  {
    name: 'two addresses of Redis',
    from: 'redis',
    change: { store: { redis: { urlKey: 'url', existingSecret: 'r' } } },
    message: 'store.redis: url and urlKey contradict',
  },
  {
    name: 'a key without its Secret',
    from: 'embedded',
    change: { store: { type: 'redis', redis: { urlKey: 'url' } } },
    message: 'store.redis.urlKey: requires store.redis.existingSecret',
  },
  {
    name: 'a password in the URL',
    from: 'embedded',
    change: { store: { type: 'redis', redis: { url: 'redis://me:hunter2@redis.shop.svc:6379' } } },
    message: 'store.redis.url: contains a password',
  },
  {
    name: 'a sidecar without a podSelector',
    from: 'redis',
    change: { mode: 'sidecar', replicaCount: 1 },
    message: 'sidecar.podSelector: is missing',
  },
  {
    name: 'replicas of a sidecar',
    from: 'sidecar',
    change: { replicaCount: 3 },
    message: 'mode: a sidecar runs in the pods of your application',
  },
  {
    name: 'a ServiceMonitor of a sidecar',
    from: 'sidecar',
    change: { metrics: { serviceMonitor: { enabled: true } } },
    message: 'for a sidecar, use metrics.podMonitor',
  },
  {
    name: 'the port of the application is taken',
    from: 'sidecar',
    change: { sidecar: { upstreamPort: 8443 } },
    message: 'sidecar.upstreamPort: is also a port of gatehouse',
  },
  {
    name: 'one port for both listeners',
    from: 'embedded',
    change: { ports: { admin: 8443 } },
    message: 'ports: https and admin are the same',
  },
  {
    name: 'an Ingress with client certificates',
    from: 'ingress',
    change: { ingress: { clientCertificates: '' } },
    message: 'ingress: terminates TLS, so client certificates do not reach gatehouse',
  },
  {
    name: 'an HTTPRoute with client certificates',
    from: 'gateway-api-http',
    change: { clientCA: { existingSecret: 'staff-ca' } },
    message: 'gatewayApi.httpRoute: terminates TLS, so client certificates do not reach gatehouse',
  },
  {
    name: 'a certificate header without trusted sources',
    from: 'ingress',
    change: { config: { certificates: { forwardedFrom: [] } } },
    message: 'ingress.clientCertificates: header requires config.certificates.forwardedFrom',
  },
  {
    name: 'a certificate header without its name',
    from: 'embedded',
    change: {
      config: { certificates: { forwardedFrom: ['10.0.0.0/8'] } },
      networkPolicy: { from: [{ podSelector: { matchLabels: { app: 'proxy' } } }] },
    },
    message: 'config.certificates.forwardedHeader: is missing',
  },
  {
    name: 'an Ingress without a host',
    from: 'ingress',
    change: { ingress: { hosts: [] } },
    message: 'ingress.hosts: is empty',
  },
  {
    name: 'a route without a Gateway',
    from: 'gateway-api-http',
    change: { gatewayApi: { httpRoute: { parentRefs: [] } } },
    message: 'gatewayApi.httpRoute.parentRefs: is empty',
  },
  {
    name: 'TLS passed through to plain HTTP',
    from: 'gateway-api-http',
    change: { gatewayApi: { tlsRoute: { enabled: true, parentRefs: [{ name: 'edge' }] } } },
    message: 'gatewayApi.tlsRoute: passes TLS through, but',
  },
  {
    name: 'too little time to end',
    from: 'embedded',
    change: { lifecycle: { drainSeconds: 60 } },
    message:
      'lifecycle.terminationGracePeriodSeconds: is too short; with preStopSleepSeconds and drainSeconds it must be at least 70',
  },
  {
    name: 'metrics without a source that may read them',
    from: 'monitoring',
    change: { networkPolicy: { adminFrom: [] } },
    message: 'networkPolicy.adminFrom: is empty, so Prometheus could not reach the metrics',
  },
  {
    name: 'a header that every pod could write',
    from: 'ingress',
    change: { networkPolicy: { from: [] } },
    message: 'networkPolicy.from: is empty, so any client at an address in config.certificates.forwardedFrom',
  },
  {
    name: 'TLS passed by the Ingress to plain HTTP',
    from: 'ingress',
    change: { ingress: { clientCertificates: 'passthrough' } },
    message: 'ingress.clientCertificates: passthrough requires TLS in gatehouse',
  },
  {
    name: 'Redis that would not be used',
    from: 'redis',
    change: { store: { type: 'embedded' }, replicaCount: 1 },
    message: 'store.redis: has no effect, because store.type is embedded',
  },
  {
    name: 'TLS to Redis that would not be spoken',
    from: 'redis',
    change: { store: { redis: { tls: { existingSecret: 'redis-tls' } } } },
    message: 'store.redis.tls: has no effect, because store.redis.url does not use TLS',
  },
  {
    name: 'a client certificate for Redis without its key',
    from: 'redis-secret',
    change: { store: { redis: { tls: { keyKey: '' } } } },
    message: 'store.redis.tls: set both certificateKey and keyKey',
  },
  {
    name: 'a password in a URL of the configuration',
    from: 'embedded',
    change: { config: { upstreams: { default: { url: 'http://me:hunter2@orders.shop.svc:8080' } } } },
    message: 'config: contains a URL with a password',
  },
  {
    name: 'cert-manager without a name for the certificate',
    from: 'cert-manager',
    change: { config: { publicUrl: 'https://[2001:db8::1]:8443' } },
    message: 'tls.certManager.dnsNames: is missing',
  },
  {
    name: 'a TLSRoute without a name',
    from: 'gateway-api-passthrough',
    change: { config: { publicUrl: 'https://192.0.2.7' } },
    message: 'gatewayApi.tlsRoute.hostnames: is missing',
  },
  {
    name: 'fewer pods at most than at least',
    from: 'autoscaling',
    change: { autoscaling: { minReplicas: 20 } },
    message: 'autoscaling: minReplicas is greater than maxReplicas',
  },
  {
    name: 'autoscaling by nothing',
    from: 'autoscaling',
    change: {
      autoscaling: { targetCPUUtilizationPercentage: null, targetMemoryUtilizationPercentage: null },
    },
    message: 'autoscaling: has no target',
  },
  {
    name: 'a node port of a Service that has none',
    from: 'embedded',
    change: { service: { nodePort: 30_443 } },
    message: 'service: nodePort and externalTrafficPolicy require the type',
  },
  {
    name: 'a load balancer that is none',
    from: 'load-balancer',
    change: { service: { type: 'NodePort' } },
    message: 'service: loadBalancerClass and loadBalancerSourceRanges require the type',
  },
  {
    name: 'a name that no Service may have',
    from: 'embedded',
    change: { fullnameOverride: 'front.door' },
    message: 'fullnameOverride: is required; "front.door" is not a valid name of a Service',
  },
  {
    name: 'a cluster issuer with two configurations',
    from: 'kubernetes-issuer',
    change: {
      config: { trustedIssuers: { cluster: { issuer: 'https://id.example.test', audience: 'gatehouse' } } },
    },
    message: 'kubernetesIssuer.name: config.trustedIssuers has an issuer "cluster" already',
  },
  {
    name: 'a projected token in the place of the CA certificate',
    from: 'kubernetes-issuer',
    change: { kubernetesIssuer: { serviceAccountToken: { path: 'ca.crt' } } },
    message: 'kubernetesIssuer.serviceAccountToken.path: ca.crt is the file of the CA certificate',
  },
  {
    name: 'a token for the API server would be sent to another host',
    from: 'kubernetes-issuer',
    change: { kubernetesIssuer: { jwksUri: 'https://kubernetes.default.svc.example.com/openid/v1/jwks' } },
    message: 'kubernetesIssuer.jwksUri: is not the API server of this cluster, and would receive a token for it',
  },
  {
    name: 'a ClusterRoleBinding that nothing uses',
    from: 'kubernetes-issuer',
    change: { kubernetesIssuer: { enabled: false } },
    message: 'kubernetesIssuer.rbac.create: has no effect without kubernetesIssuer.enabled',
  },
  {
    name: 'a ClusterRoleBinding for a token that is not sent',
    from: 'kubernetes-issuer',
    change: { kubernetesIssuer: { serviceAccountToken: { enabled: false } } },
    message: 'kubernetesIssuer.rbac.create: has no effect without kubernetesIssuer.serviceAccountToken.enabled',
  },
  {
    name: 'a ClusterRoleBinding for an unknown service account',
    from: 'sidecar-kubernetes-issuer',
    change: { serviceAccount: { name: '' } },
    message: 'serviceAccount.name: is missing; in sidecar mode kubernetesIssuer.rbac.create needs',
  },
  {
    name: 'a policy that closes the API server',
    from: 'kubernetes-issuer',
    change: { networkPolicy: { kubeAPIServer: { cidrs: [] } } },
    message: 'networkPolicy.kubeAPIServer.cidrs: is empty and networkPolicy.egress opens no port of the API server',
  },
  {
    name: 'a port that stays open by a name, which may be that of the application',
    from: 'sidecar',
    change: { networkPolicy: { extraIngress: [{ ports: [{ port: 'http' }] }] } },
    message: 'networkPolicy.extraIngress: "http" may be the name of the application',
  },
];

test.each(CONTRADICTIONS)('A3 $name fails the rendering with a message', ({ from, change, message }) => {
  const { status, stdout, stderr } = templateWith(valuesFile(from), change);
  expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
  expect(stderr).toContain(message);
});

test.each([
  { name: 'every port', rule: { ports: [] } },
  { name: 'its port by number', rule: { ports: [{ port: 9100 }, { port: 8080, protocol: 'TCP' }] } },
  { name: 'a range with its port', rule: { ports: [{ port: 8000, endPort: 8999 }] } },
  { name: 'every port of a protocol', rule: { ports: [{ protocol: 'TCP' }] } },
])('A3 the application’s port is not opened to all sources: $name', ({ rule }) => {
  const open = (extra: object) =>
    templateWith(valuesFile('sidecar'), { networkPolicy: { extraIngress: [{ ...rule, ...extra }] } });
  expect(open({}).stderr).toContain('networkPolicy.extraIngress: opens port 8080 of the application to all sources');
  // It may be opened to listed sources, such as Prometheus.
  expect(open({ from: [{ podSelector: { matchLabels: { app: 'scraper' } } }] }).status).toBe(0);
});

test.each([
  { name: 'one of its ports that is not the usual one', port: 9000, url: 'http://127.0.0.1:9000' },
  { name: 'by another name of this machine', port: 9001, url: 'https://[::1]:9001/' },
  { name: 'without a number', port: 80, url: 'http://localhost' },
])('A3 the application’s port is not opened to all sources: $name', ({ port, url }) => {
  const open = (upstreams: object) =>
    templateWith(valuesFile('sidecar'), {
      networkPolicy: { extraIngress: [{ ports: [{ port }] }] },
      config: { upstreams },
    });
  const reported = `networkPolicy.extraIngress: opens port ${port} of the application to all sources`;
  expect(open({ default: { url } }).stderr).toContain(reported);
  expect(open({ other: { urls: ['http://192.0.2.7:8080', url] } }).stderr).toContain(reported);
  expect(open({ other: { url: `http://192.0.2.7:${port}` } }).status).toBe(0);
});

test.each([
  { name: 'every port', rule: {} },
  { name: 'by number', rule: { ports: [{ port: 8443 }] } },
  { name: 'by name', rule: { ports: [{ port: 'gatehouse' }] } },
  { name: 'in a range', rule: { ports: [{ port: 8000, endPort: 8999 }] } },
])('A3 where a header carries the identity, further rules do not admit all sources: $name', ({ rule }) => {
  const open = (from: string, extra: object) =>
    templateWith(valuesFile(from), { networkPolicy: { extraIngress: [{ ...rule, ...extra }] } });
  expect(open('ingress', {}).stderr).toContain(
    'networkPolicy.extraIngress: opens the public port to all sources, so any client at an address',
  );
  expect(open('ingress', { from: [{ podSelector: { matchLabels: { app: 'edge' } } }] }).status).toBe(0);
  if (rule.ports !== undefined) expect(open('embedded', {}).status).toBe(0);
});

test.each([
  { name: 'every port', rule: {} },
  { name: 'by number', rule: { ports: [{ port: 9443 }] } },
  { name: 'by name', rule: { ports: [{ port: 'gh-admin' }] } },
])('A3 further rules do not open the admin port to all sources: $name', ({ rule }) => {
  const open = (extra: object) =>
    templateWith(valuesFile('embedded'), { networkPolicy: { extraIngress: [{ ...rule, ...extra }] } });
  expect(open({}).stderr).toContain('networkPolicy.extraIngress: opens the admin port to all sources');
  expect(open({ from: [{ podSelector: { matchLabels: { app: 'prometheus' } } }] }).status).toBe(0);
});

test.each([
  { name: 'every address', from: [{ ipBlock: { cidr: '0.0.0.0/0' } }] },
  {
    name: 'every address of IPv6',
    from: [{ podSelector: { matchLabels: { app: 'edge' } } }, { ipBlock: { cidr: '::/0' } }],
  },
  { name: 'every pod', from: [{ namespaceSelector: {} }] },
  { name: 'an empty peer', from: [{}] },
])('A3 an allowed source is not specified as every source: $name', ({ from }) => {
  expect(templateWith(valuesFile('ingress'), { networkPolicy: { from } }).stderr).toContain(
    'networkPolicy.from: allows all sources, so any client at an address',
  );
  const rule = { from, ports: [{ port: 8080 }] };
  expect(templateWith(valuesFile('sidecar'), { networkPolicy: { extraIngress: [rule] } }).stderr).toContain(
    'networkPolicy.extraIngress: opens port 8080 of the application to all sources',
  );
  // Without a trusted header, the public port may be open to all.
  if (Object.keys(from[0] ?? {}).length > 0)
    expect(templateWith(valuesFile('embedded'), { networkPolicy: { from } }).status).toBe(0);
});

test('A3 an address range with exceptions is not treated as every source', () => {
  const from = [{ ipBlock: { cidr: '0.0.0.0/0', except: ['10.0.0.0/8'] } }];
  expect(templateWith(valuesFile('ingress'), { networkPolicy: { from } }).status).toBe(0);
});

test('A3 own egress rules may open the port of the API server', () => {
  const render = (egress: readonly object[], more: object = {}) =>
    templateWith(valuesFile('kubernetes-issuer'), {
      networkPolicy: { egress, kubeAPIServer: { cidrs: [], ...more } },
    }).status;
  const to = [{ ipBlock: { cidr: '192.0.2.10/32' } }];
  expect(render([{ to, ports: [{ port: 6443 }] }])).toBe(0);
  expect(render([{ to }])).toBe(0);
  expect(render([{ to, ports: [{ port: 8443 }] }])).toBe(1);
  expect(render([{ to, ports: [{ port: 8443 }] }], { ports: [8443] })).toBe(0);
  expect(render([])).toBe(0);
});

test('A3 a password in the Redis URL is detected with any special characters', () => {
  for (const url of ['redis://:p@r:1', 'redis://me:p/w@r', 'redis://me:p@w@r', 'redis+sentinel://u:p@a:1,b:2/x']) {
    const { status, stderr } = templateWith(valuesFile('embedded'), {
      store: { type: 'redis', redis: { url } },
    });
    expect([url, status, stderr]).toEqual([url, 1, expect.stringContaining('store.redis.url: contains a password')]);
  }
});

test('A3 each message is unique', () => {
  expect(new Set(CONTRADICTIONS.map(({ message }) => message)).size).toBe(CONTRADICTIONS.length);
});

test('A2 Helm rejects values that violate the schema', () => {
  const { status, stderr } = templateWith(valuesFile('embedded'), {
    config: { listen: { port: 1 } },
    replicas: 3,
    store: redis,
  });
  expect(status).toBe(1);
  expect(stderr).toMatch(/port/);
  expect(stderr).toMatch(/replicas/);
});
