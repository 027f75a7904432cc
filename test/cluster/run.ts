import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { hasGo } from '../../tools/chart/install.ts';
import { installPackages, installPackagesCommand } from '../set-up/install-packages.ts';
import { isInstalled } from '../set-up/programs.ts';
import { until } from '../support/until.ts';
import { buildImages } from './images.ts';
import { findMissingKernelFeature, findObstacle, listCgroupMounts, missingPackages } from './requirements.ts';

/**
 * `npm run test:cluster`: runs the tests and a Kubernetes for them in new network, mount and process namespaces. When the
 * first process in there ends, however it ends, the kernel ends all others and removes mounts and network devices. What is
 * left to remove afterwards: a folder and the cgroups under our own.
 */
const CONFIG = 'test/cluster/vitest.config.ts';

/** Kernel parameters that the kubelet sets for the whole machine; restored at the end. */
const KUBELET_SYSCTLS = [
  'vm/overcommit_memory',
  'vm/panic_on_oom',
  'kernel/panic',
  'kernel/panic_on_oops',
  'kernel/keys/root_maxkeys',
  'kernel/keys/root_maxbytes',
].map((name) => `/proc/sys/${name}`);

async function prepare(): Promise<string | undefined> {
  const obstacle = findObstacle();
  if (obstacle !== undefined) return obstacle;
  if (!hasGo()) return 'Go 1.26 or newer is needed to build Kubernetes';
  const packages = missingPackages();
  if (packages.length > 0) {
    if (!isInstalled('apt-get')) return `not installed: ${packages.join(', ')}`;
    await installPackages(packages);
    const still = missingPackages();
    if (still.length > 0) return `not found after ${installPackagesCommand(packages)}: ${still.join(', ')}`;
  }
  return findMissingKernelFeature();
}

/** Takes about a quarter of an hour the first time, on two cores. */
function buildTools(): void {
  for (const args of [['tools/chart/install.ts'], ['tools/chart/cluster.ts', '--nodes']])
    execFileSync('nice', ['-n', '15', process.execPath, ...args], { stdio: 'inherit' });
}

/** Returns the exit code of the tests. */
async function runInNamespaces(args: readonly string[], env: Readonly<Record<string, string>>): Promise<number> {
  // The namespaces end with this process.
  const namespaces = 'unshare --mount --net --pid --fork --kill-child --mount-proc'.split(' ');
  // Process 1 must reap orphans, which Node does not do.
  const init = ['bash', '-c', '"$@"; exit $?', 'bash'];
  const vitest = ['vitest', 'run', '--config', CONFIG, ...args];
  const options = ['--pdeathsig', 'KILL', ...namespaces, ...init, ...vitest];
  const child = spawn('setpriv', options, { stdio: 'inherit', env: { ...process.env, ...env } });
  const end = (): void => void child.kill('SIGKILL');
  process.once('SIGTERM', end).once('SIGHUP', end);
  // The terminal sends SIGINT to vitest as well, which then stops the cluster.
  process.on('SIGINT', () => {});
  const [code] = (await once(child, 'exit')) as [number | null];
  return code ?? 1;
}

/** A cgroup can be removed when its processes have ended, which the kernel does not wait for. */
async function removeCgroup(path: string): Promise<void> {
  const remove = (folder: string): void => {
    for (const entry of readdirSync(folder, { withFileTypes: true }))
      if (entry.isDirectory()) remove(join(folder, entry.name));
    rmdirSync(folder);
  };
  await until(
    `${path} is removed`,
    () => {
      try {
        if (existsSync(path)) remove(path);
        return true;
      } catch {
        return false;
      }
    },
    30,
  );
}

const problem = await prepare();
if (problem !== undefined) {
  console.log(`test:cluster is skipped: ${problem}`);
  process.exit(0);
}
buildTools();
const images = await buildImages();
const folder = mkdtempSync(join(tmpdir(), 'gatehouse-cluster-'));
const cgroups = listCgroupMounts().map((mount) => join(mount, basename(folder)));
const before = KUBELET_SYSCTLS.map((file) => ({ file, value: readFileSync(file, 'utf8') }));
try {
  for (const cgroup of cgroups) mkdirSync(cgroup);
  process.exitCode = await runInNamespaces(process.argv.slice(2), {
    CLUSTER_FOLDER: folder,
    CLUSTER_CGROUP: basename(folder),
    CLUSTER_IMAGES: images.join(':'),
  });
} finally {
  for (const { file, value } of before) if (readFileSync(file, 'utf8') !== value) writeFileSync(file, value);
  for (const cgroup of cgroups) await removeCgroup(cgroup).catch((error: Error) => console.error(error.message));
  if (process.env['CLUSTER_KEEP_LOGS'] !== undefined) console.log(`logs: ${folder}`);
  else rmSync(folder, { recursive: true, force: true });
}
