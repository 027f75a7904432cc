import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { parse } from 'yaml';
import { SERVICE_ACCOUNT_TOKEN_FILE } from '../../src/client/service-account-token.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { templateWith } from '../chart/helm.ts';
import { type Manifest, ofKind, only, podSpecs, readManifests, valuesFile } from '../chart/manifests.ts';
import { runGatehouse } from '../support/command-line.ts';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import type { Reply } from '../support/https-client.ts';
import { exchangeFields } from '../support/oauth-client.ts';
import {
  type Client,
  connect as connectTo,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { type Api, type ApiResponse, connect } from './api.ts';

/** Follows docs/trusted-issuers.md with tokens of a real API server, and with the chart. */
const NAMESPACE = 'workloads';
const BUILDER = 'system:serviceaccount:workloads:builder';
const DISCOVERY = 'system:service-account-issuer-discovery';
const BINDINGS = '/apis/rbac.authorization.k8s.io/v1/clusterrolebindings';

const access = inject('access');
const api: Api = connect(access);

interface TokenSource {
  readonly path: string;
  readonly audience?: string;
  readonly expirationSeconds: number;
}
interface ProjectedVolume {
  readonly name: string;
  readonly projected?: {
    readonly sources: readonly {
      readonly serviceAccountToken?: TokenSource;
      readonly configMap?: { readonly items: readonly { readonly path: string }[] };
    }[];
  };
}

/** What the kubelet requests for a projected volume (TokenRequest). */
async function requestToken(
  account: string,
  { audience, expirationSeconds }: Pick<TokenSource, 'audience' | 'expirationSeconds'>,
  { pod, namespace = NAMESPACE }: { readonly pod?: string; readonly namespace?: string } = {},
): Promise<string> {
  const path = `/api/v1/namespaces/${namespace}/serviceaccounts/${account}/token`;
  const spec = {
    audiences: audience === undefined ? [] : [audience],
    expirationSeconds,
    ...(pod !== undefined && { boundObjectRef: { apiVersion: 'v1', kind: 'Pod', name: pod } }),
  };
  const request = { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec };
  const { status, body } = await api.call('POST', path, JSON.stringify(request));
  expect([status, body.message]).toEqual([201, undefined]);
  return (body['status'] as { readonly token: string }).token;
}

const requestBuilderToken = (where?: { readonly pod?: string; readonly namespace?: string }): Promise<string> =>
  requestToken('builder', { audience: 'gatehouse', expirationSeconds: 600 }, where);

/** Writes the files of a projected volume, as the kubelet does. */
async function mount(folder: ServeFolder, account: string, { name, projected }: ProjectedVolume): Promise<void> {
  for (const { serviceAccountToken: source, configMap } of projected?.sources ?? []) {
    if (source !== undefined) folder.write(join(name, source.path), `${await requestToken(account, source)}\n`);
    for (const { path } of configMap?.items ?? []) folder.write(join(name, path), access.ca);
  }
}

/** The YAML of docs/trusted-issuers.md that contains this text. */
function readDocumented(text: string): Record<string, unknown> {
  const page = readFileSync(join(import.meta.dirname, '../../docs/trusted-issuers.md'), 'utf8');
  const blocks = [...page.matchAll(/^( *)```yaml.*\n([\s\S]*?)^ *```$/gm)].map(([, indent = '', block = '']) =>
    block.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
  );
  return parse(only(blocks.filter((block) => block.includes(text)))) as Record<string, unknown>;
}

const folders: ServeFolder[] = [];
const clients: Client[] = [];

interface Running {
  readonly folder: ServeFolder;
  readonly server: ServeProcess;
  readonly call: (path: string, token: string) => Promise<Reply>;
  readonly exchange: (token: string) => Promise<Reply>;
}

async function startGatehouse(
  trustedIssuers: SettingsInput['trustedIssuers'],
  prepare: (folder: ServeFolder) => Promise<void> = async () => {},
): Promise<Running> {
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      trustedIssuers,
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'shop-jobs',
          scope: 'files:read',
          exchange: [{ issuer: 'cluster', subject: 'system:serviceaccount:workloads:*' }],
        },
      ],
      routes: [...(settings.routes ?? []), { path: '/direct/**', requires: 'files:read', issuers: ['own', 'cluster'] }],
    }),
    ({ headers }, response) =>
      void response.setHeader('content-type', 'application/json').end(JSON.stringify({ headers })),
  );
  folders.push(folder);
  await prepare(folder);
  const server = await startServe(folder);
  const client = connectTo(folder, server.port);
  clients.push(client);
  return {
    folder,
    server,
    call: (path, token) => client.getWithToken(path, token),
    exchange: (token) =>
      client.request({
        path: '/authsvc/oauth2/token',
        method: 'POST',
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
        body: new URLSearchParams({ ...exchangeFields(token), client_id: 'shop-jobs' }).toString(),
      }),
  };
}

