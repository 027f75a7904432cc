import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type Document, isMap, parse, parseAllDocuments, stringify } from 'yaml';
import { program } from './install.ts';

/** Generates deploy/kustomize from the chart, so that both have the same container and hardening. */
const at = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const NOTE =
  '# Generated from the chart by `node tools/chart/kustomize.ts`. Change the chart, or patch it in an overlay.\n';

function render(values: string): readonly Document.Parsed[] {
  const args = ['template', 'gatehouse', at('helm/gatehouse'), '--skip-tests', '-f', at(values)];
  const { status, stdout, stderr } = spawnSync(program('helm'), args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
  return parseAllDocuments(stdout).filter((document) => isMap(document.contents));
}

/** Removes what Helm sets per release; kustomize sets the namespace itself. */
function withoutHelm(document: Document.Parsed): string {
  const object = document.toJSON() as Record<string, unknown>;
  const clean = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(clean);
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(
      Object.entries(value)
        .filter(([key]) => !['helm.sh/chart', 'app.kubernetes.io/managed-by', 'namespace'].includes(key))
        .map(([key, inner]) => [key, clean(inner)]),
    );
  };
  return stringify(clean(object), { lineWidth: 0 });
}

export interface GeneratedFile {
  readonly file: string;
  readonly text: string;
}

export function kustomizeFiles(): readonly GeneratedFile[] {
  const base = render('deploy/kustomize/base/values.yaml').filter((document) => document.get('kind') !== 'ConfigMap');
  const snippet = render('deploy/kustomize/components/sidecar/values.yaml')
    .map((document) => (document.toJSON() as { data?: Record<string, string> }).data?.['patch.yaml'])
    .find((text) => text !== undefined);
  if (snippet === undefined) throw new Error('the chart rendered no patch');
  const patch = {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'any' },
    ...(parse(snippet) as object),
  };
  return [
    { file: 'deploy/kustomize/base/resources.yaml', text: NOTE + base.map(withoutHelm).join('---\n') },
    {
      file: 'deploy/kustomize/components/sidecar/patch.yaml',
      text: NOTE + stringify(patch, { lineWidth: 0 }),
    },
  ];
}

if (import.meta.main)
  for (const { file, text } of kustomizeFiles()) {
    writeFileSync(at(file), text);
    console.log(file);
  }
