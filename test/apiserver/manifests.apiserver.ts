import { join } from 'node:path';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { parse } from 'yaml';
import { run, template } from '../chart/helm.ts';
import {
  type Container,
  MATRIX,
  type Manifest,
  ofKind,
  only,
  type PodSpec,
  readManifests,
  valuesFile,
} from '../chart/manifests.ts';
import { type ApiResponse, connect } from './api.ts';
import { createRestrictedNamespace, podsOf } from './namespace.ts';

const api = connect(inject('access'));
const KUSTOMIZE = join(import.meta.dirname, '../../deploy/kustomize');
const NAMESPACE = 'shop';

beforeAll(async () => {
  await createRestrictedNamespace(api, NAMESPACE);
  // In no-network-policy-values.yaml: a service account that the chart does not create.
  await api.apply({
    apiVersion: 'v1',
    kind: 'ServiceAccount',
    metadata: { name: 'shared', namespace: NAMESPACE },
  });
});

const dryRun = (object: Manifest): Promise<ApiResponse> => api.apply(object, { namespace: NAMESPACE, dryRun: true });

/** Every object must be accepted without warnings, such as deprecations and Pod Security violations. */
async function apply(objects: readonly Manifest[]): Promise<void> {
  // Pods need their service account to be validated, so only that is stored.
  for (const account of ofKind(objects, 'ServiceAccount')) await api.apply(account, { namespace: NAMESPACE });
  for (const object of [...objects, ...objects.flatMap(podsOf)]) {
    const { status, warnings, body } = await dryRun(object);
    const what = `${object.kind} ${object.metadata.name}`;
    expect([what, status < 300 ? 'taken' : body.message, ...warnings]).toEqual([what, 'taken']);
  }
}

/** A pod of another application that meets the restricted Pod Security Standard. */
const application = (extra: Partial<PodSpec> = {}): Manifest => ({
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'orders', namespace: NAMESPACE },
  spec: {
    selector: { matchLabels: { app: 'orders' } },
    template: {
      metadata: { labels: { app: 'orders' } },
      spec: {
        ...extra,
        containers: [
          {
            name: 'orders',
            image: 'registry.example.test/orders:1.4.2',
            securityContext: {
              runAsNonRoot: true,
              allowPrivilegeEscalation: false,
              capabilities: { drop: ['ALL'] },
              seccompProfile: { type: 'RuntimeDefault' },
            },
          },
          ...(extra.containers ?? []),
        ],
      },
    },
  },
});

describe('A13 an API server accepts every object', () => {
  test.each(MATRIX)('%s', async (name) => {
    const objects = readManifests(template(valuesFile(name)));
    expect(objects.length).toBeGreaterThan(3);
    await apply(objects);
  });

  test('the manifests rendered for the oldest supported Kubernetes version', async () => {
    for (const name of ['embedded', 'sidecar'])
      await apply(readManifests(template(valuesFile(name), ['--kube-version', '1.29.0'])));
  });

  test.each(['base', 'examples/existing-app'])('deploy/kustomize/%s', async (folder) => {
    const { status, stdout, stderr } = run('kustomize', ['build', join(KUSTOMIZE, folder)]);
    expect([status, stderr]).toEqual([0, '']);
    const objects = readManifests(stdout);
    const ours = objects.filter(({ metadata }) => !['orders', 'reports'].includes(metadata.name));
    await apply(ours);
    // The applications of the example are not restricted, but their Deployments are accepted.
    for (const object of objects.filter((candidate) => !ours.includes(candidate)))
      expect((await dryRun(object)).body.message).toBeUndefined();
  });

  test.each([
    { name: 'sidecar', below: 'initContainers' },
    { name: 'sidecar-plain', below: 'containers' },
    { name: 'sidecar-embedded', below: 'initContainers' },
  ] as const)('$name: the container and the volumes, added to another application’s pods', async ({ name, below }) => {
    const data =
      readManifests(template(valuesFile(name))).find((manifest) => manifest.data?.['container.yaml'])?.data ?? {};
    await apply([
      application({
        [below]: parse(data['container.yaml'] ?? '') as Container[],
        volumes: parse(data['volumes.yaml'] ?? '') as Record<string, unknown>[],
      }),
    ]);
  });
});

