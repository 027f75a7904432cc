import { afterAll, beforeAll, expect, test } from 'vitest';
import { defineKinds } from '../apiserver/custom-resources.ts';
import { issueServer } from '../support/pki.ts';
import { createShop, gatewayValues, redisStore, type Shop, startGateway } from './shop.ts';

/** The definitions of cert-manager and of the Prometheus operator are installed; their controllers do not run. */
let shop: Shop;
beforeAll(async () => {
  shop = await createShop('operators');
  await defineKinds(shop.api);
});
afterAll(() => shop?.remove());

test('objects for cert-manager and the Prometheus operator are accepted, and gatehouse serves the certificate of cert-manager', async () => {
  // What cert-manager would write.
  const server = await issueServer(shop.ca);
  await shop.writeSecret('gate-gatehouse-tls', { 'tls.crt': server.pem, 'tls.key': server.keyPem });
  const { tls: _, ...values } = gatewayValues(shop.namespace);
  await startGateway(shop, {
    ...values,
    ...redisStore(shop.namespace),
    tls: { certManager: { enabled: true, issuerRef: { name: 'internal', kind: 'ClusterIssuer' } } },
    metrics: {
      serviceMonitor: { enabled: true },
      podMonitor: { enabled: true },
      prometheusRule: { enabled: true },
      dashboard: { enabled: true },
    },
    networkPolicy: { adminFrom: [{ namespaceSelector: {} }] },
  });
  const kinds = 'certificates,servicemonitors,podmonitors,prometheusrules';
  const created = await shop.kubectl(`get ${kinds} -o jsonpath='{.items[*].kind}'`);
  expect(created.split(' ').toSorted()).toEqual(['Certificate', 'PodMonitor', 'PrometheusRule', 'ServiceMonitor']);
  const secret = await shop.kubectl('get certificate gate-gatehouse -o jsonpath={.spec.secretName}');
  expect(secret).toBe('gate-gatehouse-tls');
  const client = await shop.connect('gate-gatehouse');
  const { access_token } = await client.grant();
  expect((await client.get('/files/a', access_token)).status).toBe(200);
});