/** Start-up does not wait for the keys. */
const waitForKeys = ({ call }: Running, token: string): Promise<unknown> =>
  until('the keys are fetched', async () => (await call('/direct/1', token)).status !== 503, 60);

const issuerSettings = (name: string): NonNullable<SettingsInput['trustedIssuers']>[string] => ({
  issuer: access.url,
  audience: 'gatehouse',
  ca: `${name}/ca.crt`,
  bearerTokenFile: `${name}/token`,
  claims: { name: 'sub' },
  scope: 'files:read',
});

const CREDENTIALS: ProjectedVolume = {
  name: 'credentials',
  projected: {
    sources: [
      { configMap: { items: [{ path: 'ca.crt' }] } },
      { serviceAccountToken: { path: 'token', expirationSeconds: 3_600 } },
    ],
  },
};

let gatehouse: Running;
beforeAll(async () => {
  const objects: readonly Manifest[] = [
    { apiVersion: 'v1', kind: 'Namespace', metadata: { name: NAMESPACE } },
    ...['builder', 'gatehouse', 'gate-gatehouse'].map((name) => ({
      apiVersion: 'v1',
      kind: 'ServiceAccount',
      metadata: { name, namespace: NAMESPACE },
    })),
  ];
  for (const object of objects) {
    const { status, body } = await api.apply(object);
    expect([status, body.message]).toEqual([201, undefined]);
  }
  // Keys by discovery.
  gatehouse = await startGatehouse({ cluster: issuerSettings('credentials') }, (folder) =>
    mount(folder, 'gatehouse', CREDENTIALS),
  );
  await waitForKeys(gatehouse, await requestBuilderToken());
});
afterAll(async () => {
  for (const client of clients) client.close();
  for (const folder of folders) await folder.remove();
});

const forwardedHeaders = (reply: Reply): unknown => {
  expect(reply.status, reply.text).toBe(200);
  return reply.json['headers'];
};

