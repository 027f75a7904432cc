import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer, get } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { createKeyringFile } from '../../src/tokens/keyring-file.ts';
import { freePort } from '../support/front-proxy.ts';
import { until } from '../support/serve-process.ts';
import { buildImage, type Image } from './build.ts';

let image: Image;
let folder: string;
beforeAll(() => {
  image = buildImage();
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-image-run-'));
});
afterAll(() => {
  image?.remove();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/**
 * Like a container runtime: own mount and process namespaces, read-only root, the image's user, no capabilities and no new
 * privileges. `$1` root, `$2` data, `$3` configuration; the remaining arguments are the command.
 */
const CONTAIN = `
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$2" "$1/var/lib/gatehouse"
mount -t tmpfs -o mode=0755 secret "$1/etc/gatehouse"
cp -r "$3"/. "$1/etc/gatehouse/"
chmod -R u=rX,go=rX "$1/etc/gatehouse"
mount --bind "$1/etc/gatehouse" "$1/etc/gatehouse"
mount -o remount,bind,ro "$1/etc/gatehouse"
mount -t proc proc "$1/proc"
mount -o remount,ro,bind "$1"
root=$1; shift 3
exec chroot "$root" /usr/local/bin/node -e '
  process.setgroups([]); process.setgid(65532); process.setuid(65532); process.chdir("/var/lib/gatehouse");
  process.execve(process.argv[1], process.argv.slice(1), { NODE_ENV: "production", PATH: "/usr/local/bin" });
' "$@"
`;

function startContainer(
  args: readonly string[],
  options: { readonly data?: string; readonly etc?: string } = {},
): ChildProcess {
  const data = options.data ?? join(folder, 'data');
  const etc = options.etc ?? join(folder, 'etc');
  for (const path of [data, etc]) mkdirSync(path, { recursive: true });
  spawnSync('chown', ['65532:65532', data]);
  return spawn(
    'unshare',
    ['--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', CONTAIN, 'sh', image.root, data, etc, ...args],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  );
}

async function runInContainer(
  args: readonly string[],
  etc?: string,
): Promise<{ code: number | null; out: string; err: string }> {
  const child = startContainer(args, etc === undefined ? {} : { etc });
  let [out, err] = ['', ''];
  child.stdout?.on('data', (part: Buffer) => void (out += part.toString()));
  child.stderr?.on('data', (part: Buffer) => void (err += part.toString()));
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { code, out, err };
}

const listFiles = (at: string): string[] =>
  readdirSync(at, { recursive: true, encoding: 'utf8' }).filter((name) => !name.startsWith('proc/'));

test('A9 O11 the image declares its user and version', () => {
  expect(image.config).toMatchObject({
    User: '65532:65532',
    Entrypoint: ['/usr/local/bin/gatehouse'],
    Cmd: ['serve'],
    WorkingDir: '/var/lib/gatehouse',
  });
  // Node would warn about the missing file at every start.
  expect(image.config.Env.filter((line) => line.startsWith('NODE_EXTRA_CA_CERTS='))).toEqual([]);
});

test('A9 the image is at most 55 MB compressed', () => {
  console.log(`compressed: ${(image.compressed / 1e6).toFixed(1)} MB`);
  expect(image.compressed).toBeLessThan(55e6);
});

test('A9 the image has no shell and no package manager', () => {
  const programs = listFiles(image.root).filter((name) => {
    const stat = lstatSync(join(image.root, name));
    return stat.isFile() && (stat.mode & 0o111) !== 0 && !/\.so(\.|$)|\.node$|ld-linux/.test(name);
  });
  expect(programs.filter((name) => !name.startsWith('opt/gatehouse/node_modules/')).sort()).toEqual([
    'usr/local/bin/gatehouse',
    'usr/local/bin/node',
  ]);
  expect(listFiles(image.root).filter((name) => /(^|\/)(sh|bash|dash|busybox|npm|npx|apt|dpkg)$/.test(name))).toEqual(
    [],
  );
  const set = listFiles(image.root).filter((name) => (lstatSync(join(image.root, name)).mode & 0o6000) !== 0);
  expect(set).toEqual([]);
});

test('A9 only the data folder belongs to the image’s user', () => {
  const own = listFiles(image.root).filter((name) => lstatSync(join(image.root, name)).uid !== 0);
  expect(own).toEqual(['var/lib/gatehouse']);
});

test('A9 the image has no dangling symbolic links', () => {
  const dangling = listFiles(image.root).filter((name) => {
    const path = join(image.root, name);
    if (!lstatSync(path).isSymbolicLink()) return false;
    const to = readlinkSync(path);
    return !existsSync(to.startsWith('/') ? join(image.root, to) : join(path, '..', to));
  });
  expect(dangling).toEqual([]);
});

test('A9 the SBOM lists every package and the Node version', () => {
  const app = join(image.root, 'opt/gatehouse');
  const sbom = JSON.parse(readFileSync(join(app, 'sbom.cdx.json'), 'utf8')) as {
    bomFormat: string;
    components: { name: string; group?: string; version: string }[];
  };
  expect(sbom.bomFormat).toBe('CycloneDX');
  const named = new Set(sbom.components.map(({ name, version }) => `${name}@${version}`));
  const inside = listFiles(join(app, 'node_modules'))
    .filter((name) => /(^|node_modules\/)(@[^/]+\/)?[^/@]+\/package\.json$/.test(name))
    .map(
      (name) =>
        JSON.parse(readFileSync(join(app, 'node_modules', name), 'utf8')) as {
          name?: string;
          version?: string;
        },
    )
    .filter(({ name, version }) => name !== undefined && version !== undefined)
    .map(({ name, version }) => `${name}@${version}`);
  expect(inside.length).toBeGreaterThan(10);
  expect(inside.filter((name) => !named.has(name))).toEqual([]);
  expect([...named].some((name) => name.startsWith(`node-linux-${process.arch}@${process.versions.node}`))).toBe(true);
  expect(inside.filter((name) => /^(vitest|typescript|esbuild|@biomejs)/.test(name))).toEqual([]);
});

test('A9 the commands work without a configuration', async () => {
  expect(await runInContainer(['/usr/local/bin/gatehouse', 'version'])).toMatchObject({
    code: 0,
    out: expect.stringContaining(`Node ${process.versions.node}`),
  });
  expect(await runInContainer(['/usr/local/bin/gatehouse', 'sleep', '0.1'])).toMatchObject({ code: 0 });
  expect(await runInContainer(['/usr/local/bin/gatehouse', 'serve'])).toMatchObject({ code: 78 });
});

test('A9 O11 O14 as process 1 with a read-only root, it serves, is healthy and drains on SIGTERM', async () => {
  const [port, admin] = [await freePort(), await freePort()];
  const api = createServer((_request, response) => {
    setTimeout(() => response.end('done'), 1_000);
  });
  await new Promise<void>((resolve) => api.listen(0, '127.0.0.1', resolve));
  const etc = join(folder, 'etc-serve');
  mkdirSync(etc);
  // Mounted as by a kubelet in a pod without fsGroup: files of root on a tmpfs, read-only.
  writeFileSync(join(etc, 'keys.json'), JSON.stringify(createKeyringFile('EdDSA')));
  writeFileSync(
    join(etc, 'gatehouse.yaml'),
    stringify({
      publicUrl: 'http://localhost',
      listen: { host: '127.0.0.1', port, behindTls: true, workers: 2 },
      admin: { port: admin, tokenFile: '/var/lib/gatehouse/admin-token' },
      keys: { file: 'keys.json' },
      store: { path: '/var/lib/gatehouse/store' },
      upstreams: { default: { url: `http://127.0.0.1:${(api.address() as AddressInfo).port}` } },
      routes: [{ path: '/**', public: true }],
      shutdown: { preStop: '200ms', drain: '10s' },
    }),
  );
  const child = startContainer(['/usr/local/bin/gatehouse', 'serve'], { etc });
  const lines: Record<string, unknown>[] = [];
  let errors = '';
  child.stderr?.on('data', (part: Buffer) => void (errors += part.toString()));
  if (child.stdout)
    createInterface({ input: child.stdout }).on(
      'line',
      (line) => void lines.push(JSON.parse(line) as Record<string, unknown>),
    );
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  try {
    const ready = await until(
      'the process is ready',
      () =>
        lines.find(({ event }) => event === 'ready') ?? (child.exitCode !== null && Promise.reject(new Error(errors))),
      30,
    );
    expect(ready).toMatchObject({ pid: 1, port });
    const health = await runInContainer(['/usr/local/bin/gatehouse', 'health', '--url', `http://127.0.0.1:${admin}`]);
    expect(health).toMatchObject({ code: 0, out: 'ready\n' });
    const inside = only(
      spawnSync('pgrep', ['-P', String(child.pid)], { encoding: 'utf8' })
        .stdout.trim()
        .split('\n'),
    );
    const status = readFileSync(`/proc/${inside}/status`, 'utf8');
    expect(status).toMatch(/^Uid:\s+65532\s+65532\s+65532\s+65532$/m);
    expect(status).toMatch(/^NSpid:\s+\d+\s+1$/m);
    const running = new Promise<string>((resolve, reject) => {
      get({ port, host: '127.0.0.1', path: '/slow' }, (response) => {
        let text = '';
        response.on('data', (part: Buffer) => void (text += part.toString()));
        response.on('end', () => resolve(`${response.statusCode} ${text}`));
      }).on('error', reject);
    });
    await until(
      'the request has reached the upstream',
      () => new Promise<boolean>((resolve) => api.getConnections((_, count) => resolve(count > 0))),
    );
    process.kill(Number(inside), 'SIGTERM');
    expect(await running).toBe('200 done');
    expect(await ended).toBe(0);
    expect(readdirSync(join(folder, 'data/store')).length).toBeGreaterThan(0);
  } finally {
    child.kill('SIGKILL');
    api.closeAllConnections();
    api.close();
  }
});

function only(found: readonly string[]): string {
  const [first, ...more] = found;
  if (first === undefined || more.length > 0) throw new Error(`${found.length} processes`);
  return first;
}
