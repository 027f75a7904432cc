/** JSON Schemas from the definition of a custom resource: structural schemas prune what they do not know, and we refuse it. */
export function crdSchemas(
  definition: unknown,
): readonly { readonly file: string; readonly schema: Schema }[] {
  const { kind, spec } = (definition ?? {}) as Partial<Definition>;
  if (kind !== 'CustomResourceDefinition' || spec === undefined) return [];
  return spec.versions.map(({ name, schema }) => ({
    file: `${spec.group}/${spec.names.kind.toLowerCase()}_${name}.json`,
    schema: withMetadata(strict(schema.openAPIV3Schema)),
  }));
}

type Schema = Readonly<Record<string, unknown>>;

interface Definition {
  readonly kind: string;
  readonly spec: {
    readonly group: string;
    readonly names: { readonly kind: string };
    readonly versions: readonly {
      readonly name: string;
      readonly schema: { readonly openAPIV3Schema: Schema };
    }[];
  };
}

const isObject = (value: unknown): value is Schema =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function strict(schema: Schema): Schema {
  const made: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(schema)) {
    if (key.startsWith('x-kubernetes-') || key === 'nullable' || key === 'format' || key === 'default')
      continue;
    if (key === 'properties' && isObject(value))
      made[key] = Object.fromEntries(
        Object.entries(value).map(([name, inner]) => [name, isObject(inner) ? strict(inner) : inner]),
      );
    else if (['items', 'additionalProperties', 'not'].includes(key) && isObject(value))
      made[key] = strict(value);
    // Inside a combination only the outer schema says which fields there are.
    else made[key] = value;
  }
  if (schema['x-kubernetes-int-or-string'] === true) delete made['type'];
  if (isObject(schema['properties']) && schema['x-kubernetes-preserve-unknown-fields'] !== true)
    made['additionalProperties'] ??= false;
  return made;
}

function withMetadata(schema: Schema): Schema {
  const properties = isObject(schema['properties']) ? schema['properties'] : {};
  return { ...schema, properties: { ...properties, metadata: { type: 'object' } } };
}