/** Objects with one error each, to show that the server validates them. */
const INVALID: readonly {
  name: string;
  from: string;
  kind: string;
  change: (text: string) => string;
  message: RegExp;
}[] = [
  {
    name: 'a field that does not exist',
    from: 'redis',
    kind: 'Deployment',
    change: (text) => text.replace('automountServiceAccountToken', 'automountServiceAccountTokens'),
    message: /automountServiceAccountTokens: field not declared in schema/,
  },
  {
    name: 'text for a number',
    from: 'redis',
    kind: 'Deployment',
    change: (text) => text.replace('"containerPort":8443', '"containerPort":"8443"'),
    message: /containerPort/,
  },
  {
    name: 'a mount without its volume',
    from: 'redis',
    kind: 'Deployment',
    change: (text) => text.replace('"name":"gatehouse-tls","secret"', '"name":"other","secret"'),
    message: /volumeMounts\[\d\]\.name: Not found: "gatehouse-tls"/,
  },
  {
    name: 'a selector that its pods do not match',
    from: 'redis',
    kind: 'Deployment',
    change: (text) => text.replace(/("selector":.*?"app.kubernetes.io\/component":)"gateway"/, '$1"x"'),
    message: /`selector` does not match template `labels`/,
  },
  {
    name: 'two volumes of one name',
    from: 'redis',
    kind: 'Deployment',
    change: (text) => text.replaceAll('"gatehouse-keys","secret"', '"gatehouse-tls","secret"'),
    message: /duplicate|Duplicate/,
  },
  {
    name: 'a name that no Service may have',
    from: 'redis',
    kind: 'Service',
    change: (text) => text.replace('"name":"gate-gatehouse"', '"name":"gate.gatehouse"'),
    message: /metadata\.name: Invalid value: "gate\.gatehouse"/,
  },
  {
    name: 'a node port of a Service that has none',
    from: 'redis',
    kind: 'Service',
    change: (text) => text.replace('"port":443', '"nodePort":30443,"port":443'),
    message: /nodePort: Forbidden: may not be used when `type` is 'ClusterIP'/,
  },
  {
    name: 'a policy without a peer',
    from: 'monitoring',
    kind: 'NetworkPolicy',
    change: (text) => text.replace(/"namespaceSelector":.*?"podSelector":\{.*?\}\}/, ''),
    message: /must specify a peer/,
  },
  {
    name: 'a Certificate without an Issuer',
    from: 'cert-manager',
    kind: 'Certificate',
    change: (text) => text.replace(/"issuerRef":\{.*?\}/, '"issuerRef":{}'),
    message: /spec\.issuerRef\.name: Required value/,
  },
  {
    name: 'a route with a name that is none',
    from: 'gateway-api-http',
    kind: 'HTTPRoute',
    change: (text) => text.replace('"api.example.test"', '"https://api.example.test"'),
    message: /spec\.hostnames\[0\]: Invalid value/,
  },
  {
    name: 'a monitor with a field of another kind',
    from: 'monitoring',
    kind: 'ServiceMonitor',
    change: (text) => text.replace('"endpoints"', '"podMetricsEndpoints"'),
    message: /podMetricsEndpoints: field not declared in schema/,
  },
  {
    name: 'an autoscaler with fewer pods at most than at least',
    from: 'autoscaling',
    kind: 'HorizontalPodAutoscaler',
    change: (text) => text.replace('"maxReplicas":12', '"maxReplicas":2'),
    message: /maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`/,
  },
];

describe('A13 an API server rejects', () => {
  test.each(INVALID)('$name', async ({ from, kind, change, message }) => {
    const valid = ofKind(readManifests(template(valuesFile(from))), kind)[0];
    const text = JSON.stringify(valid);
    const changed = change(text);
    expect(changed).not.toBe(text);
    const { status, body } = await dryRun(JSON.parse(changed) as Manifest);
    expect([status >= 400, body.message]).toEqual([true, expect.stringMatching(message)]);
  });

  test.each([
    { name: 'root', change: { runAsNonRoot: false, runAsUser: 0 }, message: 'runAsNonRoot' },
    { name: 'kept capabilities', change: { capabilities: {} }, message: 'unrestricted capabilities' },
    {
      name: 'more privileges',
      change: { allowPrivilegeEscalation: true },
      message: 'allowPrivilegeEscalation',
    },
    {
      name: 'no seccomp profile',
      change: { seccompProfile: { type: 'Unconfined' } },
      message: 'seccompProfile',
    },
  ])('in a restricted namespace, a gatehouse pod with $name', async ({ change, message }) => {
    const objects = readManifests(template(valuesFile('redis')));
    await api.apply(only(ofKind(objects, 'ServiceAccount')));
    const pod = only(ofKind(objects, 'Deployment').flatMap(podsOf));
    const spec = pod.spec as unknown as PodSpec;
    const [container] = spec.containers ?? [];
    const { securityContext, ...rest } = container ?? ({} as Container);
    expect((await dryRun(pod)).status).toBe(201);
    const open = { ...rest, securityContext: { ...securityContext, ...change } };
    const { status, body } = await dryRun({ ...pod, spec: { ...pod.spec, containers: [open] } });
    expect([status, body.message]).toEqual([
      403,
      expect.stringMatching(new RegExp(`violates PodSecurity "restricted.*${message}`)),
    ]);
  });

  test('an object accepted in a dry run is not stored', async () => {
    const path = await api.pathOf({ apiVersion: 'apps/v1', kind: 'Deployment' }, NAMESPACE);
    expect((await api.call('GET', path)).body['items']).toEqual([]);
  });
});
