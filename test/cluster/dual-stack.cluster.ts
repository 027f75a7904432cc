import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createServiceClient, type ServiceClient } from './client.ts';
import { HAS_IPV6 } from './network.ts';
import { createShop, gatewayValues, type Shop, serviceFor, startGateway } from './shop.ts';

/** A gateway whose Service has an address of each family; it reaches the API and Redis over IPv6 only. */
describe.runIf(HAS_IPV6)('in a dual-stack cluster', () => {
  let shop: Shop;
  let addresses: readonly string[];
  beforeAll(async () => {
    shop = await createShop('dual-stack');
    await shop.apply(createIpv6Service('orders6', 'orders', 8_080), createIpv6Service('redis6', 'redis', 6_379));
    const values = gatewayValues(shop.namespace);
    await startGateway(shop, {
      ...values,
      ports: { host: '::' },
      service: { ipFamilyPolicy: 'RequireDualStack' },
      store: { type: 'redis', redis: { url: `redis://redis6.${shop.namespace}.svc:6379/0` } },
      config: {
        ...values.config,
        upstreams: { default: { url: `http://orders6.${shop.namespace}.svc:8080` } },
      },
    });
    const { clusterIPs } = JSON.parse(await shop.kubectl("get service gate-gatehouse -o jsonpath='{.spec}'")) as {
      readonly clusterIPs: readonly string[];
    };
    addresses = clusterIPs;
  });
  afterAll(() => shop?.remove());

  const createIpv6Service = (name: string, app: string, port: number) => {
    const service = serviceFor(name, port);
    return {
      ...service,
      spec: {
        ...service.spec,
        selector: { app },
        ipFamilyPolicy: 'SingleStack',
        ipFamilies: ['IPv6'],
      },
    };
  };

  test.each([
    { family: 'IPv4', index: 0, clientAddress: /^10\.8[01]\.0\.\d+$/ },
    { family: 'IPv6', index: 1, clientAddress: /^fd00:8[01]:/ },
  ])(
    'clients use it over $family, and the API gets their address in its usual form',
    async ({ index, clientAddress }) => {
      const client: ServiceClient = createServiceClient({
        address: addresses[index] ?? '',
        ca: shop.ca.pem,
        as: shop.exporter,
      });
      const { access_token, refresh_token } = await client.grant();
      const { status, json } = await client.get('/files/a', access_token);
      expect(status).toBe(200);
      const headers = json['headers'] as Readonly<Record<string, readonly string[]>>;
      expect(headers['X-Forwarded-For']?.join()).toMatch(clientAddress);
      expect((await client.refresh(refresh_token)).status).toBe(200);
      expect((await client.revoke(access_token)).status).toBe(200);
      expect((await client.get('/files/a', access_token)).status).toBe(401);
    },
  );
});
