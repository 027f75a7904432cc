import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import {
  containersOf,
  findGatehouse,
  golden,
  MATRIX,
  type Manifest,
  ofKind,
  only,
  podSpecs,
} from '../chart/manifests.ts';

/** The model of an API object, which validates itself. */
async function loadModel({ apiVersion, kind }: Manifest): Promise<new (data: unknown) => { validate(): void }> {
  const [group = '', version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion];
  const home = group.endsWith('coreos.com')
    ? `@kubernetes-models/prometheus-operator/${group}`
    : group === 'cert-manager.io'
      ? `@kubernetes-models/cert-manager/${group}`
      : group.startsWith('gateway.')
        ? `@kubernetes-models/gateway-api/${group}`
        : join('kubernetes-models', group);
  const module = (await import(`${home}/${version}/${kind}`)) as Record<string, never>;
  const model = module[kind];
  if (model === undefined) throw new Error(`no model of ${apiVersion} ${kind}`);
  return model;
}

describe.each(MATRIX)('%s', (name) => {
  const objects = golden(name);

  test('A1 every object is valid for its API version', async () => {
    for (const object of objects) {
      const Model = await loadModel(object);
      expect(() => new Model(object).validate(), `${object.kind} ${object.metadata.name}`).not.toThrow();
    }
  });

  test('A4 O11 every container is hardened', () => {
    const pods = podSpecs(objects);
    expect(pods.length).toBeGreaterThan(0);
    for (const { where, spec, isOurs } of pods) {
      if (isOurs) {
        expect(spec.automountServiceAccountToken, where).toBe(false);
        expect(spec.securityContext, where).toMatchObject({
          runAsNonRoot: true,
          runAsUser: 65_532,
          fsGroupChangePolicy: 'OnRootMismatch',
          seccompProfile: { type: 'RuntimeDefault' },
        });
        // The grace period must exceed the program's shutdown time.
      }
      for (const container of containersOf(spec)) {
        expect(container.securityContext, `${where}: ${container.name}`).toEqual({
          runAsNonRoot: true,
          runAsUser: 65_532,
          runAsGroup: 65_532,
          privileged: false,
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
          seccompProfile: { type: 'RuntimeDefault' },
        });
        expect(container.resources?.requests, where).toMatchObject({
          cpu: expect.any(String),
          memory: expect.any(String),
        });
        expect(container.resources?.limits, where).toMatchObject({ memory: expect.any(String) });
        for (const { name: variable, value } of container.env ?? [])
          if (value !== undefined) expect(variable).not.toMatch(/PASSWORD|SECRET|TOKEN|KEY/);
      }
      // No host namespaces or paths.
      expect(JSON.stringify(spec)).not.toMatch(/hostPath|hostNetwork|hostPID|hostIPC|hostPort/);
    }
    for (const account of ofKind(objects, 'ServiceAccount')) expect(account.automountServiceAccountToken).toBe(false);
  });

  test('A4 no ConfigMap contains a secret', () => {
    for (const { data = {} } of ofKind(objects, 'ConfigMap'))
      for (const text of Object.values(data)) {
        expect(text).not.toMatch(/PRIVATE KEY|argon2|"d":|ghr_|eyJ/);
        expect(text).not.toMatch(/^\s*(password|passwordHash|clientSecret|bindPassword|token):/m);
        expect(text).not.toMatch(/redis[a-z+]*:\/\/[^/@\s]*:[^/@\s]+@/);
      }
  });

  test('A6 every port of a Service or policy exists in gatehouse’s container', () => {
    const ports = findGatehouse(objects).ports ?? [];
    expect(ports.map((port) => port.name)).toEqual(['gatehouse', 'gh-admin']);
    const services = ofKind(objects, 'Service').filter((service) => !service.metadata.name.endsWith('valkey'));
    for (const { spec } of services)
      for (const { targetPort } of (spec?.['ports'] ?? []) as { targetPort: string }[])
        expect(ports.map((port) => port.name)).toContain(targetPort);
    const policies = ofKind(objects, 'NetworkPolicy').filter(({ metadata }) => !metadata.name.endsWith('valkey'));
    for (const { spec } of policies) {
      const rules = spec?.['ingress'] as { ports: { port: number }[]; from?: unknown[] }[];
      const [https, admin] = ports.map((port) => port.containerPort);
      expect(rules[0]?.ports).toEqual([{ port: https, protocol: 'TCP' }]);
      // An empty list would allow everyone.
      for (const { ports: open, from = [] } of rules)
        if (open.some(({ port }) => port === admin)) expect(from.length).toBeGreaterThan(0);
      if (name !== 'sidecar-plain') expect(rules.length).toBe(name.startsWith('sidecar') ? 1 : 2);
    }
  });

  test('every object is in the namespace of the release and has its labels', () => {
    for (const { kind, metadata } of objects.filter(({ metadata: { name: own } }) => !/-(extra|text)$/.test(own))) {
      // Cluster-scoped objects have the namespace in their name.
      if (kind === 'ClusterRoleBinding') expect(metadata.name).toBe('shop-gate-gatehouse-issuer-discovery');
      else expect([kind, metadata.namespace]).toEqual([kind, 'shop']);
      expect(metadata.labels).toMatchObject({ 'app.kubernetes.io/instance': 'gate' });
    }
  });
});

