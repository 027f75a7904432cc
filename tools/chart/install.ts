import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseAllDocuments } from 'yaml';
import { crdSchemas } from './crd-schemas.ts';

/**
 * Builds the programs that check charts and workflows from sources verified by the Go checksum database, into `$XDG_CACHE_HOME/gatehouse-tools`.
 * The checks themselves need no network access.
 */
export const CACHE = join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'gatehouse-tools');

const PROGRAMS = [
  { name: 'helm', module: 'helm.sh/helm/v4', version: 'v4.2.4', main: 'cmd/helm' },
  { name: 'kubeconform', module: 'github.com/yannh/kubeconform', version: 'v0.7.0', main: 'cmd/kubeconform' },
  { name: 'kustomize', module: 'sigs.k8s.io/kustomize/kustomize/v5', version: 'v5.8.1', main: '.' },
  {
    name: 'helm-unittest',
    module: 'github.com/helm-unittest/helm-unittest',
    version: 'v1.1.2',
    main: 'cmd/helm-unittest',
  },
  // Checks .github/workflows.
  { name: 'actionlint', module: 'github.com/rhysd/actionlint', version: 'v1.7.12', main: 'cmd/actionlint' },
] as const;

/** The modules and folders that contain the CustomResourceDefinitions. */
const DEFINITIONS = [
  { module: 'sigs.k8s.io/gateway-api', version: 'v1.6.1', folder: 'config/crd/standard' },
  { module: 'github.com/cert-manager/cert-manager', version: 'v1.18.2', folder: 'deploy/crds' },
  {
    module: 'github.com/prometheus-operator/prometheus-operator',
    version: 'v0.85.0',
    folder: 'example/prometheus-operator-crd',
  },
] as const;

export type Program = (typeof PROGRAMS)[number]['name'];

const getTargetPath = ({ name, version }: (typeof PROGRAMS)[number]): string =>
  join(CACHE, 'bin', `${name}-${version}`);
const SCHEMA_GENERATOR = fileURLToPath(new URL('schemas', import.meta.url));
/** A change of the generator, such as another kind, generates the schemas again. */
const GENERATOR_HASH = ['main.go', 'go.sum']
  .reduce((hash, file) => hash.update(readFileSync(join(SCHEMA_GENERATOR, file))), createHash('sha256'))
  .digest('hex')
  .slice(0, 8);
const SCHEMAS = join(CACHE, `schemas-${[...DEFINITIONS.map(({ version }) => version), GENERATOR_HASH].join('-')}`);

/** The path of an installed program. */
export function program(name: Program): string {
  const found = PROGRAMS.find((candidate) => candidate.name === name);
  if (found === undefined || !existsSync(getTargetPath(found)))
    throw new Error(`${name} is not installed; run node tools/chart/install.ts`);
  return getTargetPath(found);
}

/** A folder of JSON Schemas: `<group>/<kind>_<version>.json`. */
export const schemaFolder = (): string => SCHEMAS;

export const hasGo = (): boolean => spawnSync('go', ['version']).status === 0;

export function go(
  args: readonly string[],
  cwd: string,
  env: Readonly<Record<string, string>> = { GOFLAGS: '-mod=mod' },
): string {
  const { status, stdout, stderr } = spawnSync('go', [...args], {
    cwd,
    encoding: 'utf8',
    maxBuffer: 64 * 1_024 * 1_024,
    env: { ...process.env, GOTOOLCHAIN: 'local', ...env },
  });
  if (status !== 0) throw new Error(`go ${args.join(' ')}: ${stderr.slice(-4_000)}`);
  return stdout;
}

const downloadModule = (module: string, version: string): string =>
  (JSON.parse(go(['mod', 'download', '-json', `${module}@${version}`], CACHE)) as { Dir: string }).Dir;

/** Builds a copy of the sources: `go install` rejects modules with `replace` directives. */
function build(tool: (typeof PROGRAMS)[number]): void {
  const target = getTargetPath(tool);
  if (existsSync(target)) return;
  const begun = performance.now();
  const copy = mkdtempSync(join(tmpdir(), `gatehouse-${tool.name}-`));
  try {
    cpSync(downloadModule(tool.module, tool.version), copy, { recursive: true, mode: 0 });
    spawnSync('chmod', ['-R', 'u+w', copy]);
    mkdirSync(dirname(target), { recursive: true });
    go(['build', '-o', `${target}.new`, `./${tool.main}`], copy);
    renameSync(`${target}.new`, target);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
  console.log(`${tool.name} ${tool.version}: built in ${Math.round((performance.now() - begun) / 1_000)} s`);
}

function generateSchemas(): void {
  if (existsSync(SCHEMAS)) return;
  const begun = performance.now();
  const output = mkdtempSync(join(CACHE, 'schemas-'));
  const copy = mkdtempSync(join(tmpdir(), 'gatehouse-schemas-'));
  try {
    cpSync(SCHEMA_GENERATOR, copy, { recursive: true });
    go(['run', '.', output], copy);
    mkdirSync(join(output, 'definitions'));
    for (const { module, version, folder } of DEFINITIONS) {
      const from = join(downloadModule(module, version), folder);
      for (const name of readdirSync(from).filter((file) => file.endsWith('.yaml'))) {
        const text = readFileSync(join(from, name), 'utf8');
        for (const document of parseAllDocuments(text)) {
          const schemas = crdSchemas(document.toJSON());
          if (schemas.length > 0) writeFileSync(join(output, 'definitions', name), text);
          for (const { file, schema } of schemas) {
            mkdirSync(dirname(join(output, file)), { recursive: true });
            writeFileSync(join(output, file), JSON.stringify(schema));
          }
        }
      }
    }
    renameSync(output, SCHEMAS);
  } finally {
    rmSync(copy, { recursive: true, force: true });
    rmSync(output, { recursive: true, force: true });
  }
  console.log(`schemas: generated in ${Math.round((performance.now() - begun) / 1_000)} s`);
}

if (import.meta.main) {
  if (!hasGo()) {
    console.error(`Go 1.26 or newer is needed to build ${PROGRAMS.map(({ name }) => name).join(', ')}`);
    process.exit(69);
  }
  mkdirSync(CACHE, { recursive: true });
  for (const tool of PROGRAMS) build(tool);
  generateSchemas();
}
