import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CACHE } from '../../tools/chart/install.ts';

/** With an empty build cache, Go also compiles its standard library. */
const BUILD_MS = 900_000;

export interface GoProgram {
  /** Why the program cannot be built here, and what to install; undefined if it can be built. */
  readonly missing: string | undefined;
  /** Builds the program once for all runs; returns its path. */
  build(): Promise<string>;
}

/**
 * A program from a folder whose `go.mod` and `go.sum` pin the versions. `name` is the name of its file, `main` the package to
 * build: that of the folder unless it is one of a tool.
 */
export function goProgram(sources: string, name: string, main = '.'): GoProgram {
  // The `go` directive: an older Go does not build the module.
  const [, major, minor] = /^go (\d+)\.(\d+)/m.exec(readFileSync(join(sources, 'go.mod'), 'utf8')) ?? [];
  const isNewEnough = (version: string): boolean => {
    const [, hasMajor, hasMinor] = /\bgo(\d+)\.(\d+)/.exec(version) ?? [];
    return Number(hasMajor) > Number(major) || (hasMajor === major && Number(hasMinor) >= Number(minor));
  };
  const go = ['go', '/usr/local/go/bin/go'].find((command) => {
    const { status, stdout } = spawnSync(command, ['version'], { encoding: 'utf8' });
    return status === 0 && isNewEnough(stdout);
  });
  const missing =
    go === undefined
      ? `Go ${major}.${minor} or newer is needed. Install it from https://go.dev/dl/ and add its bin folder to PATH, or unpack it to /usr/local/go.`
      : undefined;
  return {
    missing,
    async build() {
      if (go === undefined) throw new Error(missing);
      const digest = createHash('sha256');
      for (const file of readdirSync(sources).toSorted())
        digest.update(`${file}\n`).update(readFileSync(join(sources, file)));
      const target = join(CACHE, 'bin', `${name}-${digest.digest('hex').slice(0, 16)}`);
      if (existsSync(target)) return target;
      mkdirSync(join(CACHE, 'bin'), { recursive: true });
      const built = `${target}.${process.pid}`;
      await promisify(execFile)(go, ['build', '-trimpath', '-o', built, main], {
        cwd: sources,
        timeout: BUILD_MS,
        env: { ...process.env, GOTOOLCHAIN: 'local', GOFLAGS: '-mod=readonly', CGO_ENABLED: '0' },
      });
      renameSync(built, target);
      return target;
    },
  };
}
