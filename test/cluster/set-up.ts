import type { TestProject } from 'vitest/node';
import type { Access } from '../apiserver/api.ts';
import { startCluster } from './cluster.ts';

declare module 'vitest' {
  interface ProvidedContext {
    readonly access: Access;
    readonly kubeconfig: string;
    /** For files of the tests on the node, such as local volumes. */
    readonly folder: string;
  }
}

export default async function setUp(project: TestProject): Promise<() => Promise<void>> {
  const { CLUSTER_FOLDER: folder, CLUSTER_CGROUP: cgroup, CLUSTER_IMAGES: images } = process.env;
  if (folder === undefined || cgroup === undefined || images === undefined || process.ppid !== 1)
    throw new Error('run these tests with npm run test:cluster, which creates namespaces for them');
  const begun = performance.now();
  const cluster = await startCluster({ folder, cgroup, images: images.split(':') });
  console.log(`the cluster is ready after ${Math.round((performance.now() - begun) / 1_000)} s`);
  project.provide('access', cluster.access);
  project.provide('kubeconfig', cluster.kubeconfig);
  project.provide('folder', folder);
  return () => cluster.stop();
}
