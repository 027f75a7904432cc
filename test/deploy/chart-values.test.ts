import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020, type ErrorObject } from 'ajv/dist/2020.js';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { GENERATED } from '../../tools/chart/generate.ts';
import { valueLines } from '../../tools/chart/readme.ts';
import { CHART, MATRIX, readDocumentedValues, readValues } from '../chart/manifests.ts';

const ROOT = join(import.meta.dirname, '../..');
const readChartFile = (file: string): string => readFileSync(join(CHART, file), 'utf8');

interface Schema {
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
}
const schema = JSON.parse(readChartFile('values.schema.json')) as Schema;
const validate = new Ajv2020({ allErrors: true, strict: true }).compile(schema as object);
const validateValues = (values: unknown): readonly string[] => {
  validate(values);
  return (validate.errors ?? []).map(formatError);
};
const formatError = ({ instancePath, message, params }: ErrorObject): string =>
  [instancePath, message, params['additionalProperty'] ?? params['allowedValues'] ?? params['allowedValue']]
    .filter((part) => part !== undefined)
    .join(' ');

describe('A2 values.schema.json', () => {
  test.each(GENERATED)('$file is up to date (npm run chart)', ({ file, render }) => {
    expect(readFileSync(join(ROOT, file), 'utf8')).toBe(render());
  });

  test('describes exactly the values of values.yaml', () => {
    const inSchema = (of: Schema, path: readonly string[]): string[] =>
      Object.entries(of.properties ?? {}).flatMap(([key, inner]) =>
        [...path, key].join('.') === 'config' || inner.properties === undefined
          ? [[...path, key].join('.')]
          : inSchema(inner, [...path, key]),
      );
    const inFile = (of: unknown, path: readonly string[], known: Schema | undefined): string[] =>
      known?.properties !== undefined && path.join('.') !== 'config' && typeof of === 'object' && of !== null
        ? Object.entries(of).flatMap(([key, inner]) => inFile(inner, [...path, key], known.properties?.[key]))
        : [path.join('.')];
    const values = inFile(parse(readChartFile('values.yaml')), [], schema);
    const optional =
      /^enabled$|^kubernetesIssuer\.config\.|^(probes|resources|valkey\.resources|(podS|s)ecurityContext)\.|^securityContext\.capabilities/;
    expect(inSchema(schema, []).filter((path) => !values.includes(path) && !optional.test(path))).toEqual([]);
    expect(values.filter((path) => !inSchema(schema, []).includes(path))).toEqual([]);
  });

  test('every value has a description', () => {
    expect(valueLines(readChartFile('values.yaml')).filter(({ meaning }) => !meaning)).toEqual([]);
  });

  test('accepts values.yaml, and requires no value', () => {
    expect(validateValues(parse(readChartFile('values.yaml')))).toEqual([]);
    expect(validateValues({})).toEqual([]);
  });

  test.each(MATRIX)('accepts %s', (name) => {
    expect(validateValues(readValues(name))).toEqual([]);
  });

  test.each(['docs/kubernetes.md', 'docs/trusted-issuers.md'])('accepts the values in %s', (page) => {
    const blocks = readDocumentedValues(page);
    expect(blocks.length).toBeGreaterThan(0);
    for (const block of blocks) expect(validateValues(parse(block))).toEqual([]);
  });

  test('accepts settings whose names resemble secrets, and references to secrets', () => {
    expect(
      validateValues({
        extraEnv: [
          { name: 'GATEHOUSE_TOKENS__ACCESS_LIFETIME', value: '5m' },
          { name: 'GATEHOUSE_TRACING__TOKEN_FILE', value: '/etc/gatehouse/secrets/otlp' },
          {
            name: 'GATEHOUSE_STORE__PASSWORD',
            valueFrom: { secretKeyRef: { name: 'redis', key: 'password' } },
          },
        ],
        extraArgs: ['--set', 'limits.rates.token=5/s', '--set', 'tokens.format=opaque'],
      }),
    ).toEqual([]);
  });

  test('accepts what a parent chart adds', () => {
    expect(
      validateValues({
        enabled: true,
        global: { imageRegistry: 'mirror', imagePullSecrets: ['a', { name: 'b' }], theirs: { any: true } },
      }),
    ).toEqual([]);
  });
});

