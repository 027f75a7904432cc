import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { schemaFolder } from '../../tools/chart/install.ts';
import { kustomizeFiles } from '../../tools/chart/kustomize.ts';
import { run } from './helm.ts';
import { readManifests } from './manifests.ts';

const ROOT = join(import.meta.dirname, '../..');
const KUSTOMIZE = join(ROOT, 'deploy/kustomize');
const EXAMPLE = join(KUSTOMIZE, 'examples/existing-app');
const GOLDEN = join(EXAMPLE, 'golden.yaml');
const UPDATE = process.env['UPDATE_GOLDEN'] === '1';

function build(folder: string): string {
  const { status, stdout, stderr } = run('kustomize', ['build', folder]);
  if (status !== 0) throw new Error(stderr);
  return stdout;
}

test.each(['deploy/kustomize/base/resources.yaml', 'deploy/kustomize/components/sidecar/patch.yaml'])(
  'A7 %s is up to date with the chart',
  (file) => {
    const generated = kustomizeFiles().find((candidate) => candidate.file === file);
    expect(readFileSync(join(ROOT, file), 'utf8')).toBe(generated?.text);
  },
);

test('A7 the example matches the reviewed golden file', () => {
  const built = build(EXAMPLE);
  if (UPDATE) writeFileSync(GOLDEN, built);
  expect(built).toBe(readFileSync(GOLDEN, 'utf8'));
});

test('A7 adding the component twice adds one sidecar', () => {
  const copy = mkdtempSync(join(tmpdir(), 'gatehouse-kustomize-'));
  try {
    cpSync(KUSTOMIZE, copy, { recursive: true });
    cpSync(join(copy, 'components/sidecar'), join(copy, 'components/again'), { recursive: true });
    const file = join(copy, 'examples/existing-app/kustomization.yaml');
    const once = readFileSync(file, 'utf8');
    const twice = once.replace(
      'components: [../../components/sidecar]',
      'components: [../../components/sidecar, ../../components/again]',
    );
    expect(twice).not.toBe(once);
    writeFileSync(file, twice);
    expect(build(join(copy, 'examples/existing-app'))).toBe(readFileSync(GOLDEN, 'utf8'));
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
});

test('A7 applying the component to its own output changes nothing', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-kustomize-'));
  try {
    cpSync(join(KUSTOMIZE, 'components'), join(folder, 'components'), { recursive: true });
    writeFileSync(join(folder, 'output.yaml'), readFileSync(GOLDEN, 'utf8'));
    writeFileSync(
      join(folder, 'kustomization.yaml'),
      'resources: [output.yaml]\ncomponents: [components/sidecar]\nimages: [{ name: gatehouse, newName: registry.example.test/gatehouse }]\n',
    );
    // Only the name of the ConfigMap differs, which contains a digest of its content.
    const plain = (text: string) =>
      JSON.parse(JSON.stringify(readManifests(text)).replaceAll(/gatehouse-[a-z0-9]{10}/g, 'gatehouse')) as unknown;
    expect(plain(build(folder))).toEqual(plain(readFileSync(GOLDEN, 'utf8')));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test.each(['base', 'examples/existing-app'])('A7 %s is valid for Kubernetes, without unknown fields', (name) => {
  const location = `${schemaFolder()}/{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json`;
  const args = ['-strict', '-output', 'json', '-schema-location', location, '-'];
  const { status, stdout } = run('kubeconform', args, build(join(KUSTOMIZE, name)));
  expect({ status, problems: (JSON.parse(stdout) as { resources: unknown }).resources }).toEqual({
    status: 0,
    problems: [],
  });
});
