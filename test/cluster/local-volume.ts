import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { inject } from 'vitest';

interface LocalVolumeOptions {
  /** Makes its storage class the default of the cluster. */
  readonly isDefault?: boolean;
}

/** A volume in a folder of the node, and the storage class of the same name that selects it. */
export function createLocalVolume(name: string, { isDefault = false }: LocalVolumeOptions = {}): object[] {
  const path = join(inject('folder'), `volume-${name}`);
  mkdirSync(path);
  return [
    {
      apiVersion: 'storage.k8s.io/v1',
      kind: 'StorageClass',
      metadata: {
        name,
        annotations: { 'storageclass.kubernetes.io/is-default-class': String(isDefault) },
      },
      provisioner: 'kubernetes.io/no-provisioner',
      volumeBindingMode: 'WaitForFirstConsumer',
    },
    {
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name },
      spec: {
        capacity: { storage: '4Gi' },
        accessModes: ['ReadWriteOnce'],
        storageClassName: name,
        local: { path },
        nodeAffinity: {
          required: {
            nodeSelectorTerms: [
              { matchExpressions: [{ key: 'kubernetes.io/hostname', operator: 'In', values: ['node'] }] },
            ],
          },
        },
      },
    },
  ];
}
