import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { formatProblems, loadSettings } from '../../src/config/load.ts';
import { containersOf, findGatehouse, golden, only, podSpecs, readManifests } from '../chart/manifests.ts';

const KUSTOMIZE = join(import.meta.dirname, '../../deploy/kustomize');
const read = (file: string): string => readFileSync(join(KUSTOMIZE, file), 'utf8');
const built = readManifests(read('examples/existing-app/golden.yaml'));
const deployment = (name: string) =>
  only(podSpecs(built.filter(({ kind, metadata }) => kind === 'Deployment' && metadata.name === name))).spec;

test('A7 a labelled workload gets the sidecar once, before its own containers, which are unchanged', () => {
  const spec = deployment('orders');
  expect(spec.initContainers?.map(({ name }) => name)).toEqual(['gatehouse', 'migrate']);
  expect(spec.containers?.map(({ name }) => name)).toEqual(['orders']);
  expect(spec.securityContext).toEqual({ fsGroup: 1000 });
  expect(spec.volumes?.map(({ name }) => name)).toContain('cache');
});

test('A7 an unlabelled workload is unchanged', () => {
  const asWritten = readManifests(read('examples/existing-app/app.yaml')).find(
    ({ metadata }) => metadata.name === 'reports',
  );
  expect(deployment('reports')).toEqual(only(podSpecs(asWritten ? [asWritten] : [])).spec);
});

test('A7 the container is that of the chart, except for the image', () => {
  const { image: _, ...container } = findGatehouse(built);
  const { image: __, ...chart } = findGatehouse(golden('sidecar'));
  expect(container).toEqual(chart);
});

test('A7 every pod of the base is hardened like those of the chart', () => {
  const base = podSpecs(readManifests(read('base/resources.yaml')));
  expect(base).toHaveLength(1);
  for (const { spec } of base)
    for (const container of containersOf(spec))
      expect(container.securityContext).toEqual(findGatehouse(golden('embedded')).securityContext);
});

test.each(['base', 'examples/existing-app'])(
  'A7 the configuration of %s is valid and matches its container',
  (name) => {
    const text = read(`${name}/gatehouse.yaml`);
    const loaded = loadSettings({ text, env: {}, overrides: [], cwd: '/' });
    expect(loaded.ok ? '' : formatProblems(loaded)).toBe('');
    const { ports = [], volumeMounts = [] } =
      name === 'base' ? findGatehouse(readManifests(read('base/resources.yaml'))) : findGatehouse(built);
    const settings = parse(text) as { listen: { port: number }; admin: { port: number } };
    expect(ports.map(({ containerPort }) => containerPort)).toEqual([settings.listen.port, settings.admin.port]);
    for (const [path] of text.matchAll(/\/(?:etc|var\/lib)\/gatehouse\/[^\s,}\]]+/g))
      expect(
        volumeMounts.some(({ mountPath }) => path.startsWith(`${mountPath}/`)),
        path,
      ).toBe(true);
  },
);
