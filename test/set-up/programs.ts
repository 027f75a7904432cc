import { accessSync, constants, readdirSync, readFileSync } from 'node:fs';
import { delimiter, dirname, join, relative, resolve } from 'node:path';
import { installPackagesCommand } from './install-packages.ts';

/** Programs that the tests need in addition to Node, and the Debian packages that contain them. */
const PACKAGES = {
  curl: 'curl',
  openssl: 'openssl',
  nginx: 'nginx-light',
  haproxy: 'haproxy',
  caddy: 'caddy',
  'redis-server': 'redis-server',
  'systemd-analyze': 'systemd',
  python3: 'python3',
  pip3: 'python3-pip',
  promtool: 'prometheus',
  chromium: 'chromium',
  slapd: 'slapd',
  strace: 'strace',
  h2load: 'nghttp2-client',
  nghttp: 'nghttp2-client',
  javac: 'default-jdk-headless',
  bash: 'bash',
  zsh: 'zsh',
  fish: 'fish',
  mandoc: 'mandoc',
  script: 'bsdutils',
} as const;

export type Program = keyof typeof PACKAGES;

const ROOT = resolve(import.meta.dirname, '../..');

/**
 * Declares, at the top of a module, which programs it starts. Vitest's configuration reads these calls: a test file that
 * imports such a module, directly or not, is skipped while one of the programs is missing.
 */
export function needs(...programs: readonly Program[]): void {
  const missing = programs.filter((program) => !isInstalled(program));
  if (missing.length > 0)
    throw new Error(`not installed: ${missing.join(', ')}; run: ${installCommand(missing)}`);
}

export function isInstalled(program: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

export const missingPrograms = (): readonly Program[] =>
  (Object.keys(PACKAGES) as Program[]).filter((program) => !isInstalled(program));

export const packagesOf = (programs: readonly Program[]): readonly string[] => [
  ...new Set(programs.map((program) => PACKAGES[program])),
];

export const installCommand = (programs: readonly Program[]): string =>
  installPackagesCommand(packagesOf(programs));

export interface SkippedFiles {
  /** Paths of test files, relative to the project root. */
  readonly files: readonly string[];
  readonly programs: readonly Program[];
}

/** The test files that cannot run because a program is missing. */
export function skippedFiles(): SkippedFiles {
  const missing = new Set<string>(missingPrograms());
  if (missing.size === 0) return { files: [], programs: [] };
  const known = new Map<string, ReadonlySet<string>>();
  const programs = new Set<Program>();
  const files = readdirSync(join(ROOT, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => join(ROOT, 'test', name))
    .filter((file) => {
      const needed = [...listNeeded(file, known)].filter((program) => missing.has(program)) as Program[];
      for (const program of needed) programs.add(program);
      return needed.length > 0;
    });
  return { files: files.map((file) => relative(ROOT, file)), programs: [...programs] };
}

/** The arguments of the `needs` calls of a module and its imports. */
function listNeeded(file: string, known: Map<string, ReadonlySet<string>>): ReadonlySet<string> {
  const before = known.get(file);
  if (before !== undefined) return before;
  const found = new Set<string>();
  known.set(file, found);
  const source = readFileSync(file, 'utf8');
  for (const [, list = ''] of source.matchAll(/^needs\(([^)]*)\);$/gm))
    for (const [, program = ''] of list.matchAll(/'([^']+)'/g)) found.add(program);
  for (const [, path = ''] of source.matchAll(/ from '(\.[^']+\.ts)'/g)) {
    const imported = resolve(dirname(file), path);
    if (imported.startsWith(join(ROOT, 'test')))
      for (const program of listNeeded(imported, known)) found.add(program);
  }
  return found;
}
