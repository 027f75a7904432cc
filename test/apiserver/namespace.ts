import { expect } from 'vitest';
import type { Manifest } from '../chart/manifests.ts';
import type { Api } from './api.ts';

/** Creates a namespace that enforces the restricted Pod Security Standard and warns about workloads that violate it. */
export async function createRestrictedNamespace(api: Api, name: string): Promise<void> {
  const labels = Object.fromEntries(
    ['enforce', 'warn', 'audit'].map((mode) => [`pod-security.kubernetes.io/${mode}`, 'restricted']),
  );
  const created = await api.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } });
  expect([created.status, created.body.message]).toEqual([201, undefined]);
  // In a cluster, a controller creates the default service account, which pods need.
  await api.apply({
    apiVersion: 'v1',
    kind: 'ServiceAccount',
    metadata: { name: 'default', namespace: name },
  });
}

/** The pods that a workload would create, because Pod Security only rejects pods. */
export function podsOf({ kind, metadata, spec }: Manifest): readonly Manifest[] {
  const template = spec?.['template'] as
    | { readonly metadata?: Manifest['metadata']; readonly spec: Readonly<Record<string, unknown>> }
    | undefined;
  if (!['Deployment', 'StatefulSet', 'DaemonSet', 'Job'].includes(kind) || template === undefined) return [];
  const claims = (spec?.['volumeClaimTemplates'] ?? []) as readonly { metadata: { name: string } }[];
  const volumes = [
    ...((template.spec['volumes'] ?? []) as readonly object[]),
    ...claims.map(({ metadata: { name } }) => ({ name, persistentVolumeClaim: { claimName: `${name}-0` } })),
  ];
  const { namespace } = metadata;
  return [
    {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: {
        ...template.metadata,
        name: `${metadata.name}-pod`,
        ...(namespace !== undefined && { namespace }),
      },
      spec: { ...template.spec, volumes },
    },
  ];
}
