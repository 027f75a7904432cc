import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { until } from '../support/until.ts';
import { COUNTS } from './counts.ts';
import { NEXT_TAG } from './images.ts';
import { countFailures, describeLoad, type Load, startLoad } from './load.ts';
import {
  commandsInNotes,
  createApplication,
  createShop,
  GATEWAY_PODS,
  gatewayValues,
  redisStore,
  rotateKeys,
  type Shop,
  sidecarValues,
  startGateway,
  waitForPods,
} from './shop.ts';
import { type GrantWatch, watchGrants } from './watch-grants.ts';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('termination');
});
afterAll(() => shop?.remove());

/** Deletes pods one after another; the next one when there are as many ready pods as before. */
async function deletePods(selector: string, replicas: number, times: number): Promise<void> {
  for (let deleted = 0; deleted < times; deleted += 1) {
    const pods = await waitForPods(shop, selector, replicas);
    const victim = pods[deleted % pods.length];
    await shop.kubectl(`delete pod ${victim?.name} --wait=false`);
    await waitForPods(shop, selector, replicas);
  }
}

describe('a gateway with two pods on Redis, under a steady load', () => {
  let load: Load | undefined;
  let watch: GrantWatch | undefined;
  const values = () => ({ ...gatewayValues(shop.namespace), ...redisStore(shop.namespace), replicaCount: 2 });
  const rollout = (): Promise<string> =>
    shop.kubectl('rollout status deployment/gate-gatehouse --timeout=300s', { seconds: 320 });

  beforeAll(async () => {
    await startGateway(shop, values());
  });
  afterAll(async () => {
    await load?.stop();
    await watch?.stop();
    await shop.shell.run('helm -n termination uninstall gate --ignore-not-found');
    await shop.kubectl('delete deployment,service orders --ignore-not-found');
  });

  const begin = async (): Promise<{ readonly load: Load; readonly watch: GrantWatch }> => {
    const client = await shop.connect('gate-gatehouse');
    const { access_token } = await client.grant();
    const address = await shop.addressOf('gate-gatehouse');
    load = startLoad({ address, ca: shop.ca.pem, token: access_token });
    watch = await watchGrants(client);
    return { load, watch };
  };
  const finish = async (what: string): Promise<void> => {
    const [report, grants] = [await load?.stop(), await watch?.stop()];
    load = undefined;
    watch = undefined;
    if (report === undefined || grants === undefined) throw new Error('no load');
    console.log(describeLoad(what, report));
    console.log(`${what}: ${JSON.stringify(grants)}`);
    expect(report.failures).toEqual({});
    expect(grants).toMatchObject({ lostGrants: 0, acceptedRevokedTokens: 0 });
    // Not in toMatchObject, where an empty object matches any other.
    expect(grants.failures).toEqual({});
  };

  test(`${COUNTS.deletions} pod deletions fail no request`, async () => {
    const { load } = await begin();
    await load.more(200);
    await deletePods(GATEWAY_PODS, 2, COUNTS.deletions);
    await load.more(200);
    await finish(`${COUNTS.deletions} pod deletions`);
  });

  test(`upgrades, scaling and a node drain fail none of ${COUNTS.requests} requests`, async () => {
    const { load } = await begin();
    await load.more(200);
    // A change of the configuration.
    await shop.install('gate', { ...values(), config: { ...values().config, log: { level: 'warn' } } });
    await rollout();
    await load.more(200);
    // Another image: the same contents under another tag.
    await shop.install('gate', { ...values(), image: { tag: NEXT_TAG } });
    await rollout();
    await load.more(200);
    // A rotation of the keys.
    await rotateKeys(shop);
    for (const replicas of [1, 5, 2]) {
      await shop.kubectl(`scale deployment/gate-gatehouse --replicas=${replicas}`);
      await waitForPods(shop, GATEWAY_PODS, replicas);
      await load.more(200);
    }
    // The replacement of an evicted pod has no node, so the PodDisruptionBudget must keep the other one.
    const drained = await shop.shell.attempt(
      `kubectl drain node --pod-selector=${GATEWAY_PODS} --delete-emptydir-data --timeout=30s`,
    );
    expect(drained.stderr).toContain("would violate the pod's disruption budget");
    await load.more(200);
    await shop.shell.run('kubectl uncordon node');
    await waitForPods(shop, GATEWAY_PODS, 2);
    await load.reach(COUNTS.requests);
    await finish('upgrades, scaling and a node drain');
  });

  test('`kill -9` of a pod’s process loses no grant and revives no revoked token', async () => {
    const { load } = await begin();
    await load.more(200);
    const [pod] = await waitForPods(shop, GATEWAY_PODS, 2);
    const id = await shop.kubectl(
      `get pod ${pod?.name} -o jsonpath='{.status.containerStatuses[0].containerID}'`,
    );
    killContainer(id.replace('containerd://', ''));
    await until('the container was restarted', async () =>
      (await shop.pods(GATEWAY_PODS)).some(({ restarts }) => restarts > 0),
    );
    await waitForPods(shop, GATEWAY_PODS, 2);
    const before = countFailures(load.report());
    await load.more(200);
    const report = await load.stop();
    const grants = await watch?.stop();
    watch = undefined;
    console.log(describeLoad('kill -9', report));
    console.log(`kill -9: ${JSON.stringify(grants)}`);
    // Connections of the killed process break, and new ones are refused until its endpoint is removed (docs/kubernetes.md).
    expect(Object.keys(report.failures).filter((kind) => /status [1-9]/.test(kind))).toEqual([]);
    expect(countFailures(report)).toBe(before);
    expect(grants).toMatchObject({ lostGrants: 0, acceptedRevokedTokens: 0 });
  });
});

