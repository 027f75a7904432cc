import { afterAll, beforeAll, expect, onTestFailed, onTestFinished, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { formRedisCluster } from '../support/redis-server.ts';
import { createResharding } from '../support/resharding.ts';
import { countFailures, describeLoad, startLoad } from './load.ts';
import { followLogs } from './pod-logs.ts';
import { createPod, createRedisContainer } from './redis-pods.ts';
import {
  createShop,
  GATEWAY_PODS,
  gatewayValues,
  RESTRICTED,
  type Shop,
  serviceFor,
  startGateway,
  waitForPods,
} from './shop.ts';
import { countRefusals, watchGrants } from './watch-grants.ts';

/** A Redis Cluster of three pods. */
const NODES = 3;
const PORT = 6_379;
const RESHARDINGS = 3;

let shop: Shop;
let addresses: readonly string[];
beforeAll(async () => {
  shop = await createShop('redis-cluster');
  await shop.apply(
    ...Array.from({ length: NODES }, (_, number) => createNode(`redis-node-${number}`)),
    serviceFor('redis-node', PORT),
  );
  addresses = (await waitForPods(shop, 'app=redis-node', NODES)).map(({ address }) => address);
  await formRedisCluster(addresses.map((host) => ({ host, port: PORT, busPort: PORT + 10_000 })));
  await startGateway(shop, {
    ...gatewayValues(shop.namespace),
    store: {
      type: 'redis',
      redis: { url: `redis+cluster://redis-node.${shop.namespace}.svc:${PORT}` },
    },
  });
});
afterAll(() => shop?.remove());

/** A node writes the slots it knows to a file. */
const createNode = (name: string) =>
  createPod(name, 'redis-node', {
    volumes: [{ name: 'data', emptyDir: {} }],
    containers: [
      {
        ...createRedisContainer(PORT, [
          '--protected-mode',
          'no',
          '--save',
          '',
          '--dir',
          '/data',
          '--cluster-enabled',
          'yes',
        ]),
        volumeMounts: [{ name: 'data', mountPath: '/data' }],
      },
    ],
    securityContext: { fsGroup: RESTRICTED.runAsUser },
  });

test('reshardings of a Redis Cluster fail no request, lose no grant, and revive no revoked token', async () => {
  const client = await shop.connect('gate-gatehouse');
  const { access_token: token } = await client.grant();
  const address = await shop.addressOf('gate-gatehouse');
  const logs = followLogs(shop, GATEWAY_PODS);
  onTestFailed(() => console.log(logs.problems().join('\n')));
  const resharding = await createResharding(addresses.map((host) => ({ host, port: PORT })));
  onTestFinished(() => resharding.close());
  const load = startLoad({ address, ca: shop.ca.pem, token, rate: 80 });
  const watch = await watchGrants(client);
  await load.more(200);
  let moved = 0;
  for (let round = 0; round < RESHARDINGS; round += 1) {
    moved += await resharding.move(round);
    await load.more(100);
  }
  const [report, grants] = [await load.stop(), await watch.stop()];
  await logs.stop();
  console.log(describeLoad(`${RESHARDINGS} reshardings, ${moved} slots`, report));
  console.log(JSON.stringify(grants));
  recordFigures('cluster-reshardings', {
    reshardings: RESHARDINGS,
    'slots moved': moved,
    requests: report.sent,
    'requests failed': countFailures(report),
    refreshes: grants.refreshes,
    'refused as temporary': countRefusals(grants),
    'grants lost': grants.lostGrants,
    'revoked tokens accepted': grants.acceptedRevokedTokens,
  });
  expect(moved).toBeGreaterThan(0);
  expect(grants.refreshes).toBeGreaterThan(0);
  expect(grants.revocations).toBeGreaterThan(0);
  expect({ lost: grants.lostGrants, revived: grants.acceptedRevokedTokens }).toEqual({ lost: 0, revived: 0 });
  expect(countFailures(report)).toBe(0);
  // Writes during the change may be refused as temporary, but not most of them.
  expect(countRefusals(grants)).toBeLessThan(grants.refreshes);
});
