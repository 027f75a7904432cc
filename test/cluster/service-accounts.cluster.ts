import { basename, dirname } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SERVICE_ACCOUNT_TOKEN_FILE } from '../../src/client/service-account-token.ts';
import { until } from '../support/until.ts';
import { IMAGES } from './images.ts';
import { createShop, gatewayValues, redisStore, type Shop, startGateway } from './shop.ts';

/** docs/trusted-issuers.md with projected service account tokens of running pods. */
let shop: Shop;

beforeAll(async () => {
  shop = await createShop('workloads');
  const { config, ...values } = gatewayValues(shop.namespace);
  await startGateway(shop, {
    ...values,
    ...redisStore(shop.namespace),
    kubernetesIssuer: { enabled: true },
    config: {
      ...config,
      integrations: [
        ...config.integrations,
        {
          clientId: 'shop-jobs',
          scope: 'files:read',
          exchange: [{ issuer: 'cluster', subject: 'system:serviceaccount:workloads:builder' }],
        },
      ],
    },
  });
  for (const name of ['builder', 'other'])
    await shop.apply({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name } });
  await shop.writeSecret('client-trust', { 'ca.crt': shop.ca.pem });
});
afterAll(() => shop?.remove());

/** Runs `gatehouse token --service-account` in a pod, as documented; returns the last lines of its log and its exit code. */
async function runJob(
  name: string,
  account: string,
  audience = 'gatehouse',
): Promise<{ readonly code: number; readonly log: string }> {
  const address = await shop.addressOf('gate-gatehouse');
  await shop.apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name },
    spec: {
      restartPolicy: 'Never',
      serviceAccountName: account,
      automountServiceAccountToken: false,
      hostAliases: [{ ip: address, hostnames: ['api.example.test'] }],
      securityContext: { runAsNonRoot: true, seccompProfile: { type: 'RuntimeDefault' } },
      containers: [
        {
          name: 'job',
          image: IMAGES.gatehouse,
          args: ['token', '--service-account', '--client', 'shop-jobs', '--scope', 'files:read'],
          env: [
            { name: 'GATEHOUSE_URL', value: 'https://api.example.test' },
            { name: 'GATEHOUSE_CACERT', value: '/trust/ca.crt' },
            { name: 'GATEHOUSE_HOME', value: '/nonexistent' },
          ],
          securityContext: {
            allowPrivilegeEscalation: false,
            capabilities: { drop: ['ALL'] },
            readOnlyRootFilesystem: true,
          },
          volumeMounts: [
            { name: 'token', mountPath: dirname(SERVICE_ACCOUNT_TOKEN_FILE), readOnly: true },
            { name: 'trust', mountPath: '/trust', readOnly: true },
          ],
        },
      ],
      volumes: [
        {
          name: 'token',
          projected: {
            sources: [
              {
                serviceAccountToken: {
                  path: basename(SERVICE_ACCOUNT_TOKEN_FILE),
                  audience,
                  expirationSeconds: 600,
                },
              },
            ],
          },
        },
        { name: 'trust', secret: { secretName: 'client-trust' } },
      ],
    },
  });
  const code = await until(
    `the job ${name} has ended`,
    async () => {
      const path = '{.status.containerStatuses[0].state.terminated.exitCode}';
      const text = await shop.kubectl(`get pod ${name} -o jsonpath='${path}'`);
      return text === '' ? undefined : `code ${text}`;
    },
    120,
  );
  return { code: Number(code.slice('code '.length)), log: await shop.kubectl(`logs ${name}`) };
}

test('a pod exchanges its projected token for an access token', async () => {
  const { code, log } = await runJob('job', 'builder');
  expect({ code, log: code === 0 ? '' : log }).toEqual({ code: 0, log: '' });
  const client = await shop.connect('gate-gatehouse');
  const reply = await client.get('/files/a', log.trim());
  expect(reply.status, reply.text).toBe(200);
  const headers = reply.json['headers'] as Readonly<Record<string, readonly string[]>>;
  expect(headers['X-Forwarded-Preferred-Username']).toEqual(['system:serviceaccount:workloads:builder']);
});

test.each([
  { name: 'of another service account', account: 'other', audience: 'gatehouse' },
  { name: 'with another audience', account: 'builder', audience: 'another-api' },
])('a token $name is refused', async ({ account, audience }) => {
  const { code, log } = await runJob(`refused-${account}-${audience}`, account, audience);
  expect(code).not.toBe(0);
  expect(log).not.toMatch(/eyJ/);
});