describe('a projected token of a service account', () => {
  test('is accepted on a route that lists the cluster, and the upstream gets the readable identity', async () => {
    const token = await requestBuilderToken();
    expect(forwardedHeaders(await gatehouse.call('/direct/1', token))).toMatchObject({
      'x-forwarded-user': `cluster:${BUILDER}`,
      'x-forwarded-preferred-username': BUILDER,
      'x-forwarded-scope': 'files:read',
    });
    expect((await gatehouse.call('/files/1', token)).status).toBe(401);
  });

  test('is exchanged for an access token of gatehouse', async () => {
    const reply = await gatehouse.exchange(await requestBuilderToken());
    expect(reply.status, reply.text).toBe(200);
    expect(reply.json).toMatchObject({ token_type: 'Bearer', scope: 'files:read' });
    const issued = String(reply.json['access_token']);
    expect(forwardedHeaders(await gatehouse.call('/files/1', issued))).toMatchObject({
      'x-forwarded-user': `cluster:${BUILDER}`,
      'x-forwarded-preferred-username': BUILDER,
      'x-forwarded-client-id': 'shop-jobs',
    });
  });

  test('is exchanged by `gatehouse token --service-account` in a pod as documented', async () => {
    const { spec } = readDocumented('serviceAccountName: builder') as {
      readonly spec: {
        readonly containers: readonly { readonly volumeMounts: readonly { readonly mountPath: string }[] }[];
        readonly volumes: readonly ProjectedVolume[];
      };
    };
    const volume = only(spec.volumes);
    const { mountPath } = only(only(spec.containers).volumeMounts);
    const source = only(volume.projected?.sources ?? []).serviceAccountToken;
    expect(join(mountPath, source?.path ?? '')).toBe(SERVICE_ACCOUNT_TOKEN_FILE);
    const { folder, server, call } = gatehouse;
    await mount(folder, 'builder', volume);
    const args = ['token', '--service-account', '--client', 'shop-jobs', '--scope', 'files:read'];
    const result = await runGatehouse([...args, '--url', `https://localhost:${server.port}`], {
      cwd: folder.path,
      env: {
        GATEHOUSE_CACERT: 'ca.pem',
        GATEHOUSE_TOKEN_FILE: join(volume.name, source?.path ?? ''),
        GATEHOUSE_HOME: '/nonexistent/read-only',
      },
      timeoutMs: 110_000,
    });
    expect(result).toMatchObject({ code: 0, stderr: '' });
    expect((await call('/files/1', result.stdout.trim())).status).toBe(200);
  });

  test.each([
    { name: 'another audience', audience: 'another-api' },
    { name: 'the audience of the API server', audience: undefined },
  ])('with $name is refused', async ({ audience }) => {
    const token = await requestToken('builder', {
      ...(audience !== undefined && { audience }),
      expirationSeconds: 600,
    });
    await expectRefused(token);
  });

  test('of another cluster with the same issuer and subject is refused', async () => {
    const { header, claims } = decodeJwt(await requestBuilderToken());
    const otherCluster = await createForeignKey('RS256', String(header['kid']));
    await expectRefused(await signForeign(otherCluster, claims));
    await expectRefused(await signForeign(otherCluster, claims, { kid: 'of-the-other-cluster' }));
    // The same claims with the right key are accepted.
    expect((await gatehouse.call('/direct/1', await requestBuilderToken())).status).toBe(200);
  });

  test('of a service account outside the entries of `exchange` is not exchanged', async () => {
    const namespace = 'workloads-elsewhere';
    await api.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } });
    await api.apply({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 'builder', namespace } });
    const token = await requestBuilderToken({ namespace });
    expect(await gatehouse.exchange(token)).toMatchObject({
      status: 400,
      json: { error: 'invalid_request' },
    });
  });

  test('bound to a deleted pod is accepted until it expires, as documented', async () => {
    const metadata = { name: 'job', namespace: NAMESPACE };
    const containers = [{ name: 'job', image: 'registry.example.test/job:1' }];
    const spec = { serviceAccountName: 'builder', containers };
    const created = await api.apply({ apiVersion: 'v1', kind: 'Pod', metadata, spec });
    expect([created.status, created.body.message]).toEqual([201, undefined]);
    const token = await requestBuilderToken({ pod: 'job' });
    expect(decodeJwt(token).claims).toMatchObject({ 'kubernetes.io': { pod: { name: 'job' } } });
    expect(await review(token)).toBe(true);
    const path = `/api/v1/namespaces/${NAMESPACE}/pods/job?gracePeriodSeconds=0`;
    expect((await api.call('DELETE', path)).status).toBe(200);
    await until('the API server refuses the token', async () => !(await review(token)), 60);
    expect((await gatehouse.call('/direct/1', token)).status).toBe(200);
    expect((await gatehouse.exchange(token)).status).toBe(200);
  });
});

async function expectRefused(token: string): Promise<void> {
  expect((await gatehouse.call('/direct/1', token)).status).toBe(401);
  expect(await gatehouse.exchange(token)).toMatchObject({ status: 400, json: { error: 'invalid_request' } });
}

/** Whether the API server itself accepts the token (TokenReview). */
async function review(token: string): Promise<boolean> {
  const spec = { token, audiences: ['gatehouse'] };
  const { body } = await api.call(
    'POST',
    '/apis/authentication.k8s.io/v1/tokenreviews',
    JSON.stringify({ apiVersion: 'authentication.k8s.io/v1', kind: 'TokenReview', spec }),
  );
  return (body['status'] as { readonly authenticated?: boolean }).authenticated === true;
}

test('the documented command prints the issuer', () => {
  const args = ['get', '--raw', '/.well-known/openid-configuration'];
  const { stdout } = spawnSync(clusterProgram('kubectl'), ['--kubeconfig', inject('kubeconfig'), ...args], {
    encoding: 'utf8',
  });
  expect(JSON.parse(stdout)).toMatchObject({
    issuer: access.url,
    jwks_uri: `${access.url}/openid/v1/jwks`,
  });
});

