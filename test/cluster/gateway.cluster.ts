import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Reply } from '../support/https-client.ts';
import { until } from '../support/until.ts';
import type { ServiceClient } from './client.ts';
import { createLocalVolume } from './local-volume.ts';
import {
  commandsInNotes,
  createApplication,
  createShop,
  GATEWAY_PODS,
  gatewayValues,
  type Shop,
  serviceFor,
} from './shop.ts';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('gateway');
  await shop.apply(createApplication('orders'), serviceFor('orders', 8_080));
  await shop.kubectl('rollout status deployment/orders --timeout=120s');
});
afterAll(() => shop?.remove());

/** Runs the commands of the notes in their order; returns their output. */
async function followNotes(notes: string): Promise<readonly string[]> {
  const commands = commandsInNotes(notes);
  expect(commands.map((command) => command.split(' ').slice(0, 4).join(' '))).toEqual([
    `kubectl -n ${shop.namespace} rollout`,
    `helm -n ${shop.namespace} test`,
    `kubectl -n ${shop.namespace} logs`,
  ]);
  const outputs: string[] = [];
  for (const command of commands) outputs.push(await shop.shell.run(command));
  return outputs;
}

const identityOf = (reply: Reply): unknown => {
  expect(reply.status, reply.text).toBe(200);
  return (reply.json['headers'] as Readonly<Record<string, readonly string[]>>)['X-Forwarded-Client-Id'];
};

/** Grants of both kinds, and requests with and without their tokens. */
async function useGateway(client: ServiceClient): Promise<void> {
  expect((await client.get('/health')).status).toBe(200);
  expect((await client.get('/files/a')).status).toBe(401);
  const grants = [await client.grant(), await client.authorizeDevice()];
  for (const { access_token, refresh_token } of grants) {
    expect(identityOf(await client.get('/files/a', access_token))).toEqual(['nightly-export']);
    expect((await client.get('/other', access_token)).status).toBe(404);
    const refreshed = await client.refresh(refresh_token);
    expect(refreshed.status, refreshed.text).toBe(200);
    const next = String(refreshed.json['access_token']);
    expect((await client.get('/files/a', next)).status).toBe(200);
    expect((await client.revoke(next)).status).toBe(200);
    expect((await client.get('/files/a', next)).status).toBe(401);
  }
}

describe.each([
  { name: 'with the Valkey of the chart', release: 'trial', values: { valkey: { enabled: true } } },
  {
    name: 'on a Redis in the cluster, with two pods',
    release: 'gate',
    values: { replicaCount: 2, store: { type: 'redis', redis: { url: 'redis://redis.gateway.svc:6379/0' } } },
  },
])('a gateway $name', ({ release, values }) => {
  afterAll(() => shop.shell.run(`helm -n gateway uninstall ${release} --ignore-not-found`));

  test('is installed as the notes say, and `helm test` runs a pod', async () => {
    const notes = await shop.install(release, { ...gatewayValues(shop.namespace), ...values });
    const [, tested = '', log = ''] = await followNotes(notes);
    expect(tested).toMatch(/TEST SUITE:\s+\S+-test\n[\s\S]*Phase:\s+Succeeded/);
    // The log is JSON from the first line on: the runtime prints nothing of its own.
    const lines = log.trim().split('\n');
    expect(lines.filter((line) => !line.startsWith('{'))).toEqual([]);
  });

  test('grants access with a certificate and with the device flow, and forwards requests through its Service', async () => {
    await useGateway(await shop.connect(`${release}-gatehouse`));
  });

  test('is never restarted by its probes', async () => {
    const pods = await shop.pods(`${GATEWAY_PODS},app.kubernetes.io/instance=${release}`);
    expect(pods.map(({ restarts }) => restarts)).toEqual(pods.map(() => 0));
  });
});

describe('a gateway with the embedded store', () => {
  beforeAll(async () => {
    await shop.apply(...createLocalVolume('local'));
  });
  afterAll(() => shop.shell.run('helm -n gateway uninstall single --ignore-not-found'));

  test('is installed as the notes say and grants access', async () => {
    const values = { ...gatewayValues(shop.namespace), store: { persistence: { storageClass: 'local' } } };
    const [, tested = ''] = await followNotes(await shop.install('single', values));
    expect(tested).toMatch(/Phase:\s+Succeeded/);
    await useGateway(await shop.connect('single-gatehouse'));
  });

  test('keeps its grants on the volume when the pod is replaced', async () => {
    const client = await shop.connect('single-gatehouse');
    const { refresh_token } = await client.grant();
    const revoked = await client.grant();
    expect((await client.revoke(revoked.access_token)).status).toBe(200);
    await shop.kubectl('delete pod single-gatehouse-0');
    await shop.kubectl('rollout status statefulset/single-gatehouse --timeout=120s');
    const refreshed = await until('the Service has the new pod', () =>
      client.refresh(refresh_token).catch(() => undefined),
    );
    expect(refreshed.status, refreshed.text).toBe(200);
    expect((await client.get('/files/a', String(refreshed.json['access_token']))).status).toBe(200);
    expect((await client.get('/files/a', revoked.access_token)).status).toBe(401);
  });

  test('its grants are listed with the documented command', async () => {
    const list = 'gatehouse grants list --config /etc/gatehouse/config/gatehouse.yaml';
    const listed = await shop.kubectl(`exec statefulset/single-gatehouse -- ${list}`);
    expect(listed).toContain('nightly-export');
  });
});
