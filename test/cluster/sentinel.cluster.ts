import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, onTestFailed, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { until } from '../support/until.ts';
import { IMAGES } from './images.ts';
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

/** A Redis with one replica and three Sentinels, all of them pods. */
const NAME = 'shop';
const SENTINELS = 3;

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('sentinel');
  await shop.apply(createRedis('redis-a', []));
  const [primary] = await waitForPods(shop, 'app=redis-a', 1);
  const address = primary?.address ?? '';
  await shop.apply(
    createRedis('redis-b', ['--replicaof', address, '6379']),
    ...Array.from({ length: SENTINELS }, (_, number) => createSentinel(`sentinel-${number}`, address)),
    serviceFor('sentinel', 26_379),
  );
  const [replica] = await waitForPods(shop, 'app=redis-b', 1);
  await waitForReplication(replica?.address ?? '');
  await waitForPods(shop, 'app=sentinel', SENTINELS);
  await startGateway(shop, {
    ...gatewayValues(shop.namespace),
    store: {
      type: 'redis',
      redis: { url: `redis+sentinel://sentinel.${shop.namespace}.svc:26379/${NAME}` },
    },
  });
});
afterAll(() => shop?.remove());

async function waitForReplication(host: string): Promise<void> {
  const replica = new Redis({ host });
  try {
    await until('the replica has the data of the primary', async () =>
      (await replica.info('replication')).includes('master_link_status:up'),
    );
  } finally {
    replica.disconnect();
  }
}

const createRedis = (name: string, args: readonly string[]) =>
  createPod(name, name, {
    containers: [
      createRedisContainer(6_379, [
        '--protected-mode',
        'no',
        '--save',
        '',
        '--repl-diskless-sync-delay',
        '0',
        // The container has no folder to write to.
        '--repl-diskless-load',
        'on-empty-db',
        ...args,
      ]),
    ],
  });

/** Sentinel writes to its configuration file, so a first container puts it on a volume. */
function createSentinel(name: string, primary: string) {
  const volumeMounts = [{ name: 'configuration', mountPath: '/configuration' }];
  const file = '/configuration/sentinel.conf';
  const lines = [
    'protected-mode no',
    `sentinel monitor ${NAME} ${primary} 6379 2`,
    `sentinel down-after-milliseconds ${NAME} 3000`,
    `sentinel failover-timeout ${NAME} 10000`,
    '',
  ];
  return createPod(name, 'sentinel', {
    volumes: [{ name: 'configuration', emptyDir: {} }],
    initContainers: [
      {
        name: 'write',
        image: IMAGES.api,
        args: ['write', file],
        env: [{ name: 'CONTENT', value: lines.join('\n') }],
        securityContext: RESTRICTED,
        volumeMounts,
      },
    ],
    containers: [{ ...createRedisContainer(26_379, [file, '--sentinel']), volumeMounts }],
    securityContext: { fsGroup: RESTRICTED.runAsUser },
  });
}

test('when the primary of a Sentinel set is killed, its replica takes over: no request fails, no grant is lost, and revoked tokens stay revoked', async () => {
  const client = await shop.connect('gate-gatehouse');
  const [kept, revoked] = [await client.grant(), await client.grant()];
  expect((await client.revoke(revoked.access_token)).status).toBe(200);
  const address = await shop.addressOf('gate-gatehouse');
  const load = startLoad({ address, ca: shop.ca.pem, token: kept.access_token, rate: 80 });
  const logs = followLogs(shop, GATEWAY_PODS);
  onTestFailed(async () => {
    console.log(logs.problems().join('\n'));
    console.log(await shop.kubectl('logs -l app=sentinel --tail=30 --prefix'));
  });
  await load.more(200);
  await shop.kubectl('delete pod redis-a --grace-period=0 --force');
  const refused = await until('a refresh is refused as temporary', async () => {
    const reply = await client.refresh(kept.refresh_token);
    return reply.status !== 200 && reply;
  });
  expect(refused.json['Error']).toBe('invalid_request');
  const accepted: number[] = [];
  await until(
    'a refresh succeeds again',
    async () => {
      accepted.push((await client.get('/files/a', revoked.access_token)).status);
      return (await client.refresh(kept.refresh_token)).status === 200;
    },
    120,
  );
  accepted.push((await client.get('/files/a', revoked.access_token)).status);
  await load.more(200);
  const report = await load.stop();
  await logs.stop();
  console.log(describeLoad('failover by Sentinel', report));
  recordFigures('cluster-sentinel', {
    'requests during a failover by Sentinel': report.sent,
    'of these failed': countFailures(report),
  });
  expect(accepted.filter((status) => status !== 401)).toEqual([]);
  expect(countFailures(report)).toBe(0);
});