test('without a bearer token the API server refuses gatehouse, and tokens of the cluster get 503', async () => {
  const { bearerTokenFile: _, ...anonymous } = issuerSettings('credentials');
  const refused = await startGatehouse({ cluster: anonymous }, (folder) => mount(folder, 'gatehouse', CREDENTIALS));
  await until('issuer_unavailable is logged', () =>
    refused.server.log.find(({ event }) => event === 'issuer_unavailable'),
  );
  const token = await requestBuilderToken();
  expect((await refused.call('/direct/1', token)).status).toBe(503);
  expect(await refused.exchange(token)).toMatchObject({
    status: 503,
    json: { error: 'temporarily_unavailable' },
  });
});

describe('the chart', () => {
  const render = (kubernetesIssuer: object): readonly Manifest[] => {
    const values = {
      kubernetesIssuer: { issuer: access.url, config: { scope: 'files:read' }, ...kubernetesIssuer },
    };
    const { stdout, stderr } = templateWith(valuesFile('kubernetes-issuer'), values, ['--namespace', NAMESPACE]);
    expect(stderr).toBe('');
    return readManifests(stdout);
  };
  const isAllowed = async (account: string): Promise<boolean> => {
    const token = await requestToken(account, { expirationSeconds: 600 });
    const { status: code } = await connect({ ...access, token }).call('GET', '/.well-known/openid-configuration');
    expect([200, 403]).toContain(code);
    return code === 200;
  };

  test.each([
    { name: 'the default URL', values: {} },
    {
      name: 'another URL of the API server',
      // The API server accepts tokens for its issuer.
      values: { jwksUri: `${access.url}/openid/v1/jwks`, serviceAccountToken: { audience: access.url } },
    },
  ])('its issuer and its volume are all that gatehouse needs, with $name', async ({ values }) => {
    const objects = render(values);
    const text = objects.find(({ data }) => data?.['gatehouse.yaml'])?.data?.['gatehouse.yaml'] ?? '';
    const { trustedIssuers } = parse(
      text
        .replaceAll('/etc/gatehouse/kubernetes/', 'gatehouse-kubernetes/')
        // Without kube-proxy and DNS, the name has no address.
        .replace('https://kubernetes.default.svc/', `${access.url}/`),
    ) as SettingsInput;
    const { spec } = only(podSpecs(ofKind(objects, 'Deployment')));
    const volume = ((spec.volumes ?? []) as readonly unknown[] as readonly ProjectedVolume[]).find(
      ({ name }) => name === 'gatehouse-kubernetes',
    );
    const deployed = await startGatehouse(trustedIssuers, (folder) =>
      mount(folder, 'gate-gatehouse', volume ?? { name: '' }),
    );
    const token = await requestBuilderToken();
    await waitForKeys(deployed, token);
    expect((await deployed.call('/direct/1', token)).status).toBe(200);
    expect((await deployed.exchange(token)).status).toBe(200);
  });

  test('its ClusterRoleBinding allows reading the keys where service accounts may not', async () => {
    const original = await api.call('GET', `${BINDINGS}/${DISCOVERY}`);
    expect(original.body['subjects']).toEqual([
      { apiGroup: 'rbac.authorization.k8s.io', kind: 'Group', name: 'system:serviceaccounts' },
    ]);
    expect((await api.call('DELETE', `${BINDINGS}/${DISCOVERY}`)).status).toBe(200);
    try {
      await until('the binding is gone', async () => !(await isAllowed('gate-gatehouse')), 60);
      const applied: ApiResponse = await api.apply(only(ofKind(render({}), 'ClusterRoleBinding')));
      expect([applied.status, applied.body.message]).toEqual([201, undefined]);
      await until('the binding applies', () => isAllowed('gate-gatehouse'), 60);
      expect(await isAllowed('builder')).toBe(false);
    } finally {
      const { metadata, roleRef, subjects } = original.body as unknown as Record<string, object>;
      const { labels, annotations } = metadata as { readonly labels: object; readonly annotations: object };
      await api.call(
        'POST',
        BINDINGS,
        JSON.stringify({ metadata: { name: DISCOVERY, labels, annotations }, roleRef, subjects }),
      );
    }
  });
});
