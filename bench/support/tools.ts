import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The servers gatehouse is compared with and the load generators, installed if they are missing. */
const PACKAGES = { nginx: 'nginx-light', haproxy: 'haproxy', wrk: 'wrk', h2load: 'nghttp2-client' } as const;
export type Tool = keyof typeof PACKAGES;

/** `sbin` is not in every user's PATH. */
const find = (tool: string): string | undefined =>
  [...(process.env['PATH'] ?? '').split(':'), '/usr/sbin', '/usr/local/sbin', '/usr/local/go/bin']
    .map((folder) => join(folder, tool))
    .find((file) => existsSync(file));

const INSTALL_SECONDS = 180;

/** The paths of the tools; omits unavailable ones and logs a message. */
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
    else log(`skipped: ${tool} is not installed (apt-get install -y ${PACKAGES[tool]})`);
  }
  return found;
}

/** Pinned, so that figures of different days are comparable. */
const GO_PROGRAMS = {
  'oauth2-proxy': { module: 'github.com/oauth2-proxy/oauth2-proxy/v7', version: 'v7.8.1' },
  oathkeeper: { module: 'github.com/ory/oathkeeper', version: 'v0.40.9' },
} as const;
export type GoProgram = keyof typeof GO_PROGRAMS;

const BUILD_SECONDS = 300;

/** Builds the program once from the Go module proxy and caches it in the folder for temporary files. */
export function buildGo(name: GoProgram): string {
  const { module, version } = GO_PROGRAMS[name];
  const folder = join(tmpdir(), 'gatehouse-bench-peers', `${name}-${version}`);
  const file = join(folder, name);
  if (existsSync(file)) return file;
  const go = find('go');
  if (go === undefined) throw new Error('Go is not installed');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'go.mod'), `module bench\n\ngo 1.24\n\nrequire ${module} ${version}\n`);
  try {
    // Moved into place when complete, so that an aborted build is never used.
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