const BAD: readonly { readonly name: string; readonly values: unknown; readonly message: string }[] = [
  {
    name: 'a name that does not exist',
    values: { replicas: 3 },
    message: 'must NOT have additional properties replicas',
  },
  {
    name: 'a mode that does not exist',
    values: { mode: 'daemon' },
    message: '/mode must be equal to one of the allowed values gateway,sidecar',
  },
  { name: 'text for a number', values: { replicaCount: '3' }, message: '/replicaCount must be integer' },
  { name: 'a negative number of pods', values: { replicaCount: -1 }, message: '/replicaCount must be >= 0' },
  {
    name: 'text for a switch',
    values: { ingress: { enabled: 'yes' } },
    message: '/ingress/enabled must be boolean',
  },
  {
    name: 'a privileged port in the pod',
    values: { ports: { https: 443 } },
    message: '/ports/https must be >= 1024',
  },
  {
    name: 'a port beyond all ports',
    values: { service: { port: 70_000 } },
    message: '/service/port must be <= 65535',
  },
  {
    name: 'a store that does not exist',
    values: { store: { type: 'postgres' } },
    message: '/store/type must be equal to one of the allowed values embedded,redis',
  },
  {
    name: 'an address that is none of Redis',
    values: { store: { redis: { url: 'http://redis' } } },
    message: '/store/redis/url must match pattern',
  },
  {
    name: 'a size without a meaning',
    values: { store: { persistence: { size: 'big' } } },
    message: '/store/persistence/size must match pattern',
  },
  {
    name: 'a digest that is none',
    values: { image: { digest: 'latest' } },
    message: '/image/digest must match pattern',
  },
  {
    name: 'root',
    values: { securityContext: { runAsUser: 0 } },
    message: '/securityContext/runAsUser must be >= 1',
  },
  {
    name: 'a writable root',
    values: { securityContext: { readOnlyRootFilesystem: false } },
    message: '/securityContext/readOnlyRootFilesystem must be equal to constant true',
  },
  {
    name: 'more privileges',
    values: { securityContext: { allowPrivilegeEscalation: true } },
    message: '/securityContext/allowPrivilegeEscalation must be equal to constant false',
  },
  {
    name: 'kept capabilities',
    values: { securityContext: { capabilities: { drop: [] } } },
    message: '/securityContext/capabilities/drop must NOT have fewer than 1 items',
  },
  {
    name: 'a token of the API server',
    values: { serviceAccount: { automount: true } },
    message: '/serviceAccount/automount must be equal to constant false',
  },
  {
    name: 'a secret in the environment',
    values: { extraEnv: [{ name: 'GATEHOUSE_STORE__PASSWORD', value: 'hunter2' }] },
    message: '/extraEnv/0/name must NOT be valid',
  },
  {
    name: 'a password in the environment, inside a URL',
    values: { extraEnv: [{ name: 'GATEHOUSE_STORE__URL', value: 'redis://:hunter2@redis' }] },
    message: '/extraEnv/0/value must NOT be valid',
  },
  {
    name: 'a secret among the arguments',
    values: { extraArgs: ['--set', 'store.password=hunter2'] },
    message: '/extraArgs/1 must NOT be valid',
  },
  {
    name: 'a port decided behind the back of the manifest',
    values: { extraArgs: ['--set=listen.port=1'] },
    message: '/extraArgs/0 must NOT be valid',
  },
  {
    name: 'a store decided behind the back of the manifest',
    values: {
      extraEnv: [
        { name: 'TZ', value: 'UTC' },
        { name: 'GATEHOUSE_STORE__TYPE', valueFrom: { configMapKeyRef: { name: 'a', key: 'b' } } },
      ],
    },
    message: '/extraEnv/1/name must NOT be valid',
  },
  {
    name: 'no seccomp profile',
    values: { securityContext: { seccompProfile: { type: 'Unconfined' } } },
    message: '/securityContext/seccompProfile/type must be equal to one of the allowed values RuntimeDefault,Localhost',
  },
  {
    name: 'a label that selectors go by',
    values: { podLabels: { 'app.kubernetes.io/component': 'mine' } },
    message: '/podLabels property name must be valid',
  },
  {
    name: 'an address that is not every address',
    values: { ports: { host: '127.0.0.1' } },
    message: '/ports/host must be equal to one of the allowed values 0.0.0.0,::',
  },
  {
    name: 'a password hash in values',
    values: {
      config: {
        directories: { staff: { label: 'l', users: [{ id: 'ab', name: 'a', passwordHash: '$argon2id$' }] } },
      },
    },
    message: '/config/directories/staff/users/0 must NOT have additional properties passwordHash',
  },
  {
    name: 'a password of Redis in values',
    values: { config: { store: { password: 'hunter2' } } },
    message: '/config/store must NOT have additional properties password',
  },
  {
    name: 'a port that the chart decides',
    values: { config: { listen: { port: 1 } } },
    message: '/config/listen must NOT have additional properties port',
  },
  {
    name: 'a key file that the chart decides',
    values: { config: { keys: { file: 'x' } } },
    message: '/config/keys must NOT have additional properties file',
  },
  {
    name: 'a setting that gatehouse does not have',
    values: { config: { tokens: { lifetime: '1h' } } },
    message: '/config/tokens must NOT have additional properties lifetime',
  },
  {
    name: 'a route with a number for its path',
    values: { config: { routes: [{ path: 7 }] } },
    message: '/config/routes/0/path must be string',
  },
  {
    name: 'an integration without a scope',
    values: { config: { integrations: [{ clientId: 'x' }] } },
    message: "/config/integrations/0 must have required property 'scope'",
  },
  {
    name: 'a way of handing certificates on that does not exist',
    values: { ingress: { clientCertificates: 'magic' } },
    message: '/ingress/clientCertificates must be equal to one of the allowed values ,passthrough,header',
  },
  {
    name: 'a cluster issuer without TLS',
    values: { kubernetesIssuer: { issuer: 'http://kubernetes.default.svc' } },
    message: '/kubernetesIssuer/issuer must match pattern',
  },
  {
    name: 'a cluster issuer for every audience',
    values: { kubernetesIssuer: { audience: [] } },
    message: '/kubernetesIssuer/audience must NOT have fewer than 1 items',
  },
  {
    name: 'the name of own tokens for the cluster issuer',
    values: { kubernetesIssuer: { name: 'own' } },
    message: '/kubernetesIssuer/name must NOT be valid',
  },
  {
    name: 'a projected token that is shorter than Kubernetes allows',
    values: { kubernetesIssuer: { serviceAccountToken: { expirationSeconds: 60 } } },
    message: '/kubernetesIssuer/serviceAccountToken/expirationSeconds must be >= 600',
  },
  {
    name: 'a projected token outside its folder',
    values: { kubernetesIssuer: { serviceAccountToken: { path: '../keys/token' } } },
    message: '/kubernetesIssuer/serviceAccountToken/path must match pattern',
  },
  {
    name: 'a setting of the cluster issuer that gatehouse does not have',
    values: { kubernetesIssuer: { config: { scpe: 'files:read' } } },
    message: '/kubernetesIssuer/config must NOT have additional properties scpe',
  },
  {
    name: 'a setting of the cluster issuer that the chart decides',
    values: { kubernetesIssuer: { config: { jwksFile: 'keys.json' } } },
    message: '/kubernetesIssuer/config must NOT have additional properties jwksFile',
  },
  {
    name: 'a word for the addresses of the API server',
    values: { networkPolicy: { kubeAPIServer: { cidrs: ['kubernetes.default.svc'] } } },
    message: '/networkPolicy/kubeAPIServer/cidrs/0 must match pattern',
  },
  {
    name: 'a probe with a word of another tool',
    values: { probes: { readiness: { path: '/' } } },
    message: '/probes/readiness must NOT have additional properties path',
  },
];

test.each(BAD)('A2 rejects $name', ({ values, message }) => {
  expect(
    validateValues(values).some((problem) => problem.includes(message)),
    validateValues(values).join('\n'),
  ).toBe(true);
});

test('A2 each rejection has its own message', () => {
  expect(new Set(BAD.map(({ message }) => message)).size).toBe(BAD.length);
});
