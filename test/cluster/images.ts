import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { CACHE } from '../../tools/chart/install.ts';
import { buildImage, copyLibraries } from '../image/build.ts';
import { goProgram } from '../support/go-program.ts';

const ROOT = join(import.meta.dirname, '../..');
const FOLDER = join(CACHE, 'images');

/** The names under which the chart and the tests use the images. */
export const IMAGES = {
  gatehouse: 'docker.io/library/gatehouse:0.1.0',
  pause: 'localhost/pause:1',
  /** The API behind gatehouse. */
  api: 'localhost/api:1',
  /** The image that the chart uses for evaluation. Debian has no Valkey yet: it contains redis-server under that name. */
  valkey: 'docker.io/valkey/valkey:9.1.1',
  /** The API of the tutorials. It cannot be built here: the toolbox responds in its format. */
  whoami: 'docker.io/traefik/whoami:v1.11.0',
} as const;

/** A second tag of gatehouse's image, for upgrades. */
export const NEXT_TAG = '0.1.0-next';

/** Builds what is not in the cache. Returns the archives for `ctr images import`. */
export async function buildImages(): Promise<readonly string[]> {
  mkdirSync(FOLDER, { recursive: true });
  const toolbox = await goProgram(join(import.meta.dirname, 'toolbox'), 'toolbox').build();
  return [
    buildGatehouse(),
    buildFromFiles(IMAGES.pause, ['/toolbox'], { '/toolbox': toolbox }),
    buildFromFiles(IMAGES.api, ['/toolbox'], { '/toolbox': toolbox }),
    buildFromFiles(IMAGES.whoami, ['/toolbox', 'whoami'], { '/toolbox': toolbox }),
    buildFromFiles(
      IMAGES.valkey,
      ['valkey-server'],
      { '/usr/local/bin/valkey-server': '/usr/bin/redis-server' },
      (root) => {
        copyLibraries(root, ['/usr/bin/redis-server'], () => true);
      },
    ),
  ];
}

/** What the image is built from. */
const SOURCES = [
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'LICENSE',
  'src/**/*.ts',
  'docs/openapi.json',
  'tools/image/*',
  'deploy/docker/*',
  'test/image/build.ts',
];

/** Built in one or two minutes, hence only after a change of its sources. */
function buildGatehouse(): string {
  const digest = createHash('sha256').update(process.version);
  for (const file of SOURCES.flatMap((pattern) => globSync(pattern, { cwd: ROOT })).sort())
    if (statSync(join(ROOT, file)).isFile())
      digest
        .update(`${file}\0`)
        .update(readFileSync(join(ROOT, file)))
        .update('\0');
  const archive = join(FOLDER, `gatehouse-${digest.digest('hex').slice(0, 16)}.tar`);
  if (existsSync(archive)) return archive;
  const begun = performance.now();
  const image = buildImage();
  try {
    image.save(`${archive}.new`, IMAGES.gatehouse);
  } finally {
    image.remove();
  }
  renameSync(`${archive}.new`, archive);
  removeOldArchives();
  console.log(`${IMAGES.gatehouse}: built in ${Math.round((performance.now() - begun) / 1_000)} s`);
  return archive;
}

/** Images of other states of the sources. A run in another checkout may still import a recent one. */
function removeOldArchives(): void {
  const yesterday = Date.now() - 86_400_000;
  for (const name of readdirSync(FOLDER).filter((file) => /^gatehouse-[0-9a-f]{16}\.tar$/.test(file)))
    if (statSync(join(FOLDER, name)).mtimeMs < yesterday) rmSync(join(FOLDER, name));
}

/** An image of one layer, in the format of `docker save`. */
function buildFromFiles(
  name: string,
  entrypoint: readonly string[],
  files: Readonly<Record<string, string>>,
  fill: (root: string) => void = () => {},
): string {
  const folder = mkdtempSync(join(FOLDER, 'build-'));
  const archive = join(FOLDER, `${name.replaceAll(/[^a-z0-9.]+/g, '-')}.tar`);
  try {
    const root = join(folder, 'root');
    mkdirSync(root);
    fill(root);
    for (const [path, source] of Object.entries(files)) {
      mkdirSync(join(root, path, '..'), { recursive: true });
      copyFileSync(source, join(root, path));
    }
    const layer = join(folder, 'layer.tar');
    execFileSync('tar', ['-C', root, '--owner=0', '--group=0', '--numeric-owner', '-cf', layer, '.']);
    const layerDigest = createHash('sha256').update(readFileSync(layer)).digest('hex');
    const config = JSON.stringify({
      architecture: process.arch === 'x64' ? 'amd64' : process.arch,
      os: 'linux',
      config: { Entrypoint: entrypoint, Env: ['PATH=/usr/local/bin:/usr/bin:/bin'], WorkingDir: '/' },
      rootfs: { type: 'layers', diff_ids: [`sha256:${layerDigest}`] },
    });
    const configFile = `${createHash('sha256').update(config).digest('hex')}.json`;
    writeFileSync(join(folder, configFile), config);
    const manifest = [{ Config: configFile, RepoTags: [name], Layers: ['layer.tar'] }];
    writeFileSync(join(folder, 'manifest.json'), JSON.stringify(manifest));
    const built = join(folder, 'image.tar');
    execFileSync('tar', ['-C', folder, '-cf', built, configFile, 'layer.tar', 'manifest.json']);
    renameSync(built, archive);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return archive;
}
