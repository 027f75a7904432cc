import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { schemaFolder } from '../../tools/chart/install.ts';
import { readManifests } from '../chart/manifests.ts';
import { until } from '../support/until.ts';
import type { Api } from './api.ts';

/** Custom resources that the chart creates. */
const KINDS = ['HTTPRoute', 'TLSRoute', 'Certificate', 'ServiceMonitor', 'PodMonitor', 'PrometheusRule'];

/** Installs the CustomResourceDefinitions of their projects. */
export async function defineKinds(api: Api): Promise<void> {
  const folder = join(schemaFolder(), 'definitions');
  const definitions = readdirSync(folder)
    .flatMap((file) => readManifests(readFileSync(join(folder, file), 'utf8')))
    .filter(({ kind, spec }) => {
      const { kind: defined = '' } = (spec?.['names'] ?? {}) as { readonly kind?: string };
      return kind === 'CustomResourceDefinition' && KINDS.includes(defined);
    });
  if (definitions.length !== KINDS.length)
    throw new Error(`${definitions.length} of ${KINDS.length} definitions found in ${folder}`);
  for (const { metadata, ...definition } of definitions) {
    // Labels are omitted, because those of cert-manager are Helm templates.
    const { labels: _, ...named } = metadata;
    const { status, body } = await api.apply({ ...definition, metadata: named });
    if (status >= 300) throw new Error(`${metadata.name}: ${body.message}`);
  }
  for (const { metadata } of definitions)
    await until(`${metadata.name} is established`, () => isEstablished(api, metadata.name), 300);
}

async function isEstablished(api: Api, name: string): Promise<boolean> {
  const { body } = await api.call('GET', `/apis/apiextensions.k8s.io/v1/customresourcedefinitions/${name}`);
  const { conditions = [] } = (body['status'] ?? {}) as {
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
  };
  return conditions.some(({ type, status }) => type === 'Established' && status === 'True');
}