describe('A6 one container for gateway and sidecar', () => {
  const bodies = {
    gateway: findGatehouse(golden('redis')),
    native: findGatehouse(golden('sidecar')),
    plain: findGatehouse(golden('sidecar-plain')),
  };

  test('the container body is the same, except for the restart policy and the preStop hook of a native sidecar', () => {
    const { restartPolicy, lifecycle, ...native } = bodies.native;
    expect(restartPolicy).toBe('Always');
    expect(lifecycle).toEqual({ preStop: { exec: { command: ['/usr/local/bin/gatehouse', 'drain', '5'] } } });
    expect(native).toEqual(bodies.gateway);
    expect(bodies.plain).toEqual(bodies.gateway);
  });

  test('a native sidecar is an init container, a plain one a container', () => {
    const patch = (name: string) => only(podSpecs(golden(name))).spec;
    expect(patch('sidecar').initContainers?.map(({ name }) => name)).toEqual(['gatehouse']);
    expect(patch('sidecar').containers).toBeUndefined();
    expect(patch('sidecar-plain').containers?.map(({ name }) => name)).toEqual(['gatehouse']);
    expect(patch('sidecar-plain').initContainers).toBeUndefined();
  });

  test('the companion renders no workload, and everything selects the pods of the application', () => {
    const objects = golden('sidecar');
    expect(objects.map(({ kind }) => kind).sort()).toEqual(['ConfigMap', 'ConfigMap', 'NetworkPolicy', 'Service']);
    expect(only(ofKind(objects, 'Service')).spec?.['selector']).toEqual({ app: 'orders' });
    expect(only(ofKind(objects, 'NetworkPolicy')).spec?.['podSelector']).toEqual({
      matchLabels: { app: 'orders' },
    });
    expect(only(ofKind(golden('sidecar-plain'), 'PodMonitor')).spec?.['selector']).toEqual({
      matchLabels: { app: 'orders' },
    });
  });

  test('every mount has a volume, with the file modes that a foreign pod needs', () => {
    for (const name of MATRIX)
      for (const { where, spec, isOurs } of podSpecs(golden(name))) {
        const volumes = (spec.volumes ?? []) as {
          name: string;
          secret?: { defaultMode: number };
          projected?: { defaultMode: number };
        }[];
        const claims = JSON.stringify(golden(name)).includes('volumeClaimTemplates') ? ['gatehouse-data'] : [];
        for (const container of containersOf(spec))
          for (const mount of container.volumeMounts ?? [])
            expect([...volumes.map((volume) => volume.name), ...claims], where).toContain(mount.name);
        for (const { secret, projected = secret } of volumes)
          if (projected) expect([where, projected.defaultMode]).toEqual([where, isOurs ? 0o440 : 0o444]);
      }
  });

  test('the token for the API server is mounted only where the cluster is a trusted issuer', () => {
    for (const name of MATRIX)
      for (const { where, spec } of podSpecs(golden(name))) {
        const mounts = containersOf(spec).filter(({ volumeMounts = [] }) =>
          volumeMounts.some((mount) => mount.name === 'gatehouse-kubernetes'),
        );
        const isMounted = name.endsWith('kubernetes-issuer') && !where.startsWith('Pod ');
        expect([name, where, mounts.map((container) => container.name)]).toEqual([
          name,
          where,
          isMounted ? ['gatehouse'] : [],
        ]);
        expect([name, where, JSON.stringify(spec).includes('serviceAccountToken')]).toEqual([name, where, isMounted]);
      }
    const projected = (name: string): unknown =>
      only(podSpecs(golden(name)).filter(({ where }) => !where.startsWith('Pod '))).spec.volumes?.find(
        (volume) => volume['name'] === 'gatehouse-kubernetes',
      )?.['projected'];
    const ca = { configMap: { name: 'kube-root-ca.crt', items: [{ key: 'ca.crt', path: 'ca.crt' }] } };
    expect(projected('kubernetes-issuer')).toEqual({
      defaultMode: 0o440,
      sources: [ca, { serviceAccountToken: { path: 'token', expirationSeconds: 3_600 } }],
    });
    expect(projected('sidecar-kubernetes-issuer')).toEqual({
      defaultMode: 0o444,
      sources: [
        ca,
        {
          serviceAccountToken: {
            path: 'issuer-token',
            expirationSeconds: 7_200,
            audience: 'https://kubernetes.default.svc',
          },
        },
      ],
    });
  });

  test('the patch, the container and the volumes of the snippet agree', () => {
    const data = golden('sidecar').find((object) => object.data?.['patch.yaml'])?.data ?? {};
    const patch = parse(data['patch.yaml'] ?? '') as {
      spec: { template: { spec: Record<string, unknown> } };
    };
    expect(patch.spec.template.spec['initContainers']).toEqual(parse(data['container.yaml'] ?? ''));
    expect(patch.spec.template.spec['volumes']).toEqual(parse(data['volumes.yaml'] ?? ''));
  });
});
