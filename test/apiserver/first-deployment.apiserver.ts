import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { program } from '../../tools/chart/install.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { type Api, connect } from './api.ts';
import { restrictedNamespace } from './namespace.ts';

/** docs/kubernetes.md, step by step, by somebody who does what it says. */
const ROOT = join(import.meta.dirname, '../..');
const NAMESPACE = 'newcomer';
const api: Api = connect(inject('access'));
let folder = '';

/** Nothing runs in this cluster, so nobody can wait for pods in it. */
const NEEDS_NODES = /rollout status|^helm .* test /;

interface Block {
  readonly kind: string;
  readonly text: string;
}

const page = readFileSync(join(ROOT, 'docs/kubernetes.md'), 'utf8').replaceAll('-n shop', `-n ${NAMESPACE}`);
const blocks: readonly Block[] = [
  ...page.matchAll(/^```(yaml values|sh illustrative.*)\n([\s\S]*?)^```$/gm),
].map(([, kind = '', text = '']) => ({ kind, text }));

beforeAll(async () => {
  await restrictedNamespace(api, NAMESPACE);
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-newcomer-'));
  mkdirSync(join(folder, 'bin'));
  const gatehouse = `#!/bin/sh\nexec '${process.execPath}' '${join(ROOT, 'src/main.ts')}' "$@"\n`;
  writeFileSync(join(folder, 'bin/gatehouse'), gatehouse, { mode: 0o755 });
  symlinkSync(clusterProgram('kubectl'), join(folder, 'bin/kubectl'));
  symlinkSync(program('helm'), join(folder, 'bin/helm'));
  symlinkSync(join(ROOT, 'helm'), join(folder, 'helm'));
  const ca = await createCa();
  const server = await issueServer(ca);
  const files = {
    'server.pem': server.pem,
    'server-key.pem': server.keyPem,
    'ca.crt': ca.pem,
    password: 'x\n',
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text, { mode: 0o600 });
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function ran(text: string): {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
} {
  const { status, stdout, stderr } = spawnSync('bash', ['--norc', '-euo', 'pipefail', '-c', text], {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: folder,
    encoding: 'utf8',
    timeout: 110_000,
    env: {
      PATH: `${join(folder, 'bin')}:${process.env['PATH'] ?? ''}`,
      HOME: folder,
      KUBECONFIG: inject('kubeconfig'),
    },
  });
  return { status, stdout, stderr };
}

/** It succeeds, and has nothing to complain about. */
function shell(text: string): string {
  const { status, stdout, stderr } = ran(text);
  expect({ text, status, stderr }).toEqual({ text, status: 0, stderr: '' });
  return stdout;
}

const followed = (text: string): string =>
  shell(
    text
      .split('\n')
      .filter((line) => !NEEDS_NODES.test(line))
      .join('\n'),
  );

const one = (kind: string, name: string, field: string): string =>
  shell(`kubectl -n ${NAMESPACE} get ${kind} ${name} -o jsonpath='{${field}}'`);

const APPLICATION = `
apiVersion: apps/v1
kind: Deployment
metadata: { name: orders }
spec:
  selector: { matchLabels: { app: orders } }
  template:
    metadata: { labels: { app: orders } }
    spec:
      terminationGracePeriodSeconds: 300
      securityContext: { runAsNonRoot: true, seccompProfile: { type: RuntimeDefault } }
      initContainers:
        - name: migrate
          image: orders
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
      containers:
        - name: orders
          image: orders
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
`;

describe('docs/kubernetes.md', () => {
  test('every command works in its turn', () => {
    writeFileSync(join(folder, 'application.yaml'), APPLICATION);
    shell(`kubectl -n ${NAMESPACE} create -f application.yaml`);
    let ran = 0;
    for (const { kind, text } of blocks) {
      // "values.yaml" of the commands that follow.
      if (kind === 'yaml values') writeFileSync(join(folder, 'values.yaml'), text);
      if (kind !== 'sh illustrative') continue;
      // The way to upgrade is shown for the gateway.
      if (text.includes('upgrade gate ')) writeFileSync(join(folder, 'values.yaml'), blocks[1]?.text ?? '');
      followed(text);
      ran++;
    }
    expect(ran).toBeGreaterThan(5);
    expect(one('deployment', 'gate-gatehouse', '.spec.replicas')).toBe('2');
    expect(one('secret', 'gatehouse-keys', '.metadata.annotations')).toBe('');
  });

  test('the patch put gatehouse first, once, and left what was there as it was', () => {
    const spec = '.spec.template.spec';
    expect(one('deployment', 'orders', `${spec}.initContainers[*].name`)).toBe('gatehouse migrate');
    expect(one('deployment', 'orders', `${spec}.terminationGracePeriodSeconds`)).toBe('300');
    const again = shell(`kubectl -n ${NAMESPACE} patch deployment orders --patch-file gatehouse-patch.yaml`);
    expect(again).toContain('patched (no change)');
  });

  test('every Secret and ConfigMap that pods mount is one that the page made', () => {
    for (const name of ['gate-gatehouse', 'orders']) {
      const volumes = '.spec.template.spec.volumes';
      const secrets = one('deployment', name, `${volumes}[*].secret.secretName`).split(' ');
      const maps = one('deployment', name, `${volumes}[*].configMap.name`).split(' ');
      expect(secrets.length).toBeGreaterThan(2);
      for (const secret of secrets) expect(one('secret', secret, '.metadata.name')).toBe(secret);
      for (const map of maps) expect(one('configmap', map, '.metadata.name')).toBe(map);
    }
  });

  test('a StatefulSet’s volume grows only with the documented commands', async () => {
    const grow = blocks.find(({ kind }) => kind === 'sh illustrative embedded')?.text ?? '';
    const values = readFileSync(join(ROOT, 'helm/gatehouse/ci/embedded-values.yaml'), 'utf8');
    writeFileSync(join(folder, 'values.yaml'), values);
    shell(`helm -n ${NAMESPACE} upgrade gate helm/gatehouse -f values.yaml`);
    const [claim = '', remove = '', upgrade = ''] = grow.trim().split('\n');
    expect(ran(upgrade).stderr).toContain('updates to statefulset spec for fields other than');
    await boundClaim('gatehouse-data-gate-gatehouse-0');
    shell(claim);
    // Its last step is a controller's: to say that what belonged to it is left alone.
    shell(`${remove} --wait=false`);
    shell(
      `kubectl -n ${NAMESPACE} patch statefulset gate-gatehouse --type=merge -p '{"metadata":{"finalizers":null}}'`,
    );
    shell(upgrade);
    const size = '.spec.volumeClaimTemplates[0].spec.resources.requests.storage';
    expect(one('statefulset', 'gate-gatehouse', size)).toBe('5Gi');
  });
});

/** As the controllers of a cluster leave it. */
async function boundClaim(name: string): Promise<void> {
  const storage = '2Gi';
  const spec = {
    accessModes: ['ReadWriteOnce'],
    resources: { requests: { storage } },
    storageClassName: 'fast',
  };
  const expandable = { provisioner: 'example.test/none', allowVolumeExpansion: true };
  const metadata = { name: 'fast' };
  await api.apply({ apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass', metadata, ...expandable });
  await api.apply({
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: { name, namespace: NAMESPACE },
    spec: { ...spec, volumeName: 'one' },
  });
  const path = `/api/v1/namespaces/${NAMESPACE}/persistentvolumeclaims/${name}/status`;
  const status = { phase: 'Bound', capacity: { storage }, accessModes: spec.accessModes };
  const { body } = await api.call('PATCH', path, JSON.stringify({ status }), 'application/merge-patch+json');
  expect(body.message).toBeUndefined();
}

const ci = (name: string): string => join(ROOT, 'helm/gatehouse/ci', `${name}-values.yaml`);

describe('releases come, change and go', () => {
  /** The chart in a later version, with nothing else in it that changed. */
  function laterChart(): string {
    shell(
      `mkdir -p later && cp -rL helm/gatehouse later/ && sed -i 's/^version: .*/version: 9.9.9/' later/gatehouse/Chart.yaml`,
    );
    return 'later/gatehouse';
  }

  test('a new version of the chart alone replaces no pod, least of all Valkey', () => {
    const args = `-f ${ci('valkey')} --set valkey.existingSecret=`;
    shell(`helm -n ${NAMESPACE} install trial helm/gatehouse ${args}`);
    const password = one('secret', 'trial-gatehouse-valkey', '.data.password');
    const templates = () =>
      ['trial-gatehouse', 'trial-gatehouse-valkey'].map((name) => one('deployment', name, '.spec.template'));
    const before = templates();
    shell(`helm -n ${NAMESPACE} upgrade trial ${laterChart()} ${args}`);
    expect(one('deployment', 'trial-gatehouse', '.metadata.labels.helm\\.sh/chart')).toBe('gatehouse-9.9.9');
    expect(templates()).toEqual(before);
    expect(one('secret', 'trial-gatehouse-valkey', '.data.password')).toBe(password);
    // What the pods read at their start is another matter.
    shell(`helm -n ${NAMESPACE} upgrade trial later/gatehouse ${args} --set config.log.level=warn`);
    const [gateway, valkey] = templates();
    expect([gateway === before[0], valkey === before[1]]).toEqual([false, true]);
    shell(`helm -n ${NAMESPACE} uninstall trial`);
  });

  test('from the embedded store to Redis, to a sidecar, and back to the first', () => {
    for (const name of ['embedded', 'redis', 'sidecar', 'autoscaling'])
      shell(`helm -n ${NAMESPACE} upgrade --install moved helm/gatehouse -f ${ci(name)}`);
    shell(`helm -n ${NAMESPACE} rollback moved 1`);
    const kinds = shell(
      `kubectl -n ${NAMESPACE} get all,hpa,pdb -l app.kubernetes.io/instance=moved -o name`,
    );
    expect(kinds.trim().split('\n').sort()).toEqual([
      'service/moved-gatehouse',
      'service/moved-gatehouse-admin',
      'statefulset.apps/moved-gatehouse',
    ]);
    shell(`helm -n ${NAMESPACE} uninstall moved`);
  });

  test('the store of a sidecar outlives its release, and the next one finds it', () => {
    const install = `helm -n ${NAMESPACE} install kept helm/gatehouse -f ${ci('sidecar-embedded')}`;
    shell(install);
    const made = one('pvc', 'kept-gatehouse-data', '.metadata.uid');
    shell(`helm -n ${NAMESPACE} uninstall kept`);
    const left = shell(
      `kubectl -n ${NAMESPACE} get all,cm,pvc,netpol -l app.kubernetes.io/instance=kept -o name`,
    );
    expect(left).toBe('persistentvolumeclaim/kept-gatehouse-data\n');
    shell(install);
    expect(one('pvc', 'kept-gatehouse-data', '.metadata.uid')).toBe(made);
    shell(`helm -n ${NAMESPACE} uninstall kept`);
  });

  test.each([
    { name: 'yes', namespace: '456' },
    { name: 'null', namespace: '1e3' },
    { name: 'a'.repeat(53), namespace: 'b'.repeat(63) },
  ])('names that are hard to write: $name in $namespace', ({ name, namespace }) => {
    shell(`helm -n ${namespace} install ${name} helm/gatehouse --create-namespace -f ${ci('everything-extra')} \
      --set fullnameOverride= --set-string signing.existingSecret=123 --set-string tls.existingSecret=true --set-string image.tag=1`);
    shell(`helm -n ${namespace} upgrade ${name} helm/gatehouse -f ${ci('cert-manager')}`);
    shell(`helm -n ${namespace} uninstall ${name}`);
  });
});
