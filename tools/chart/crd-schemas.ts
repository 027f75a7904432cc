/** JSON Schemas of a CustomResourceDefinition that reject unknown fields, which the API server would prune. */
export function crdSchemas(definition: unknown): readonly { readonly file: string; readonly schema: Schema }[] {
  const { kind, spec } = (definition ?? {}) as Partial<Definition>;
  if (kind !== 'CustomResourceDefinition' || spec === undefined) return [];
  return spec.versions.map(({ name, schema }) => ({
    file: `${spec.group}/${spec.names.kind.toLowerCase()}_${name}.json`,
    schema: withMetadata(toStrict(schema.openAPIV3Schema)),
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

function toStrict(schema: Schema): Schema {
  const result: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(schema)) {
    if (key.startsWith('x-kubernetes-') || key === 'nullable' || key === 'format' || key === 'default') continue;
    if (key === 'properties' && isObject(value))
      result[key] = Object.fromEntries(
        Object.entries(value).map(([name, inner]) => [name, isObject(inner) ? toStrict(inner) : inner]),
      );
    else if (['items', 'additionalProperties', 'not'].includes(key) && isObject(value)) result[key] = toStrict(value);
    // In a combination, only the outer schema defines the fields.
    else result[key] = value;
  }
  if (schema['x-kubernetes-int-or-string'] === true) delete result['type'];
  if (isObject(schema['properties']) && schema['x-kubernetes-preserve-unknown-fields'] !== true)
    result['additionalProperties'] ??= false;
  return result;
}

function withMetadata(schema: Schema): Schema {
  const properties = isObject(schema['properties']) ? schema['properties'] : {};
  return { ...schema, properties: { ...properties, metadata: { type: 'object' } } };
}
