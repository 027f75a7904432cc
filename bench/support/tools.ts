import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The programs gatehouse is compared with, and those that make the load: installed or built when they are missing. */
const PACKAGES = { nginx: 'nginx-light', haproxy: 'haproxy', wrk: 'wrk', h2load: 'nghttp2-client' } as const;
export type Tool = keyof typeof PACKAGES;

/** `sbin` is not in everybody's path. */
const find = (tool: string): string | undefined =>
  [...(process.env['PATH'] ?? '').split(':'), '/usr/sbin', '/usr/local/sbin', '/usr/local/go/bin']
    .map((folder) => join(folder, tool))
    .find((file) => existsSync(file));

const INSTALL_SECONDS = 180;

/** Where each of them is; those that could not be had are left out, with a line. */
export function findTools(log: (text: string) => void): Partial<Record<Tool, string>> {
  const tools = Object.keys(PACKAGES) as Tool[];
  const missing = tools.filter((tool) => find(tool) === undefined);
  if (missing.length > 0 && process.getuid?.() === 0 && find('apt-get') !== undefined) {
    const packages = missing.map((tool) => PACKAGES[tool]);
    log(`installing ${packages.join(', ')}`);
    spawnSync('apt-get', ['install', '-y', ...packages], {
      stdio: 'ignore',
      timeout: INSTALL_SECONDS * 1_000,
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
  }
  const found: Partial<Record<Tool, string>> = {};
  for (const tool of tools) {
    const file = find(tool);
    if (file !== undefined) found[tool] = file;
    else log(`skipped: ${tool} is not there (apt-get install -y ${PACKAGES[tool]})`);
  }
  return found;
}

/** Pinned, so that figures of two days are about the same program. */
const GO_PROGRAMS = {
  'oauth2-proxy': { module: 'github.com/oauth2-proxy/oauth2-proxy/v7', version: 'v7.8.1' },
  oathkeeper: { module: 'github.com/ory/oathkeeper', version: 'v0.40.9' },
} as const;
export type GoProgram = keyof typeof GO_PROGRAMS;

const BUILD_SECONDS = 300;

/** Built once from the Go module proxy, then kept below the folder for temporary files. */
export function buildGo(name: GoProgram): string {
  const { module, version } = GO_PROGRAMS[name];
  const folder = join(tmpdir(), 'gatehouse-bench-peers', `${name}-${version}`);
  const file = join(folder, name);
  if (existsSync(file)) return file;
  const go = find('go');
  if (go === undefined) throw new Error('Go is not there to build it with');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'go.mod'), `module bench\n\ngo 1.24\n\nrequire ${module} ${version}\n`);
  try {
    // Moved into place when it is whole: a build that was broken off is not taken for one.
    execFileSync(go, ['build', '-mod=mod', '-o', `${name}.new`, module], {
      cwd: folder,
      stdio: 'ignore',
      timeout: BUILD_SECONDS * 1_000,
    });
    execFileSync('mv', [`${file}.new`, file]);
    return file;
  } catch (error) {
    throw new Error(`${version} could not be built within ${BUILD_SECONDS} s`, { cause: error });
  }
}
