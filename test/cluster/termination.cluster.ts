import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { type Figures, recordFigures } from '../support/figures.ts';
import { until } from '../support/until.ts';
import { COUNTS } from './counts.ts';
import { NEXT_TAG } from './images.ts';
import { countFailures, describeLoad, type Load, type LoadReport, startLoad } from './load.ts';
import { followLogs, type PodLogs } from './pod-logs.ts';
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
  waitForReadyPods,
} from './shop.ts';
import { countRefusals, type GrantReport, type GrantWatch, watchGrants } from './watch-grants.ts';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('termination');
});
afterAll(() => shop?.remove());

/** Deletes pods one after another; the next one when its replacement is ready. Earlier ones may still be terminating. */
async function deletePods(selector: string, replicas: number, times: number): Promise<void> {
  for (let deleted = 0; deleted < times; deleted += 1) {
    const [victim] = await waitForReadyPods(shop, selector, replicas);
    await shop.api.call('DELETE', `/api/v1/namespaces/${shop.namespace}/pods/${victim?.name}`);
  }
  await waitForPods(shop, selector, replicas);
}

describe('a gateway with two pods on Redis, under a steady load', () => {
  let load: Load | undefined;
  let watch: GrantWatch | undefined;
  let logs: PodLogs | undefined;
  const values = () => ({ ...gatewayValues(shop.namespace), ...redisStore(shop.namespace), replicaCount: 2 });
  const rollout = (): Promise<string> =>
    shop.kubectl('rollout status deployment/gate-gatehouse --timeout=300s', { seconds: 320 });

  beforeAll(async () => {
    await startGateway(shop, values());
  });
  afterAll(async () => {
    await load?.stop();
    await watch?.stop();
    await logs?.stop();
    await shop.shell.run('helm -n termination uninstall gate --ignore-not-found');
    await shop.kubectl('delete deployment,service orders --ignore-not-found');
  });

  const begin = async (): Promise<{ readonly load: Load; readonly watch: GrantWatch }> => {
    const client = await shop.connect('gate-gatehouse');
    const { access_token } = await client.grant();
    const address = await shop.addressOf('gate-gatehouse');
    load = startLoad({ address, ca: shop.ca.pem, token: access_token });
    watch = await watchGrants(client);
    logs = followLogs(shop, GATEWAY_PODS);
    return { load, watch };
  };
  /** Ends the load, and prints what happened. */
  const end = async (what: string): Promise<{ readonly report: LoadReport; readonly grants: GrantReport }> => {
    const [report, grants] = [await load?.stop(), await watch?.stop()];
    await logs?.stop();
    if (report === undefined || grants === undefined) throw new Error('no load');
    console.log(describeLoad(what, report));
    console.log(`${what}: ${JSON.stringify(grants)}`);
    printProblems(logs);
    load = undefined;
    watch = undefined;
    logs = undefined;
    return { report, grants };
  };
  const finish = async (what: string, id: string, facts: Figures): Promise<void> => {
    const { report, grants } = await end(what);
    recordFigures(id, {
      ...facts,
      requests: report.sent,
      'requests failed': countFailures(report),
      refreshes: grants.refreshes,
      'refreshes refused as temporary': countRefusals(grants),
      'grants lost': grants.lostGrants,
      'requests with revoked tokens': grants.checks,
      'revoked tokens accepted': grants.acceptedRevokedTokens,
    });
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
    await finish('pod deletions', 'cluster-deletions', { 'pods deleted': COUNTS.deletions });
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
    await finish('upgrades, scaling and a node drain', 'cluster-upgrades', {
      'image, configuration and key changes': 3,
    });
  });

  test('`kill -9` of a pod’s process loses no grant and revives no revoked token', async () => {
    const { load } = await begin();
    await load.more(200);
    const [pod] = await waitForPods(shop, GATEWAY_PODS, 2);
    const id = await shop.kubectl(`get pod ${pod?.name} -o jsonpath='{.status.containerStatuses[0].containerID}'`);
    killContainer(id.replace('containerd://', ''));
    await until('the container was restarted', async () =>
      (await shop.pods(GATEWAY_PODS)).some(({ restarts }) => restarts > 0),
    );
    await waitForPods(shop, GATEWAY_PODS, 2);
    const before = countFailures(load.report());
    await load.more(200);
    const { report, grants } = await end('kill -9');
    // Connections of the killed process break, and new ones are refused until its endpoint is removed (docs/kubernetes.md).
    expect(Object.keys(report.failures).filter((kind) => /status [1-9]/.test(kind))).toEqual([]);
    expect(countFailures(report)).toBe(before);
    expect(grants).toMatchObject({ lostGrants: 0, acceptedRevokedTokens: 0 });
  });
});

