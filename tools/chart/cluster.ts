import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CACHE, go, hasGo } from './install.ts';

/**
 * Builds a Kubernetes. The control plane (etcd, kube-apiserver and kubectl) validates objects, but no pod runs; with `--nodes`,
 * also what runs pods. The `go.mod` of each folder pins every version, `go.sum` every checksum. Kubernetes requires its own
 * staging modules without a version, hence the replacements there.
 */
const KUBERNETES_MODULE = fileURLToPath(new URL('cluster', import.meta.url));
/** Has a module of its own, because it requires other versions of what Kubernetes requires. */
const COREDNS_MODULE = fileURLToPath(new URL('coredns', import.meta.url));

const KUBERNETES = readVersion(KUBERNETES_MODULE, 'k8s.io/kubernetes');

const kubernetesProgram = <Name extends string>(name: Name) =>
  ({ name, folder: KUBERNETES_MODULE, main: `k8s.io/kubernetes/cmd/${name}`, version: KUBERNETES }) as const;

const CONTROL_PLANE = [
  {
    name: 'etcd',
    folder: KUBERNETES_MODULE,
    main: 'go.etcd.io/etcd/server/v3',
    version: readVersion(KUBERNETES_MODULE, 'go.etcd.io/etcd/server/v3'),
  },
  kubernetesProgram('kube-apiserver'),
  kubernetesProgram('kubectl'),
] as const;

const NODES = [
  kubernetesProgram('kube-controller-manager'),
  kubernetesProgram('kube-scheduler'),
  kubernetesProgram('kube-proxy'),
  kubernetesProgram('kubelet'),
  {
    name: 'coredns',
    folder: COREDNS_MODULE,
    main: '.',
    version: readVersion(COREDNS_MODULE, 'github.com/coredns/coredns'),
  },
] as const;

const PROGRAMS = [...CONTROL_PLANE, ...NODES];

type ProgramSource = (typeof PROGRAMS)[number];
export type ClusterProgram = ProgramSource['name'];

function readVersion(folder: string, module: string): string {
  const lines = readFileSync(join(folder, 'go.mod'), 'utf8').split('\n');
  const found = lines
    .map((line) =>
      line
        .trim()
        .replace(/^require /, '')
        .split(' '),
    )
    .find(([name, second]) => name === module && second?.startsWith('v'))?.[1];
  if (found === undefined) throw new Error(`${module} is not in go.mod`);
  return found;
}

const getTargetPath = ({ name, version }: ProgramSource): string => join(CACHE, 'bin', `${name}-${version}`);

/** The path of a built program. */
export function clusterProgram(name: ClusterProgram): string {
  const found = PROGRAMS.find((candidate) => candidate.name === name);
  if (found === undefined || !existsSync(getTargetPath(found)))
    throw new Error(
      `${name} is not installed; run node tools/chart/cluster.ts${CONTROL_PLANE.some((one) => one.name === name) ? '' : ' --nodes'}`,
    );
  return getTargetPath(found);
}

/** Builds the missing programs. One invocation of Go for each module compiles the packages that programs share once. */
function build(programs: readonly ProgramSource[]): void {
  for (const [folder, sources] of Map.groupBy(programs, (source) => source.folder)) {
    const missing = sources.filter((source) => !existsSync(getTargetPath(source)));
    if (missing.length === 0) continue;
    const begun = performance.now();
    mkdirSync(join(CACHE, 'bin'), { recursive: true });
    const output = mkdtempSync(join(CACHE, 'build-'));
    try {
      const args = ['build', '-trimpath', '-ldflags', `-s -w ${describeVersion()}`, '-o', `${output}/`];
      go([...args, ...missing.map(({ main }) => main)], folder, {
        GOFLAGS: '-mod=readonly',
        CGO_ENABLED: '0',
      });
      for (const source of missing) renameSync(join(output, getBuiltName(source)), getTargetPath(source));
    } finally {
      rmSync(output, { recursive: true, force: true });
    }
    const names = missing.map(({ name, version }) => `${name} ${version}`).join(', ');
    console.log(`${names}: built in ${Math.round((performance.now() - begun) / 1_000)} s`);
  }
}

/** The file name that Go derives from the path of a package: `server` for etcd. */
function getBuiltName({ folder, main }: ProgramSource): string {
  const path = main === '.' ? folder : main.replace(/\/v\d+$/, '');
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Without this, the version is 0.0.0, and Helm considers the cluster too old for the chart. */
function describeVersion(): string {
  const [major, minor] = KUBERNETES.slice(1).split('.');
  return Object.entries({ gitVersion: KUBERNETES, gitMajor: major, gitMinor: minor })
    .map(([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`)
    .join(' ');
}

if (import.meta.main) {
  const programs = process.argv.includes('--nodes') ? PROGRAMS : CONTROL_PLANE;
  if (!hasGo()) {
    console.error(`Go 1.26 or newer is needed to build ${programs.map(({ name }) => name).join(', ')}`);
    process.exit(69);
  }
  build(programs);
}
