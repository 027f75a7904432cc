import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { until } from '../support/until.ts';
import { createLocalVolume } from './local-volume.ts';
import {
  createApplication,
  createShop,
  GATEWAY_PODS,
  gatewayValues,
  type Shop,
  serviceFor,
  waitForPods,
} from './shop.ts';
import { watchGrants } from './watch-grants.ts';

/** A gateway with the embedded store, whose only pod is killed when its container exceeds its memory limit. */
const KILLS = 3;
const RESOURCES = { cpu: '500m', memory: '160Mi' };
const POD = 'gate-gatehouse-0';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('memory');
  await shop.apply(...createLocalVolume('memory'), createApplication('orders'), serviceFor('orders', 8_080));
  await shop.install('gate', {
    ...gatewayValues(shop.namespace),
    store: { persistence: { storageClass: 'memory' } },
    // With equal requests and limits, the kubelet leaves room to raise the OOM score of one process.
    resources: { requests: RESOURCES, limits: RESOURCES },
  });
  await shop.kubectl('rollout status deployment/orders --timeout=120s');
  await shop.kubectl('rollout status statefulset/gate-gatehouse --timeout=180s');
});
afterAll(() => shop?.remove());

/** A second process in the container, which takes the memory that is left, and makes the kernel choose gatehouse for the kill. */
const HOG =
  "require('node:fs').writeFileSync('/proc/1/oom_score_adj','1000');const taken=[];setInterval(()=>taken.push(Buffer.alloc(2**20,1)),20)";

async function readLastExit(): Promise<{ readonly reason: string; readonly restarts: number }> {
  const field = '.status.containerStatuses[0]';
  const text = await shop.kubectl(
    `get pod ${POD} -o jsonpath='{${field}.lastState.terminated.reason} {${field}.restartCount}'`,
  );
  const [reason = '', restarts = ''] = text.split(' ');
  return { reason, restarts: Number(restarts) };
}

test('a pod that is killed at its memory limit loses no grant and revives no revoked token', async () => {
  const client = await shop.connect('gate-gatehouse');
  const kept = await client.grant();
  const watch = await watchGrants(client);
  for (let kill = 1; kill <= KILLS; kill += 1) {
    await waitForPods(shop, GATEWAY_PODS, 1);
    await shop.shell.attempt(`kubectl -n ${shop.namespace} exec ${POD} -- /usr/local/bin/node -e "${HOG}"`);
    const exit = await until(
      `restart ${kill}`,
      async () => {
        const found = await readLastExit();
        return found.restarts >= kill && found;
      },
      120,
    );
    expect(exit).toEqual({ reason: 'OOMKilled', restarts: kill });
  }
  await waitForPods(shop, GATEWAY_PODS, 1);
  const refreshed = await until('the Service has the pod again', () =>
    client.refresh(kept.refresh_token).catch(() => undefined),
  );
  expect(refreshed.status, refreshed.text).toBe(200);
  const grants = await watch.stop();
  console.log(`${KILLS} kills at the memory limit: ${JSON.stringify(grants)}`);
  recordFigures('cluster-memory', {
    'kills at the memory limit': KILLS,
    refreshes: grants.refreshes,
    'grants lost': grants.lostGrants,
    'requests with revoked tokens': grants.checks,
    'revoked tokens accepted': grants.acceptedRevokedTokens,
  });
  expect(grants.refreshes).toBeGreaterThan(0);
  expect(grants.revocations).toBeGreaterThan(0);
  expect({ lost: grants.lostGrants, revived: grants.acceptedRevokedTokens }).toEqual({ lost: 0, revived: 0 });
});