/** Kills the first process of a container from the node. */
function killContainer(id: string): void {
  const address = join(inject('folder'), 'containerd.sock');
  execFileSync('ctr', [
    '--address',
    address,
    '--namespace',
    'k8s.io',
    'task',
    'kill',
    '--signal',
    'SIGKILL',
    id,
  ]);
}

/** Wanted in all of them: no failed request. */
describe.each([
  { name: 'native, with the documented preStop', native: true, preStopSeconds: 5, env: {} },
  {
    name: 'native, with an application that stops listening at SIGTERM and takes 3 s',
    native: true,
    preStopSeconds: 5,
    env: { EXIT_AFTER: '3s' },
  },
  { name: 'native, without a preStop of the application', native: true, preStopSeconds: 0, env: {} },
  { name: 'plain, with the documented preStop', native: false, preStopSeconds: 5, env: {} },
])('a sidecar: $name', ({ name, native, preStopSeconds, env }) => {
  beforeAll(async () => {
    const notes = await shop.install('side', sidecarValues(shop.namespace, 'shipping', native));
    await shop.apply(createApplication('shipping', { env, preStopSeconds }));
    for (const command of commandsInNotes(notes))
      await shop.shell.run(command.replace('YOUR-APPLICATION', 'shipping'));
    await shop.kubectl('rollout status deployment/shipping --timeout=180s', { seconds: 200 });
    await waitForPods(shop, 'app=shipping', 2);
  });
  afterAll(async () => {
    await shop.kubectl('delete deployment shipping --ignore-not-found --timeout=120s');
    await shop.shell.run('helm -n termination uninstall side --ignore-not-found');
    await waitForPods(shop, 'app=shipping', 0);
  });

  test('a rolling restart fails no request', async () => {
    const client = await shop.connect('side-gatehouse');
    const { access_token } = await client.grant();
    const address = await shop.addressOf('side-gatehouse');
    const load = startLoad({ address, ca: shop.ca.pem, token: access_token });
    try {
      await load.more(200);
      await shop.kubectl('rollout restart deployment/shipping');
      await shop.kubectl('rollout status deployment/shipping --timeout=300s', { seconds: 320 });
      await waitForPods(shop, 'app=shipping', 2);
      await load.more(200);
    } finally {
      const report = await load.stop();
      console.log(describeLoad(`rolling restart of a sidecar (${name})`, report));
      expect(report.failures).toEqual({});
    }
  });
});
