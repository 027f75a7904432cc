import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { program } from '../../tools/chart/install.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { type Api, connect } from './api.ts';
import { createRestrictedNamespace } from './namespace.ts';

/** Runs the steps of docs/kubernetes.md. */
const ROOT = join(import.meta.dirname, '../..');
const NAMESPACE = 'newcomer';
const api: Api = connect(inject('access'));
let folder = '';

/** No pod runs in this cluster, so commands that wait for pods are skipped. */
const NEEDS_NODES = /rollout status|^helm .* test /;

interface Block {
  readonly kind: string;
  readonly text: string;
}

const page = readFileSync(join(ROOT, 'docs/kubernetes.md'), 'utf8').replaceAll('-n shop', `-n ${NAMESPACE}`);
const blocks: readonly Block[] = [...page.matchAll(/^```(yaml values|sh illustrative.*)\n([\s\S]*?)^```$/gm)].map(
  ([, kind = '', text = '']) => ({ kind, text }),
);

beforeAll(async () => {
  await createRestrictedNamespace(api, NAMESPACE);
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

function runShell(text: string): {
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

/** Runs a command that must succeed without warnings. */
function runWithoutWarnings(text: string): string {
  const { status, stdout, stderr } = runShell(text);
  expect({ text, status, stderr }).toEqual({ text, status: 0, stderr: '' });
  return stdout;
}

const runDocumented = (text: string): string =>
  runWithoutWarnings(
    text
      .split('\n')
      .filter((line) => !NEEDS_NODES.test(line))
      .join('\n'),
  );

const readField = (kind: string, name: string, field: string): string =>
  runWithoutWarnings(`kubectl -n ${NAMESPACE} get ${kind} ${name} -o jsonpath='{${field}}'`);

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
  test('every command works, in order', () => {
    writeFileSync(join(folder, 'application.yaml'), APPLICATION);
    runWithoutWarnings(`kubectl -n ${NAMESPACE} create -f application.yaml`);
    let ran = 0;
    for (const { kind, text } of blocks) {
      // The `values.yaml` of the following commands.
      if (kind === 'yaml values') writeFileSync(join(folder, 'values.yaml'), text);
      if (kind !== 'sh illustrative') continue;
      // The upgrade is documented for the gateway.
      if (text.includes('upgrade gate ')) writeFileSync(join(folder, 'values.yaml'), blocks[1]?.text ?? '');
      runDocumented(text);
      ran++;
    }
    expect(ran).toBeGreaterThan(5);
    expect(readField('deployment', 'gate-gatehouse', '.spec.replicas')).toBe('2');
    expect(readField('secret', 'gatehouse-keys', '.metadata.annotations')).toBe('');
  });

  test('the patch adds gatehouse once, as the first container, and leaves the others unchanged', () => {
    const spec = '.spec.template.spec';
    expect(readField('deployment', 'orders', `${spec}.initContainers[*].name`)).toBe('gatehouse migrate');
    expect(readField('deployment', 'orders', `${spec}.terminationGracePeriodSeconds`)).toBe('300');
    const again = runWithoutWarnings(
      `kubectl -n ${NAMESPACE} patch deployment orders --patch-file gatehouse-patch.yaml`,
    );
    expect(again).toContain('patched (no change)');
  });

  test('every Secret and ConfigMap that pods mount is created by the page', () => {
    for (const name of ['gate-gatehouse', 'orders']) {
      const volumes = '.spec.template.spec.volumes';
      const secrets = readField('deployment', name, `${volumes}[*].secret.secretName`).split(' ');
      const maps = readField('deployment', name, `${volumes}[*].configMap.name`).split(' ');
      expect(secrets.length).toBeGreaterThan(2);
      for (const secret of secrets) expect(readField('secret', secret, '.metadata.name')).toBe(secret);
      for (const map of maps) expect(readField('configmap', map, '.metadata.name')).toBe(map);
    }
  });

  test('the volume of a StatefulSet can be enlarged with the documented commands only', async () => {
    const grow = blocks.find(({ kind }) => kind === 'sh illustrative embedded')?.text ?? '';
    const values = readFileSync(join(ROOT, 'helm/gatehouse/ci/embedded-values.yaml'), 'utf8');
    writeFileSync(join(folder, 'values.yaml'), values);
    runWithoutWarnings(`helm -n ${NAMESPACE} upgrade gate helm/gatehouse -f values.yaml`);
    const [claim = '', remove = '', upgrade = ''] = grow.trim().split('\n');
    expect(runShell(upgrade).stderr).toContain('updates to statefulset spec for fields other than');
    await bindClaim('gatehouse-data-gate-gatehouse-0');
    runWithoutWarnings(claim);
    // The last step, orphaning the dependents, is done by a controller.
    runWithoutWarnings(`${remove} --wait=false`);
    runWithoutWarnings(
      `kubectl -n ${NAMESPACE} patch statefulset gate-gatehouse --type=merge -p '{"metadata":{"finalizers":null}}'`,
    );
    runWithoutWarnings(upgrade);
    const size = '.spec.volumeClaimTemplates[0].spec.resources.requests.storage';
    expect(readField('statefulset', 'gate-gatehouse', size)).toBe('5Gi');
  });
});

/** Marks a claim as bound, as the controllers of a cluster do. */
async function bindClaim(name: string): Promise<void> {
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

describe('installing, upgrading and removing releases', () => {
  /** The chart with a later version and no other change. */
  function createLaterChart(): string {
    runWithoutWarnings(
      `mkdir -p later && cp -rL helm/gatehouse later/ && sed -i 's/^version: .*/version: 9.9.9/' later/gatehouse/Chart.yaml`,
    );
    return 'later/gatehouse';
  }

  test('a new chart version without other changes replaces no pod', () => {
    const args = `-f ${ci('valkey')} --set valkey.existingSecret=`;
    runWithoutWarnings(`helm -n ${NAMESPACE} install trial helm/gatehouse ${args}`);
    const password = readField('secret', 'trial-gatehouse-valkey', '.data.password');
    const templates = () =>
      ['trial-gatehouse', 'trial-gatehouse-valkey'].map((name) => readField('deployment', name, '.spec.template'));
    const before = templates();
    runWithoutWarnings(`helm -n ${NAMESPACE} upgrade trial ${createLaterChart()} ${args}`);
    expect(readField('deployment', 'trial-gatehouse', '.metadata.labels.helm\\.sh/chart')).toBe('gatehouse-9.9.9');
    expect(templates()).toEqual(before);
    expect(readField('secret', 'trial-gatehouse-valkey', '.data.password')).toBe(password);
    // A change of what the pods read at start does replace them.
    runWithoutWarnings(`helm -n ${NAMESPACE} upgrade trial later/gatehouse ${args} --set config.log.level=warn`);
    const [gateway, valkey] = templates();
    expect([gateway === before[0], valkey === before[1]]).toEqual([false, true]);
    runWithoutWarnings(`helm -n ${NAMESPACE} uninstall trial`);
  });

  test('a release can change from the embedded store to Redis, to a sidecar, and back', () => {
    for (const name of ['embedded', 'redis', 'sidecar', 'autoscaling'])
      runWithoutWarnings(`helm -n ${NAMESPACE} upgrade --install moved helm/gatehouse -f ${ci(name)}`);
    runWithoutWarnings(`helm -n ${NAMESPACE} rollback moved 1`);
    const kinds = runWithoutWarnings(
      `kubectl -n ${NAMESPACE} get all,hpa,pdb -l app.kubernetes.io/instance=moved -o name`,
    );
    expect(kinds.trim().split('\n').sort()).toEqual([
      'service/moved-gatehouse',
      'service/moved-gatehouse-admin',
      'statefulset.apps/moved-gatehouse',
    ]);
    runWithoutWarnings(`helm -n ${NAMESPACE} uninstall moved`);
  });

  test('the volume of a sidecar is kept when its release is removed, and reused by the next one', () => {
    const install = `helm -n ${NAMESPACE} install kept helm/gatehouse -f ${ci('sidecar-embedded')}`;
    runWithoutWarnings(install);
    const uid = readField('pvc', 'kept-gatehouse-data', '.metadata.uid');
    runWithoutWarnings(`helm -n ${NAMESPACE} uninstall kept`);
    const left = runWithoutWarnings(
      `kubectl -n ${NAMESPACE} get all,cm,pvc,netpol -l app.kubernetes.io/instance=kept -o name`,
    );
    expect(left).toBe('persistentvolumeclaim/kept-gatehouse-data\n');
    runWithoutWarnings(install);
    expect(readField('pvc', 'kept-gatehouse-data', '.metadata.uid')).toBe(uid);
    runWithoutWarnings(`helm -n ${NAMESPACE} uninstall kept`);
  });

  test.each([
    { name: 'yes', namespace: '456' },
    { name: 'null', namespace: '1e3' },
    { name: 'a'.repeat(53), namespace: 'b'.repeat(63) },
  ])('names that are hard to write: $name in $namespace', ({ name, namespace }) => {
    runWithoutWarnings(`helm -n ${namespace} install ${name} helm/gatehouse --create-namespace -f ${ci('everything-extra')} \
      --set fullnameOverride= --set-string signing.existingSecret=123 --set-string tls.existingSecret=true --set-string image.tag=1`);
    runWithoutWarnings(`helm -n ${namespace} upgrade ${name} helm/gatehouse -f ${ci('cert-manager')}`);
    runWithoutWarnings(`helm -n ${namespace} uninstall ${name}`);
  });
});