function printProblems(logs: PodLogs | undefined): void {
  const problems = logs?.problems() ?? [];
  if (problems.length > 0) console.log(`logged by pods:\n${problems.join('\n')}`);
}

/** Kills the first process of a container from the node. */
function killContainer(id: string): void {
  const address = join(inject('folder'), 'containerd.sock');
  const args = ['--address', address, '--namespace', 'k8s.io', 'task', 'kill', '--signal', 'SIGKILL', id];
  execFileSync('ctr', args);
}

interface SidecarScenario {
  readonly id: string;
  readonly name: string;
  readonly native: boolean;
  /** The patch of the chart adds the documented preStop hook to the application. */
  readonly hasPreStop: boolean;
  readonly env: Readonly<Record<string, string>>;
}

const SIDECARS: readonly SidecarScenario[] = [
  { id: 'native', name: 'native', native: true, hasPreStop: true, env: {} },
  {
    id: 'slow',
    name: 'native, with an application that stops listening at SIGTERM and takes 3 s',
    native: true,
    hasPreStop: true,
    env: { EXIT_AFTER: '3s' },
  },
  { id: 'plain', name: 'plain', native: false, hasPreStop: true, env: {} },
  {
    id: 'no-pre-stop',
    name: 'native, without a preStop hook of the application',
    native: true,
    hasPreStop: false,
    env: {},
  },
];

describe.each(SIDECARS)('a sidecar: $name', ({ id, native, hasPreStop, env }) => {
  beforeAll(async () => {
    const applicationContainer = hasPreStop ? 'orders' : '';
    const values = sidecarValues(shop.namespace, 'shipping', { native, applicationContainer });
    const notes = await shop.install('side', values);
    await shop.apply(createApplication('shipping', { env }));
    for (const command of commandsInNotes(notes)) await shop.shell.run(command.replace('YOUR-APPLICATION', 'shipping'));
    await shop.kubectl('rollout status deployment/shipping --timeout=180s', { seconds: 200 });
    await waitForPods(shop, 'app=shipping', 2);
  });
  afterAll(async () => {
    await shop.kubectl('delete deployment shipping --ignore-not-found --timeout=120s');
    await shop.shell.run('helm -n termination uninstall side --ignore-not-found');
    await waitForPods(shop, 'app=shipping', 0);
  });

  const restart = async (): Promise<LoadReport> => {
    const client = await shop.connect('side-gatehouse');
    const { access_token } = await client.grant();
    const address = await shop.addressOf('side-gatehouse');
    const load = startLoad({ address, ca: shop.ca.pem, token: access_token });
    const logs = followLogs(shop, 'app=shipping');
    try {
      await load.more(200);
      for (let restarts = 0; restarts < COUNTS.restarts; restarts += 1) {
        await shop.kubectl('rollout restart deployment/shipping');
        await shop.kubectl('rollout status deployment/shipping --timeout=300s', { seconds: 320 });
        await waitForPods(shop, 'app=shipping', 2);
      }
      await load.more(200);
    } finally {
      await load.stop();
      await logs.stop();
    }
    const report = load.report();
    console.log(describeLoad(`rolling restarts of a sidecar (${id})`, report));
    printProblems(logs);
    recordFigures(`cluster-sidecar-${id}`, {
      'rolling restarts': COUNTS.restarts,
      requests: report.sent,
      'requests failed': countFailures(report),
    });
    return report;
  };

  if (hasPreStop)
    test('rolling restarts fail no request', async () => {
      expect((await restart()).failures).toEqual({});
    });
  // docs/kubernetes.md: an application that has ended cannot serve what still arrives.
  else
    test('during rolling restarts, requests fail only with 502', async () => {
      const kinds = Object.keys((await restart()).failures);
      expect(kinds.filter((kind) => !kind.includes('status 502'))).toEqual([]);
    });
});
