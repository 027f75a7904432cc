import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { schemaFolder } from '../../tools/chart/install.ts';
import { RELEASE, run, template, templateWith } from './helm.ts';
import {
  CHART,
  findGatehouse,
  GOLDEN,
  MATRIX,
  type Manifest,
  ofKind,
  only,
  podSpecs,
  readDocumentedValues,
  readManifests,
  readValues,
  valuesFile,
} from './manifests.ts';

/** `UPDATE_GOLDEN=1 npm run test:chart` updates the golden files; review the diff before you commit it. */
const UPDATE = process.env['UPDATE_GOLDEN'] === '1';

const conform = (text: string) =>
  run(
    'kubeconform',
    [
      '-strict',
      '-output',
      'json',
      '-schema-location',
      `${schemaFolder()}/{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json`,
      '-',
    ],
    text,
  );

describe.each(MATRIX)('A1 A13 %s', (name) => {
  const rendered = template(valuesFile(name));

  test('matches the reviewed golden file', () => {
    const file = join(GOLDEN, `${name}.yaml`);
    if (UPDATE) {
      mkdirSync(GOLDEN, { recursive: true });
      writeFileSync(file, rendered);
    }
    expect(rendered).toBe(readFileSync(file, 'utf8'));
  });

  test('is valid for Kubernetes and the custom resources, without unknown fields', () => {
    const { status, stdout } = conform(rendered);
    expect({ status, problems: JSON.parse(stdout).resources }).toEqual({ status: 0, problems: [] });
  });

  test('helm lint --strict reports nothing', () => {
    const { status, stdout } = run('helm', ['lint', '--strict', '--namespace', 'shop', CHART, '-f', valuesFile(name)]);
    expect({ status, stdout }).toMatchObject({
      status: 0,
      stdout: expect.stringContaining('1 chart(s) linted, 0 chart(s) failed'),
    });
  });
});

test.each(MATRIX)('`helm test` of %s runs a pod, unless gatehouse is a sidecar', (name) => {
  const hooks = readManifests(template(valuesFile(name))).filter(
    ({ metadata }) => metadata.annotations?.['helm.sh/hook'] === 'test',
  );
  const isSidecar = (readValues(name) as { readonly mode?: string }).mode === 'sidecar';
  // Without a hook, `helm test` tests nothing and succeeds.
  expect(hooks.map(({ kind }) => kind)).toEqual(isSidecar ? [] : ['Pod']);
});

test('every golden file has a values file', () => {
  expect(readdirSync(GOLDEN).sort()).toEqual(MATRIX.map((name) => `${name}.yaml`).sort());
});

test('kubeconform detects unknown fields and wrong types, also in custom resources', () => {
  const known = template(valuesFile('monitoring'));
  const broken = [
    known.replace('automountServiceAccountToken: false', 'automountServiceAccountTokens: false'),
    known.replace('containerPort: 8443', 'containerPort: "8443"'),
    known.replace('terminationGracePeriodSeconds', 'terminationGraceSeconds'),
    known.replace('scrapeTimeout: 10s', 'scrapeTimeouts: 10s'),
    known.replace('namespaceSelector:\n    matchNames', 'namespaceSelector:\n    names'),
  ];
  for (const text of broken) {
    expect(text).not.toBe(known);
    expect(conform(text).status).toBe(1);
  }
});

test('A13 helm-unittest', () => {
  const { status, stdout, stderr } = run('helm-unittest', ['--strict', CHART]);
  expect({ status, stdout, stderr }).toMatchObject({
    status: 0,
    stdout: expect.stringMatching(/Tests:\s+[1-9]\d* passed/),
  });
});

test('A8 the pre-stop time begins at once: with SIGTERM, or with the hook of a native sidecar', () => {
  const readLifecycle = (name: string, version = '1.36.0'): unknown => {
    const { stdout } = templateWith(valuesFile(name), {}, ['--kube-version', version]);
    return findGatehouse(readManifests(stdout)).lifecycle;
  };
  const execute = (command: string) => ({
    preStop: { exec: { command: ['/usr/local/bin/gatehouse', command, '5'] } },
  });
  expect(readLifecycle('embedded')).toBeUndefined();
  expect(readLifecycle('sidecar-plain')).toBeUndefined();
  expect(readLifecycle('sidecar')).toEqual(execute('drain'));
  // The configuration may have no pre-stop time.
  expect(readLifecycle('existing-configmap')).toEqual({ preStop: { sleep: { seconds: 5 } } });
  expect(readLifecycle('existing-configmap', '1.29.4')).toEqual(execute('sleep'));
  const { status, stderr } = templateWith(valuesFile('embedded'), {}, ['--kube-version', '1.28.9']);
  expect([status, stderr]).toEqual([1, expect.stringContaining('incompatible with Kubernetes')]);
});

