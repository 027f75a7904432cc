import { expect } from 'vitest';
import type { Manifest } from '../chart/manifests.ts';
import type { Api } from './api.ts';

/** A namespace that lets in only pods of the restricted Pod Security Standard, and says of workloads whose pods are not. */
export async function restrictedNamespace(api: Api, name: string): Promise<void> {
  const labels = Object.fromEntries(
    ['enforce', 'warn', 'audit'].map((mode) => [`pod-security.kubernetes.io/${mode}`, 'restricted']),
  );
  const made = await api.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } });
  expect([made.status, made.body.message]).toEqual([201, undefined]);
  // A controller makes it in a cluster; pods without an account of their own need it.
  await api.apply({
    apiVersion: 'v1',
    kind: 'ServiceAccount',
    metadata: { name: 'default', namespace: name },
  });
}

/** The pods a workload would make, each as an object: only of those does Pod Security refuse any. */
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
