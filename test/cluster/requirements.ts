import { spawnSync } from 'node:child_process';
import { accessSync, constants, readFileSync } from 'node:fs';

/** Programs from Debian that run the pods and build the images. */
const PACKAGES: Readonly<Record<string, string>> = {
  '/usr/bin/containerd': 'containerd',
  '/usr/sbin/runc': 'runc',
  '/usr/lib/cni/bridge': 'containernetworking-plugins',
  '/usr/sbin/nft': 'nftables',
  '/usr/sbin/ip': 'iproute2',
  '/usr/bin/setpriv': 'util-linux',
  '/usr/bin/buildah': 'buildah',
  '/bin/busybox': 'busybox-static',
  '/usr/bin/redis-server': 'redis-server',
  '/usr/bin/openssl': 'openssl',
};

const isExecutable = (file: string): boolean => {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
};

export const missingPackages = (): readonly string[] =>
  Object.entries(PACKAGES)
    .filter(([file]) => !isExecutable(file))
    .map(([, name]) => name);

/** Why a cluster cannot run on this machine, whatever is installed; undefined if it can. */
export function findObstacle(): string | undefined {
  if (process.platform !== 'linux') return 'a cluster needs Linux';
  if (process.geteuid?.() !== 0)
    return 'a cluster needs root: it creates namespaces, mounts and cgroups; run it in a virtual machine if you do not want that';
  const namespaces = spawnSync('unshare', ['--mount', '--net', '--pid', '--fork', 'true']);
  if (namespaces.status !== 0)
    return 'this machine does not allow new mount, network and process namespaces (a container without privileges?)';
  if (!/\toverlay$/m.test(readFileSync('/proc/filesystems', 'utf8')) && !loadsModule('overlay'))
    return 'the kernel has no overlayfs';
  if (listCgroupMounts().length === 0) return 'no cgroup file system is mounted and writable';
  return undefined;
}

/** What the kernel lacks; needs the installed programs. */
export function findMissingKernelFeature(): string | undefined {
  const inNamespace = (script: string): boolean => spawnSync('unshare', ['--net', 'sh', '-ec', script]).status === 0;
  if (!inNamespace('ip link add name veth0 type veth peer name veth1')) return 'the kernel has no veth devices';
  if (!inNamespace('ip link add name bridge0 type bridge')) return 'the kernel has no bridges';
  const table =
    'add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; add rule ip t c masquerade';
  if (!inNamespace(`nft '${table}'`)) return 'the kernel has no nftables with NAT';
  return undefined;
}

const loadsModule = (name: string): boolean => spawnSync('modprobe', [name]).status === 0;

/** The mount points of the cgroup hierarchies: one for cgroup v2, one for each controller of v1. */
export const listCgroupMounts = (): readonly string[] =>
  readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(' ')[4] ?? '')
    .filter((path) => path.startsWith('/sys/fs/cgroup'))
    .filter((path) => {
      try {
        accessSync(path, constants.W_OK);
        return true;
      } catch {
        return false;
      }
    });
