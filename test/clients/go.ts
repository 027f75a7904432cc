import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { CACHE } from '../../tools/chart/install.ts';

/** A client program with golang.org/x/oauth2; `go.mod` and `go.sum` pin the versions. */
const OAUTH_CLIENT = fileURLToPath(new URL('./go', import.meta.url));

/** With an empty build cache, Go also compiles its standard library. */
const BUILD_MS = 900_000;

/** The `go` directive in `go.mod`, the same for all programs: an older Go does not build the module. */
const [, MAJOR, MINOR] = /^go (\d+)\.(\d+)/m.exec(readFileSync(join(OAUTH_CLIENT, 'go.mod'), 'utf8')) ?? [];

const isNewEnough = (version: string): boolean => {
  const [, major, minor] = /\bgo(\d+)\.(\d+)/.exec(version) ?? [];
  return Number(major) > Number(MAJOR) || (major === MAJOR && Number(minor) >= Number(MINOR));
};

/** Undefined if Go is missing or too old. */
const GO = ['go', '/usr/local/go/bin/go'].find((name) => {
  const { status, stdout } = spawnSync(name, ['version'], { encoding: 'utf8' });
  return status === 0 && isNewEnough(stdout);
});

/** Why the programs cannot be built here, and what to install; undefined if they can be built. */
export const missingGo: string | undefined =
  GO === undefined
    ? `Go ${MAJOR}.${MINOR} or newer is needed. Install it from https://go.dev/dl/ and add its bin folder to PATH, or unpack it to /usr/local/go.`
    : undefined;

export const buildGoClient = (): Promise<string> => buildGoProgram('oauth-client', OAUTH_CLIENT);

/** Builds the program in a folder once for all runs; returns its path. */
export async function buildGoProgram(name: string, folder: string): Promise<string> {
  if (GO === undefined) throw new Error(missingGo);
  const digest = createHash('sha256');
  for (const file of readdirSync(folder).toSorted())
    digest.update(`${file}\n`).update(readFileSync(join(folder, file)));
  const target = join(CACHE, 'bin', `${name}-${digest.digest('hex').slice(0, 16)}`);
  if (existsSync(target)) return target;
  mkdirSync(join(CACHE, 'bin'), { recursive: true });
  const built = `${target}.${process.pid}`;
  await promisify(execFile)(GO, ['build', '-trimpath', '-o', built, '.'], {
    cwd: folder,
    timeout: BUILD_MS,
    env: { ...process.env, GOTOOLCHAIN: 'local', GOFLAGS: '-mod=readonly', CGO_ENABLED: '0' },
  });
  renameSync(built, target);
  return target;
}
