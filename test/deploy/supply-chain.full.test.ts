import { cpSync, globSync, mkdirSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, onTestFinished, test } from 'vitest';
import { runChild, startChild } from '../support/child-process.ts';
import { tempFolder } from '../support/temp-folder.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');

interface Locked {
  readonly version?: string;
  readonly integrity?: string;
  readonly resolved?: string;
  readonly link?: boolean;
  readonly dev?: boolean;
  readonly hasInstallScript?: boolean;
}
type LockedPackages = Readonly<Record<string, Locked>>;
const readLock = (file: string): LockedPackages =>
  (JSON.parse(read(file)) as { readonly packages: LockedPackages }).packages;
const listLocked = (packages: LockedPackages): [string, Locked][] =>
  Object.entries(packages).filter(([path]) => path !== '');
const packages = readLock('package-lock.json');
const locked = listLocked(packages);
const inProduction = locked.filter(([, { dev }]) => dev !== true).map(([path]) => path);

interface Manifest {
  readonly dependencies: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
  readonly optionalDependencies: Readonly<Record<string, string>>;
  readonly allowScripts: Readonly<Record<string, boolean>>;
}
const manifest = JSON.parse(read('package.json')) as Manifest;

describe('the lock file', () => {
  test.each(['package-lock.json', 'tools/site/package-lock.json'])(
    '%s has a SHA-512 of every package, and contains no path or repository dependencies',
    (file) => {
      const all = listLocked(readLock(file));
      expect(all.length).toBeGreaterThan(100);
      const unchecked = all.filter(
        ([, { integrity, resolved = 'https://registry.npmjs.org/', link }]) =>
          !/^sha512-[A-Za-z0-9+/]{86}==$/.test(integrity ?? '') ||
          !resolved.startsWith('https://registry.npmjs.org/') ||
          link === true,
      );
      expect(unchecked.map(([path]) => path)).toEqual([]);
    },
  );

  test('pins exactly the versions of package.json', () => {
    const { dependencies, devDependencies, optionalDependencies } = manifest;
    for (const [name, version] of Object.entries({
      ...dependencies,
      ...devDependencies,
      ...optionalDependencies,
    })) {
      expect(version, name).toMatch(/^\d+\.\d+\.\d+$/);
      expect(packages[`node_modules/${name}`]?.version, name).toBe(version);
    }
  });

  test('contains no install scripts in production packages', () => {
    const scripts = locked
      .filter(([, { dev, hasInstallScript }]) => dev !== true && hasInstallScript === true)
      .map(([path]) => path.replace(/^.*node_modules\//, ''));
    for (const name of scripts) expect(manifest.allowScripts[name], name).toBe(false);
  });
});

describe('a production installation', () => {
  test('contains no package that only the demo or tests use', () => {
    for (const name of ['@peculiar/x509', 'reflect-metadata', 'tsyringe'])
      expect(inProduction).not.toContain(`node_modules/${name}`);
    expect(inProduction.filter((path) => path.includes('@peculiar/'))).toEqual([]);
  });

  test('contains every package that the sources import, and the sources import no other', () => {
    const imported = globSync('src/**/*.ts', { cwd: ROOT }).flatMap((file) =>
      [
        ...read(file).matchAll(
          /\bfrom\s+'([^'.][^']*)'|\bimport\s*\(\s*'([^'.][^']*)'\s*\)|^import\s+'([^'.][^']*)'|\brequire\('([^'.][^']*)'\)/gm,
        ),
      ].map((found) => found.slice(1).find((name) => name !== undefined) ?? ''),
    );
    const names = new Set(
      imported.filter((name) => !name.startsWith('node:')).map((name) => /^(?:@[^/]+\/)?[^/]+/.exec(name)?.[0] ?? name),
    );
    expect([...names].toSorted()).toEqual(Object.keys(manifest.dependencies).toSorted());
  });

  test('runs every command, including the demo, without development dependencies', async () => {
    const folder = tempFolder('production');
    onTestFinished(folder.remove);
    cpSync(join(ROOT, 'src'), folder.file('src'), { recursive: true });
    for (const file of ['package.json', 'docs/openapi.json']) cpSync(join(ROOT, file), folder.file(file));
    // Scoped packages are one level deeper; dependencies of a package are resolved from its real path.
    for (const path of inProduction) {
      if (path.slice('node_modules/'.length).includes('node_modules/')) continue;
      mkdirSync(dirname(folder.file(path)), { recursive: true });
      symlinkSync(join(ROOT, path), folder.file(path));
    }
    expect(readdirSync(folder.file('node_modules'))).not.toContain('reflect-metadata');
    const env = { PATH: process.env['PATH'] ?? '', NODE_ENV: 'production' };
    const main = folder.file('src/main.ts');
    // `help` loads all commands.
    const help = await runChild([process.execPath, main, 'help'], { env, seconds: 60 });
    expect(help).toMatchObject({ code: 0, stderr: '' });
    const demo = await startChild([process.execPath, main, 'demo', '--set', 'listen.port=0', '--set', 'admin.port=0'], {
      cwd: folder.path,
      env,
      ready: (line) => line.includes('Events are logged below.'),
    });
    expect((await demo.stop('SIGINT')).code).toBe(0);
  }, 120_000);
});

describe('base images', () => {
  const DIGEST = `sha256:${'0a'.repeat(32)}`;
  const check = (...images: readonly string[]) =>
    runChild(['sh', join(ROOT, 'tools/image/require-digests'), ...images]);

  test('a release build rejects a base image without a digest', async () => {
    expect(await check(`a.example/b@${DIGEST}`, `a.example/b:1@${DIGEST}`)).toMatchObject({ code: 0 });
    for (const image of [
      'a.example/b',
      'a.example/b:1',
      'a.example/b@sha256:',
      `a.example/b@${DIGEST}0`,
      `a.example/b@${DIGEST.toUpperCase()}`,
      `a.example/b@${DIGEST.replace('0a', 'xy')}`,
      `a.example/b:sha256-${'0a'.repeat(32)}`,
      '',
    ]) {
      const { code, stderr } = await check(`a.example/b@${DIGEST}`, image);
      expect(code, image).toBe(1);
      expect(stderr).toContain('has no digest');
    }
  });

  test('the Dockerfile checks both base images before anything else', () => {
    const file = read('deploy/docker/Dockerfile');
    const froms = [...file.matchAll(/^FROM (\S+)/gm)].map(([, base]) => base);
    expect(froms).toEqual(['${BUILD_BASE}', '${RUNTIME_BASE}']);
    const [first] = /^RUN .*$/m.exec(file) ?? [];
    expect(first).toBe('RUN [ "$RELEASE" != true ] || sh tools/image/require-digests "$BUILD_BASE" "$RUNTIME_BASE"');
  });

  test('every other image in deploy/ has a version and can be replaced by a digest', () => {
    const images = [...read('deploy/compose/compose.yaml').matchAll(/^\s*image: (\S+)$/gm)].map(([, one]) => one);
    expect(new Set(images)).toEqual(new Set(['gatehouse:local', '${VALKEY_IMAGE:-docker.io/valkey/valkey:9.1.1}']));
    expect(read('helm/gatehouse/values.yaml').match(/^ +digest: ""$/gm)).toHaveLength(2);
  });
});