test.each([
  ['sidecar', ['orders']],
  ['sidecar-plain', ['gatehouse', 'orders']],
])('A8 the patch of %s gives the named application the preStop hook that it needs', (name, containers) => {
  const values = { sidecar: { applicationContainer: 'orders' } };
  const readPatch = (version: string) => {
    const { stdout } = templateWith(valuesFile(name), values, ['--kube-version', version]);
    return only(podSpecs(readManifests(stdout))).spec.containers ?? [];
  };
  const patched = readPatch('1.30.0');
  expect(patched.map((container) => container.name)).toEqual(containers);
  expect(patched.at(-1)).toEqual({ name: 'orders', lifecycle: { preStop: { sleep: { seconds: 5 } } } });
  expect(readPatch('1.29.4').some((container) => container.name === 'orders')).toBe(false);
});

test('the password of the evaluation Valkey is long, random, and in a Secret only', () => {
  const passwords = [1, 2].map(() => {
    const { stdout } = templateWith(valuesFile('valkey'), { valkey: { existingSecret: '' } });
    const data = only(ofKind(readManifests(stdout), 'Secret')).data ?? {};
    const password = Buffer.from(data['password'] ?? '', 'base64').toString();
    expect(password).toMatch(/^[A-Za-z0-9]{40}$/);
    expect(Buffer.from(data['valkey.conf'] ?? '', 'base64').toString()).toContain(`requirepass ${password}\n`);
    expect(stdout).not.toContain(password);
    return password;
  });
  expect(passwords[0]).not.toBe(passwords[1]);
});

test('as a subchart, the values `global` and `enabled` are accepted', () => {
  const { status, stderr } = templateWith(valuesFile('redis'), {
    enabled: true,
    global: { imageRegistry: 'mirror.example.test', somethingOfTheParent: { any: 1 } },
  });
  expect([status, stderr]).toEqual([0, '']);
});

test('A6 the notes contain the same container as the ConfigMap', () => {
  const notes = run('helm', [
    'install',
    'gate',
    CHART,
    '--namespace',
    'shop',
    '-f',
    valuesFile('sidecar'),
    '--dry-run=client',
  ]);
  expect(notes.status).toBe(0);
  const snippet = podSpecs(readManifests(template(valuesFile('sidecar'))));
  expect(snippet).toHaveLength(1);
  const text =
    readManifests(template(valuesFile('sidecar'))).find(({ data }) => data?.['container.yaml'])?.data?.[
      'container.yaml'
    ] ?? '';
  const indented = text.trimEnd().replace(/^(?=.)/gm, '    ');
  expect(notes.stdout).toContain(indented);
});

const renderNotes = (file: string, changes: readonly string[] = []): string => {
  const args = ['install', ...RELEASE, '-f', file, '--dry-run=client', ...changes];
  const { status, stdout, stderr } = run('helm', args);
  expect([status, stderr]).toEqual([0, '']);
  return stdout.slice(stdout.indexOf('NOTES:'));
};

test('the notes of a sidecar state which ports the policy closes, and that none are closed without it', () => {
  const shut = renderNotes(valuesFile('sidecar'));
  expect(shut).toContain('Until then, clients cannot reach these pods, because the NetworkPolicy applies already.');
  expect(shut).toContain('Policies are additive');
  const open = renderNotes(valuesFile('sidecar'), ['--set', 'networkPolicy.enabled=false']);
  expect(open).not.toContain('applies already');
  expect(open).toContain('clients that reach the pods can bypass gatehouse, at port 8080 of the application');
});

test('the notes warn about an image without a registry', () => {
  const sentence = 'The image gatehouse:0.1.0 has no registry';
  expect(renderNotes(valuesFile('redis'))).toContain(sentence);
  expect(renderNotes(valuesFile('redis'), ['--set', 'image.registry=registry.example.test'])).not.toContain(
    'has no registry',
  );
});

