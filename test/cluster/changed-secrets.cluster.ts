import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCa, createCrl, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { until } from '../support/until.ts';
import { CLIENT_ID, createServiceClient, SCOPE } from './client.ts';
import { describeLoad, type Load, readServerCertificate, startLoad } from './load.ts';
import {
  createShop,
  GATEWAY_PODS,
  gatewayValues,
  type Pod,
  redisStore,
  rotateKeys,
  type Shop,
  startGateway,
  waitForPods,
} from './shop.ts';

/**
 * Changes Secrets and ConfigMaps with kubectl. The kubelet replaces the symbolic link `..data` of a mounted volume; gatehouse
 * must load the files without a restart and without a failed request.
 */
let shop: Shop;
let load: Load;
let pods: readonly Pod[] = [];

/** docs/kubernetes.md promises about a minute, with the default sync period of the kubelet; in this cluster it is 5 s. */
const TAKEN_UP_SECONDS = 60;

beforeAll(async () => {
  shop = await createShop('changes');
  pods = await startGateway(shop, {
    ...gatewayValues(shop.namespace),
    ...redisStore(shop.namespace),
    // Otherwise Helm replaces the pods.
    rollOnConfigChange: false,
  });
  const client = await shop.connect('gate-gatehouse');
  const { access_token } = await client.grant();
  const address = await shop.addressOf('gate-gatehouse');
  load = startLoad({ address, ca: shop.ca.pem, token: access_token, rate: 80 });
});
afterAll(async () => {
  await load?.stop();
  await shop?.remove();
});

const GRANT = { client_id: CLIENT_ID, scope: SCOPE };

const clientOf = (pod: Pod, as = shop.exporter) =>
  createServiceClient({ address: pod.address, port: 8_443, ca: shop.ca.pem, as });

/** Waits until every pod satisfies the condition; logs how long it took. */
async function waitForEveryPod(what: string, check: (pod: Pod) => Promise<boolean>): Promise<void> {
  const begun = performance.now();
  for (const pod of pods) await until(`${what} at ${pod.name}`, () => check(pod).catch(() => false), TAKEN_UP_SECONDS);
  console.log(`${what}: ${((performance.now() - begun) / 1_000).toFixed(1)} s`);
}

/** The counter that the alert rules of deploy/monitoring watch. */
async function countRejectedReloads(pod: Pod): Promise<number> {
  const response = await fetch(`http://${pod.address}:9443/metrics`);
  const lines = (await response.text()).matchAll(/^gatehouse_config_reload_failed_total(?:\{[^}]*\})? (\d+)$/gm);
  return [...lines].reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Makes a change that every pod must reject and count. */
async function expectRejection(what: string, change: () => Promise<void>): Promise<void> {
  const before = new Map<Pod, number>();
  for (const pod of pods) before.set(pod, await countRejectedReloads(pod));
  await change();
  await waitForEveryPod(what, async (pod) => (await countRejectedReloads(pod)) > (before.get(pod) ?? 0));
}

test('a new server certificate is served', async () => {
  const server = await issueServer(shop.ca);
  await shop.writeSecret('gatehouse-tls', { 'tls.crt': server.pem, 'tls.key': server.keyPem });
  await waitForEveryPod(
    'the new certificate is served',
    async ({ address }) => (await readServerCertificate(address, 8_443, shop.ca.pem)) === server.serial,
  );
});

test('a certificate with the key of another is rejected and counted, and the old one stays', async () => {
  const [broken, next] = [await issueServer(shop.ca), await issueServer(shop.ca)];
  const serials = () => Promise.all(pods.map(({ address }) => readServerCertificate(address, 8_443, shop.ca.pem)));
  const before = await serials();
  await expectRejection('the certificate with a wrong key is rejected', () =>
    shop.writeSecret('gatehouse-tls', { 'tls.crt': broken.pem, 'tls.key': next.keyPem }),
  );
  expect(await serials()).toEqual(before);
  await shop.writeSecret('gatehouse-tls', { 'tls.crt': next.pem, 'tls.key': next.keyPem });
  await waitForEveryPod(
    'the corrected certificate is served',
    async ({ address }) => (await readServerCertificate(address, 8_443, shop.ca.pem)) === next.serial,
  );
});

