import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CACHE, go, hasGo } from './install.ts';

/**
 * The half of a cluster that judges manifests: etcd, kube-apiserver, and kubectl to speak with it. No kubelet, no controllers:
 * objects are taken or refused, and no pod runs. `tools/chart/cluster/go.mod` names every version, `go.sum` every checksum;
 * Kubernetes names its own parts without one, hence the replacements there.
 */
const MODULE = fileURLToPath(new URL('cluster', import.meta.url));

const KUBERNETES = versionOf('k8s.io/kubernetes');
const PROGRAMS = [
  { name: 'etcd', main: 'go.etcd.io/etcd/server/v3', version: versionOf('go.etcd.io/etcd/server/v3') },
  { name: 'kube-apiserver', main: 'k8s.io/kubernetes/cmd/kube-apiserver', version: KUBERNETES },
  { name: 'kubectl', main: 'k8s.io/kubernetes/cmd/kubectl', version: KUBERNETES },
] as const;

export type ClusterProgram = (typeof PROGRAMS)[number]['name'];

function versionOf(module: string): string {
  const text = readFileSync(join(MODULE, 'go.mod'), 'utf8');
  const version = text.split('\n').map((line) => line.trim().split(' '));
  const found = version.find(([name, second]) => name === module && second?.startsWith('v'))?.[1];
  if (found === undefined) throw new Error(`go.mod does not name ${module}`);
  return found;
}

const placeOf = ({ name, version }: (typeof PROGRAMS)[number]): string =>
  join(CACHE, 'bin', `${name}-${version}`);

/** The path of a program that was built. */
export function clusterProgram(name: ClusterProgram): string {
  const found = PROGRAMS.find((one) => one.name === name);
  if (found === undefined || !existsSync(placeOf(found)))
    throw new Error(`${name} is not there; run node tools/chart/cluster.ts`);
  return placeOf(found);
}

function build(one: (typeof PROGRAMS)[number]): void {
  const target = placeOf(one);
  if (existsSync(target)) return;
  const begun = performance.now();
  mkdirSync(dirname(target), { recursive: true });
  const [major, minor] = KUBERNETES.slice(1).split('.');
  // A build without this calls itself 0.0.0, and Helm would find the cluster too old for the chart.
  const about = Object.entries({ gitVersion: KUBERNETES, gitMajor: major, gitMinor: minor })
    .map(([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`)
    .join(' ');
  go(['build', '-trimpath', '-ldflags', `-s -w ${about}`, '-o', `${target}.new`, one.main], MODULE, {
    GOFLAGS: '-mod=readonly',
    CGO_ENABLED: '0',
  });
  renameSync(`${target}.new`, target);
  console.log(`${one.name} ${one.version}: built in ${Math.round((performance.now() - begun) / 1_000)} s`);
}

if (import.meta.main) {
  if (!hasGo()) {
    console.error('Go 1.26 or newer is needed to build etcd, kube-apiserver and kubectl');
    process.exit(69);
  }
  for (const one of PROGRAMS) build(one);
}
