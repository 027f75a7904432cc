import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, parseAllDocuments } from 'yaml';

const ROOT = join(import.meta.dirname, '../..');
export const CHART = join(ROOT, 'helm/gatehouse');
export const GOLDEN = join(ROOT, 'test/chart/golden');

/** The fields of a Kubernetes object that tests use. */
export interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly annotations?: Readonly<Record<string, string>>;
  };
  readonly spec?: Readonly<Record<string, unknown>>;
  readonly data?: Readonly<Record<string, string>>;
  readonly automountServiceAccountToken?: boolean;
}

export interface Container {
  readonly name: string;
  readonly image: string;
  readonly restartPolicy?: string;
  readonly args?: readonly string[];
  readonly env?: readonly { readonly name: string; readonly value?: string; readonly valueFrom?: unknown }[];
  readonly ports?: readonly { readonly name: string; readonly containerPort: number }[];
  readonly securityContext?: Readonly<Record<string, unknown>>;
  readonly resources?: {
    readonly requests?: Readonly<Record<string, string>>;
    readonly limits?: Readonly<Record<string, string>>;
  };
  readonly volumeMounts?: readonly {
    readonly name: string;
    readonly mountPath: string;
    readonly readOnly?: boolean;
  }[];
  readonly lifecycle?: unknown;
  readonly [probe: `${string}Probe`]: {
    readonly httpGet?: { readonly path: string; readonly port: string | number };
  };
}

export interface PodSpec {
  readonly automountServiceAccountToken?: boolean;
  readonly securityContext?: Readonly<Record<string, unknown>>;
  readonly initContainers?: readonly Container[];
  readonly containers?: readonly Container[];
  readonly volumes?: readonly Readonly<Record<string, unknown>>[];
  readonly terminationGracePeriodSeconds?: number;
}

/** The names of helm/gatehouse/ci/*-values.yaml. */
export const MATRIX: readonly string[] = readdirSync(join(CHART, 'ci'))
  .filter((file) => file.endsWith('-values.yaml'))
  .map((file) => file.replace(/-values\.yaml$/, ''));

export const valuesFile = (name: string): string => join(CHART, 'ci', `${name}-values.yaml`);
export const readValues = (name: string): Record<string, unknown> =>
  parse(readFileSync(valuesFile(name), 'utf8')) as Record<string, unknown>;

/** The values for the chart in a page of the documentation; the page may show only a part of them. */
export const readDocumentedValues = (page: string): readonly string[] =>
  [...readFileSync(join(ROOT, page), 'utf8').matchAll(/^( *)```yaml values\n([\s\S]*?)^ *```$/gm)].map(
    ([, indent = '', text = '']) => text.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
  );

export const readManifests = (text: string): readonly Manifest[] =>
  parseAllDocuments(text).flatMap((document) => {
    if (document.errors.length > 0) throw document.errors[0] ?? new Error('not YAML');
    const object = document.toJSON() as Manifest | null;
    return object === null ? [] : [object];
  });

/** The committed rendering of these values; `npm run test:chart` compares it with Helm's output. */
export const golden = (name: string): readonly Manifest[] =>
  readManifests(readFileSync(join(GOLDEN, `${name}.yaml`), 'utf8'));

export const ofKind = (objects: readonly Manifest[], kind: string): readonly Manifest[] =>
  objects.filter((object) => object.kind === kind);

export function only<T>(found: readonly T[]): T {
  const [first, ...more] = found;
  if (first === undefined || more.length > 0) throw new Error(`expected one, found ${found.length}`);
  return first;
}

/** The pod specs of an object; for the sidecar snippet, the patch of the application's pods. */
export function podSpecs(
  objects: readonly Manifest[],
): readonly { readonly where: string; readonly spec: PodSpec; readonly isOurs: boolean }[] {
  return objects.flatMap(({ kind, metadata, spec, data }) => {
    const where = `${kind} ${metadata.name}`;
    if (kind === 'Pod') return [{ where, spec: spec as PodSpec, isOurs: true }];
    const patch = data?.['patch.yaml'];
    const template = (patch === undefined ? spec : (parse(patch) as { spec: Record<string, unknown> }).spec)?.[
      'template'
    ] as { readonly spec: PodSpec } | undefined;
    return template === undefined ? [] : [{ where, spec: template.spec, isOurs: patch === undefined }];
  });
}

export const containersOf = ({ initContainers = [], containers = [] }: PodSpec): readonly Container[] => [
  ...initContainers,
  ...containers,
];

/** The container that runs gatehouse. */
export const findGatehouse = (objects: readonly Manifest[]): Container =>
  only(podSpecs(objects).flatMap(({ spec }) => containersOf(spec).filter(({ name }) => name === 'gatehouse')));