test('a certificate that a new CRL revokes is refused', async () => {
  const leaving = await issue(shop.ca, { commonName: 'leaving' });
  for (const pod of pods) await clientOf(pod, leaving).grant();
  const crl = await createCrl(shop.ca, { number: 2, revoked: [leaving], thisUpdate: new Date() });
  await shop.writeSecret('staff-ca', { 'ca.crt': shop.ca.pem, 'staff.crl': crl.pem });
  await waitForEveryPod('the revoked certificate is refused', async (pod) => {
    const { status } = await clientOf(pod, leaving).post('/Authorize/Certificate', GRANT);
    return status !== 200;
  });
  // The others are still accepted.
  for (const pod of pods) await clientOf(pod).grant();
});

test('a replaced client CA decides which certificates are accepted', async () => {
  const other = await createCa({ name: 'CN=other CA' });
  const newcomer = await issue(other, { commonName: 'newcomer' });
  const isGranted = async (pod: Pod, as: IssuedCertificate): Promise<boolean> =>
    (await clientOf(pod, as).post('/Authorize/Certificate', GRANT)).status === 200;
  for (const pod of pods) expect(await isGranted(pod, newcomer)).toBe(false);
  await shop.writeSecret('staff-ca', { 'ca.crt': other.pem, 'staff.crl': (await createCrl(other)).pem });
  await waitForEveryPod('the new CA is trusted', (pod) => isGranted(pod, newcomer));
  for (const pod of pods) expect(await isGranted(pod, shop.exporter)).toBe(false);
  const crl = await createCrl(shop.ca, { number: 3, thisUpdate: new Date() });
  await shop.writeSecret('staff-ca', { 'ca.crt': shop.ca.pem, 'staff.crl': crl.pem });
  await waitForEveryPod('the old CA is trusted again', (pod) => isGranted(pod, shop.exporter));
  for (const pod of pods) expect(await isGranted(pod, newcomer)).toBe(false);
});

test('rotated keys are published', async () => {
  const listKeys = async (pod: Pod): Promise<readonly unknown[]> => {
    const { json } = await clientOf(pod).get('/authsvc/oauth2/jwks');
    return (json['keys'] ?? []) as readonly unknown[];
  };
  const before = (await listKeys(pods[0] as Pod)).length;
  await rotateKeys(shop);
  await waitForEveryPod('the new key is published', async (pod) => (await listKeys(pod)).length > before);
});

test('a changed configuration applies, and an invalid one is rejected and counted', async () => {
  const read = async (): Promise<string> =>
    shop.kubectl(`get configmap gate-gatehouse -o jsonpath='{.data.gatehouse\\.yaml}'`);
  const write = (text: string): Promise<void> =>
    shop.apply({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'gate-gatehouse' },
      data: { 'gatehouse.yaml': text },
    });
  const original = await read();
  const opened = original.replace('path: /health', 'path: /status');
  expect(opened).not.toBe(original);
  await write(opened);
  await waitForEveryPod(
    'the changed route applies',
    async (pod) => (await clientOf(pod).get('/status')).status === 200,
  );
  await expectRejection('the invalid configuration is rejected', () => write(`${opened}\nnoSuchSetting: true\n`));
  for (const pod of pods) expect((await clientOf(pod).get('/status')).status).toBe(200);
  await write(original);
  await waitForEveryPod(
    'the original configuration applies',
    async (pod) => (await clientOf(pod).get('/health')).status === 200,
  );
});

test('no request failed during all changes, and no pod was restarted', async () => {
  await load.more(200);
  const report = await load.stop();
  console.log(describeLoad('changed Secrets and ConfigMaps', report));
  expect(report.failures).toEqual({});
  const after = await waitForPods(shop, GATEWAY_PODS, 2);
  expect(after.map(({ name, restarts }) => ({ name, restarts }))).toEqual(
    pods.map(({ name }) => ({ name, restarts: 0 })),
  );
});
