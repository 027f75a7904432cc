import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const ROOT = join(import.meta.dirname, '../..');
const NODE = realpathSync(process.execPath);

export interface Image {
  /** The unpacked root file system. */
  readonly root: string;
  readonly config: {
    readonly User: string;
    readonly Entrypoint: readonly string[];
    readonly Cmd: readonly string[];
    readonly WorkingDir: string;
    readonly Env: readonly string[];
  };
  /** Compressed size of all layers in bytes. */
  readonly compressed: number;
  /** Writes an OCI archive for `ctr images import`; containerd stores the image under this name. */
  save(file: string, name: string): void;
  remove(): void;
}

const STRIP = '/usr/bin/strip';
const JEMALLOC = `/usr/lib/${process.arch === 'x64' ? 'x86_64' : 'aarch64'}-linux-gnu/libjemalloc.so.2`;

/** Builds deploy/docker/Dockerfile without a registry; both base images are created from programs of this machine. */
export function buildImage(): Image {
  for (const needed of ['/usr/bin/buildah', '/bin/busybox', STRIP, JEMALLOC])
    if (!existsSync(needed) || process.geteuid?.() !== 0)
      throw new Error(`needs root and ${needed}: apt-get install binutils buildah busybox-static libjemalloc2`);
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-image-'));
  const store = ['--root', join(folder, 'store'), '--runroot', join(folder, 'run'), '--storage-driver', 'vfs'];
  const buildah = (...args: readonly string[]): string =>
    execFileSync('buildah', [...store, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
      maxBuffer: 1 << 26,
      cwd: ROOT,
    });
  const base = (name: string, fill: (root: string) => void, env = ''): void => {
    const baseFolder = join(folder, name);
    mkdirSync(baseFolder);
    fill(baseFolder);
    writeFileSync(join(folder, `${name}.Dockerfile`), `FROM scratch\nCOPY . /\n${env}`);
    buildah('bud', '--isolation', 'chroot', '-f', join(folder, `${name}.Dockerfile`), '-t', name, baseFolder);
    rmSync(baseFolder, { recursive: true });
  };
  base('runtime-base', (root) => copyLibraries(root, [NODE], (name) => !name.startsWith('libatomic')));
  // npm trusts the CAs of this machine, in case a proxy intercepts TLS.
  base('build-base', fillBuildBase, 'ENV HOME=/home/build NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt\n');
  buildah(
    'bud',
    '--isolation',
    'chroot',
    '--volume',
    `${join(homedir(), '.npm')}:/home/build/.npm:rw`,
    '--build-arg',
    'BUILD_BASE=localhost/build-base',
    '--build-arg',
    'RUNTIME_BASE=localhost/runtime-base',
    '--build-arg',
    `NPM_CONFIG_REGISTRY=${execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()}`,
    '-f',
    'deploy/docker/Dockerfile',
    '--ignorefile',
    'deploy/docker/Dockerfile.dockerignore',
    '-t',
    'gatehouse',
    '.',
  );
  const { OCIv1 } = JSON.parse(buildah('inspect', '--type', 'image', 'gatehouse')) as {
    OCIv1: { config: Image['config'] };
  };
  buildah('push', '--quiet', 'gatehouse', `oci:${join(folder, 'oci')}`);
  const blobs = join(folder, 'oci/blobs/sha256');
  const compressed = readdirSync(blobs).reduce((sum, name) => sum + statSync(join(blobs, name)).size, 0);
  const container = buildah('from', 'gatehouse').trim();
  return {
    root: buildah('mount', container).trim(),
    config: OCIv1.config,
    compressed,
    save: (file, name) => {
      const index = join(folder, 'oci/index.json');
      const layout = JSON.parse(readFileSync(index, 'utf8')) as { manifests: { annotations?: object }[] };
      for (const manifest of layout.manifests)
        manifest.annotations = { ...manifest.annotations, 'io.containerd.image.name': name };
      writeFileSync(index, JSON.stringify(layout));
      execFileSync('tar', ['-C', join(folder, 'oci'), '-cf', file, '.']);
    },
    remove: () => {
      spawnSync('buildah', [...store, 'umount', container]);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Copies the loader and the shared libraries of programs to the same paths. */
export function copyLibraries(root: string, programs: readonly string[], wanted: (name: string) => boolean): void {
  const listed = execFileSync('ldd', [...programs], { encoding: 'utf8' });
  const files = new Set([...listed.matchAll(/(\/\S+\.so\S*) \(/g)].map(([, file = '']) => file));
  mkdirSync(join(root, 'usr/lib'), { recursive: true });
  mkdirSync(join(root, 'usr/lib64'));
  symlinkSync('usr/lib', join(root, 'lib'));
  symlinkSync('usr/lib64', join(root, 'lib64'));
  for (const file of files) {
    if (!wanted(file.slice(file.lastIndexOf('/') + 1))) continue;
    const target = join(root, file.replace(/^\/(lib|lib64)\//, '/usr/$1/'));
    mkdirSync(dirname(target), { recursive: true });
    cpSync(realpathSync(file), target);
  }
  mkdirSync(join(root, 'etc'));
  writeFileSync(join(root, 'etc/passwd'), 'root:x:0:0::/:\nnonroot:x:65532:65532::/home/nonroot:\n');
  for (const name of ['proc', 'dev', 'sys']) mkdirSync(join(root, name));
  mkdirSync(join(root, 'tmp'), { mode: 0o777 });
}

/** Node with npm, and a shell for RUN, like the official Node image. */
function fillBuildBase(root: string): void {
  const binding = `@rolldown/binding-linux-${process.arch}-gnu/rolldown-binding.linux-${process.arch}-gnu.node`;
  copyLibraries(root, [NODE, STRIP, join(ROOT, 'node_modules', binding)], () => true);
  const bin = join(root, 'usr/local/bin');
  mkdirSync(bin, { recursive: true });
  cpSync(NODE, join(bin, 'node'));
  const npm = findNpmFolder();
  cpSync(npm, join(root, 'usr/local/lib/node_modules/npm'), { recursive: true, dereference: true });
  symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(bin, 'npm'));
  chmodSync(join(root, 'usr/local/lib/node_modules/npm/bin/npm-cli.js'), 0o755);
  mkdirSync(join(root, 'usr/bin'));
  symlinkSync('usr/bin', join(root, 'bin'));
  cpSync('/bin/busybox', join(root, 'usr/bin/busybox'));
  cpSync(realpathSync(STRIP), join(root, STRIP));
  for (const name of ['sh', 'env', 'rm', 'mkdir', 'cp', 'ls', 'cat'])
    symlinkSync('busybox', join(root, 'usr/bin', name));
  mkdirSync(join(root, 'root'));
  cpSync(realpathSync(JEMALLOC), join(root, JEMALLOC));
  if (existsSync('/etc/ssl/certs/ca-certificates.crt')) {
    mkdirSync(join(root, 'etc/ssl/certs'), { recursive: true });
    cpSync('/etc/ssl/certs/ca-certificates.crt', join(root, 'etc/ssl/certs/ca-certificates.crt'), {
      dereference: true,
    });
  }
}

/** The folder of the npm in use. */
function findNpmFolder(): string {
  for (const folder of (process.env['PATH'] ?? '').split(':')) {
    const command = join(folder, 'npm');
    if (!existsSync(command)) continue;
    const found = dirname(dirname(realpathSync(command)));
    if (existsSync(join(found, 'bin/npm-cli.js'))) return found;
  }
  throw new Error('npm is not on the PATH');
}
