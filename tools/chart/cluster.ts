import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CACHE, go, hasGo } from './install.ts';

/**
 * Builds etcd, kube-apiserver and kubectl. Without kubelet and controllers, the API server validates objects but no pod runs.
 * `tools/chart/cluster/go.mod` pins every version, `go.sum` every checksum. Kubernetes requires its own staging modules
 * without a version, hence the replacements there.
 */
const MODULE = fileURLToPath(new URL('cluster', import.meta.url));

const KUBERNETES = readVersion('k8s.io/kubernetes');
const PROGRAMS = [
  { name: 'etcd', main: 'go.etcd.io/etcd/server/v3', version: readVersion('go.etcd.io/etcd/server/v3') },
  { name: 'kube-apiserver', main: 'k8s.io/kubernetes/cmd/kube-apiserver', version: KUBERNETES },
  { name: 'kubectl', main: 'k8s.io/kubernetes/cmd/kubectl', version: KUBERNETES },
] as const;

export type ClusterProgram = (typeof PROGRAMS)[number]['name'];

function readVersion(module: string): string {
  const text = readFileSync(join(MODULE, 'go.mod'), 'utf8');
  const version = text.split('\n').map((line) => line.trim().split(' '));
  const found = version.find(([name, second]) => name === module && second?.startsWith('v'))?.[1];
  if (found === undefined) throw new Error(`${module} is not in go.mod`);
  return found;
}

const getTargetPath = ({ name, version }: (typeof PROGRAMS)[number]): string =>
  join(CACHE, 'bin', `${name}-${version}`);

/** The path of a built program. */
export function clusterProgram(name: ClusterProgram): string {
  const found = PROGRAMS.find((candidate) => candidate.name === name);
  if (found === undefined || !existsSync(getTargetPath(found)))
    throw new Error(`${name} is not installed; run node tools/chart/cluster.ts`);
  return getTargetPath(found);
}

function build(tool: (typeof PROGRAMS)[number]): void {
  const target = getTargetPath(tool);
  if (existsSync(target)) return;
  const begun = performance.now();
  mkdirSync(dirname(target), { recursive: true });
  const [major, minor] = KUBERNETES.slice(1).split('.');
  // Without this, the version is 0.0.0, and Helm considers the cluster too old for the chart.
  const about = Object.entries({ gitVersion: KUBERNETES, gitMajor: major, gitMinor: minor })
    .map(([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`)
    .join(' ');
  go(['build', '-trimpath', '-ldflags', `-s -w ${about}`, '-o', `${target}.new`, tool.main], MODULE, {
    GOFLAGS: '-mod=readonly',
    CGO_ENABLED: '0',
  });
  renameSync(`${target}.new`, target);
  console.log(`${tool.name} ${tool.version}: built in ${Math.round((performance.now() - begun) / 1_000)} s`);
}

if (import.meta.main) {
  if (!hasGo()) {
    console.error('Go 1.26 or newer is needed to build etcd, kube-apiserver and kubectl');
    process.exit(69);
  }
  for (const tool of PROGRAMS) build(tool);
}