test('the notes list what the owner of the application must provide', () => {
  expect(renderNotes(valuesFile('sidecar'), ['--set', 'image.pullSecrets={mine}'])).toContain('- name: "mine"');
  expect(renderNotes(valuesFile('sidecar'))).toContain(
    'Set `terminationGracePeriodSeconds` of the pods to at least 40',
  );
  expect(renderNotes(valuesFile('sidecar-embedded'))).toContain('strategy.type: Recreate');
  expect(renderNotes(valuesFile('sidecar'))).not.toContain('Recreate');
});

test('the notes warn about a header that every pod could send, and about a Gateway that sends plain HTTP to a TLS port', () => {
  const header = 'can send the certificate of another client';
  expect(renderNotes(valuesFile('ingress'), ['--set', 'networkPolicy.enabled=false'])).toContain(header);
  expect(renderNotes(valuesFile('ingress'))).not.toContain(header);
  const own = ['--set', 'tls.terminatedInFront=false', '--set', 'tls.existingSecret=mine'];
  expect(renderNotes(valuesFile('gateway-api-http'), own)).toContain('BackendTLSPolicy');
  expect(renderNotes(valuesFile('gateway-api-http'))).not.toContain('BackendTLSPolicy');
  expect(renderNotes(valuesFile('ingress'), own)).toContain('backend-protocol: HTTPS');
  expect(renderNotes(valuesFile('ingress'))).not.toContain('backend-protocol');
});

test('names that YAML would parse as other types stay strings', () => {
  const names = ['signing.existingSecret=123', 'tls.existingSecret=true', 'store.redis.existingSecret=1e3'];
  const more = ['serviceAccount.name=null', 'priorityClassName=y', 'image.pullSecrets={0x1}'];
  const { status, stdout, stderr } = run('helm', [
    'template',
    'yes',
    CHART,
    '--namespace',
    '456',
    '-f',
    valuesFile('redis-password'),
    ...[...names, ...more].flatMap((setting) => ['--set-string', setting]),
  ]);
  expect([status, stderr]).toEqual([0, '']);
  expect(conform(stdout).status).toBe(0);
  // Parsed as YAML 1.1, like Kubernetes, where `yes` and `y` are booleans.
  const objects = parseAllDocuments(stdout, { version: '1.1' }).map((document) => document.toJSON() as Manifest | null);
  for (const object of objects.filter((candidate) => candidate !== null)) {
    expect(object.metadata).toMatchObject({
      namespace: '456',
      labels: { 'app.kubernetes.io/instance': 'yes' },
    });
    if (object.kind === 'Deployment')
      expect(object.spec?.['template']).toMatchObject({
        spec: { serviceAccountName: 'null', priorityClassName: 'y', imagePullSecrets: [{ name: '0x1' }] },
      });
  }
});

test('a release with the longest possible name has objects with valid names', () => {
  const long = 'a'.repeat(53);
  const { stdout } = run('helm', ['template', long, CHART, '-f', valuesFile('monitoring')]);
  for (const { metadata } of readManifests(stdout)) {
    expect(metadata.name).toMatch(/^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$/);
    expect(metadata.labels?.['app.kubernetes.io/instance']).toBe(long);
  }
});

test('the values in docs/kubernetes.md render to valid objects', () => {
  const blocks = readDocumentedValues('docs/kubernetes.md');
  expect(blocks.length).toBeGreaterThan(2);
  for (const block of blocks) {
    const { status, stdout, stderr } = run('helm', ['template', ...RELEASE, '-f', '-'], block);
    expect([status, stderr]).toEqual([0, '']);
    expect(conform(stdout).status).toBe(0);
  }
});

test('the values in docs/trusted-issuers.md render to the setting shown below them', () => {
  const block = only(readDocumentedValues('docs/trusted-issuers.md'));
  const { status, stdout, stderr } = templateWith(valuesFile('redis'), parse(block));
  expect([status, stderr]).toEqual([0, '']);
  expect(conform(stdout).status).toBe(0);
  const text = readManifests(stdout).find(({ data }) => data?.['gatehouse.yaml'])?.data?.['gatehouse.yaml'];
  const page = readFileSync(join(CHART, '../../docs/trusted-issuers.md'), 'utf8');
  const [, shown = ''] = page.match(/writes this setting:\n\n *```yaml\n([\s\S]*?)^ *```$/m) ?? [];
  expect(parse(text ?? '')).toMatchObject(parse(shown.replaceAll(/^ {3}/gm, '')) as object);
});
