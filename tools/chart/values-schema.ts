import { z } from 'zod';
import { getJsonSchema, type JsonSchema } from '../../src/config/known-settings.ts';

/** helm/gatehouse/values.schema.json. `config` is the product's own schema without the settings that the chart determines. */

const text = z.string();
const name = z
  .string()
  .regex(/^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$/)
  .describe('The name of an object, or empty.');
const secretKey = z.string().regex(/^[-._a-zA-Z0-9]{0,253}$/);
const neededKey = z.string().regex(/^[-._a-zA-Z0-9]{1,253}$/);
const port = z.int().min(1).max(65_535);
const seconds = z.int().min(0).max(86_400);
const count = z.int().min(1).max(1_000);
const strings = z.record(text, text);
/** Labels that the chart sets and uses in selectors. */
const OWN_LABELS = [
  'app.kubernetes.io/name',
  'app.kubernetes.io/instance',
  'app.kubernetes.io/component',
  'app.kubernetes.io/version',
  'app.kubernetes.io/managed-by',
  'helm.sh/chart',
];
const labels = z.record(z.string().meta({ not: { enum: OWN_LABELS } }), text);
const names = z.array(text.min(1));
/** Copied to the manifest as is; Kubernetes validates it. */
const anyObject = z.record(text, z.unknown());
const anyObjects = z.array(anyObject);
const quantity = z.string().regex(/^[0-9]+(\.[0-9]+)?(m|k|Ki|Mi|Gi|Ti|M|G|T)?$/);
const duration = z.string().regex(/^([0-9]+(ms|s|m|h))+$/);
/** Variables with such a name must use `valueFrom`. */
const SECRET_NAME = '(PASSWORD|SECRET|TOKEN|PASSPHRASE|PRIVATE|CREDENTIAL|PSEUDONYM_KEY$)';
/** Settings of gatehouse that match `SECRET_NAME` but are no secrets. */
const NO_SECRET = '(_FILE$|^GATEHOUSE_(TOKENS|LIMITS)__|_TOKEN_FORMAT$)';
const SECRET_SETTING = '(^|=|\\.)(password|passwordHash|clientSecret|pseudonymKey|secret|tracing\\.token)=';
const URL_WITH_PASSWORD = '://[^/@]*:[^/@]*@';
/** Addresses, ports and store are set by the chart, because the manifest depends on them. */
const DECIDED_VARIABLE =
  '^GATEHOUSE_(CONFIG|CONFIG_YAML|LISTEN__(HOST|PORT|BEHIND_TLS)|ADMIN__(HOST|PORT)|STORE__(TYPE|PATH))$';
const DECIDED_ARGUMENT =
  '^(-c|--config)|^(--set=)?(listen\\.(host|port|behindTls)|admin\\.(host|port)|store\\.(type|path))=';
const digest = z.string().regex(/^(sha256:[0-9a-f]{64})?$/);

const image = {
  registry: z.string().regex(/^[^\s/][^\s]*$|^$/),
  repository: z.string().regex(/^[a-z0-9][a-z0-9._/-]*$/),
  tag: z.string().regex(/^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$/),
  digest,
};

const resources = z.strictObject({
  requests: z.strictObject({ cpu: quantity, memory: quantity, 'ephemeral-storage': quantity }).partial(),
  limits: z.strictObject({ cpu: quantity, memory: quantity, 'ephemeral-storage': quantity }).partial(),
});

const probe = z
  .strictObject({
    initialDelaySeconds: seconds,
    periodSeconds: z.int().min(1),
    timeoutSeconds: z.int().min(1),
    failureThreshold: z.int().min(1),
    successThreshold: z.int().min(1),
  })
  .partial();

const monitor = z.strictObject({
  enabled: z.boolean(),
  interval: duration,
  scrapeTimeout: duration,
  tlsConfig: anyObject,
  labels,
  relabelings: anyObjects,
  metricRelabelings: anyObjects,
});

const seccomp = z.strictObject({
  type: z.enum(['RuntimeDefault', 'Localhost']),
  localhostProfile: text.optional(),
});

/** The hardening cannot be disabled with values; that needs a change of the chart. */
const containerSecurity = z.strictObject({
  runAsNonRoot: z.literal(true),
  runAsUser: z.int().min(1),
  runAsGroup: z.int().min(1),
  privileged: z.literal(false),
  allowPrivilegeEscalation: z.literal(false),
  readOnlyRootFilesystem: z.literal(true),
  capabilities: z.strictObject({
    drop: z.array(z.literal('ALL')).min(1).max(1),
    add: z.array(z.literal('NET_BIND_SERVICE')).optional(),
  }),
  seccompProfile: seccomp,
  seLinuxOptions: anyObject.optional(),
  appArmorProfile: anyObject.optional(),
});

const podSecurity = z.strictObject({
  runAsNonRoot: z.literal(true),
  runAsUser: z.int().min(1),
  runAsGroup: z.int().min(1),
  fsGroup: z.int().min(1),
  fsGroupChangePolicy: z.enum(['OnRootMismatch', 'Always']),
  seccompProfile: seccomp,
  supplementalGroups: z.array(z.int().min(1)).optional(),
  seLinuxOptions: anyObject.optional(),
  sysctls: anyObjects.optional(),
});

/** All values except `config` and those for use as a subchart. */
export const chartValues = {
  mode: z.enum(['gateway', 'sidecar']),
  // Shared with other subcharts, which write pull secrets in either form.
  global: z.looseObject({
    imageRegistry: text,
    imagePullSecrets: z.array(z.union([text.min(1), z.strictObject({ name: text.min(1) })])),
  }),
  nameOverride: name,
  fullnameOverride: name,
  commonLabels: labels,
  commonAnnotations: strings,
  image: z.strictObject({
    ...image,
    pullPolicy: z.enum(['Always', 'IfNotPresent', 'Never']),
    pullSecrets: names,
  }),
  existingConfigMap: name,
  rollOnConfigChange: z.boolean(),
  signing: z.strictObject({ existingSecret: name, key: neededKey }),
  adminToken: z.strictObject({ existingSecret: name, key: neededKey }),
  tls: z.strictObject({
    existingSecret: name,
    terminatedInFront: z.boolean(),
    certManager: z.strictObject({
      enabled: z.boolean(),
      issuerRef: z.strictObject({ name, kind: text.min(1), group: text.min(1) }),
      dnsNames: names,
      duration,
      renewBefore: duration,
    }),
  }),
  clientCA: z.strictObject({
    existingSecret: name,
    existingConfigMap: name,
    issuers: z.array(neededKey).min(1),
    crls: z.array(neededKey),
  }),
  kubernetesIssuer: z.strictObject({
    enabled: z.boolean(),
    name: z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/)
      .meta({ not: { const: 'own' } }),
    issuer: z.string().regex(/^https:\/\/\S+$/),
    audience: z.union([text.min(1).max(512), z.array(text.min(1).max(512)).min(1).max(32)]),
    jwksUri: z.string().regex(/^https:\/\/\S+$/),
    config: anyObject,
    ca: z.strictObject({ existingConfigMap: name.min(1), key: neededKey }),
    serviceAccountToken: z.strictObject({
      enabled: z.boolean(),
      audience: text,
      // The shortest and the longest lifetime that Kubernetes accepts.
      expirationSeconds: z
        .int()
        .min(600)
        .max(2 ** 32),
      path: neededKey,
    }),
    rbac: z.strictObject({ create: z.boolean() }),
  }),
  secretFiles: z.strictObject({ existingSecret: name }),
  store: z.strictObject({
    type: z.enum(['embedded', 'redis']),
    redis: z.strictObject({
      url: z.string().regex(/^(rediss?(\+sentinel|\+cluster)?:\/\/\S+)?$/),
      existingSecret: name,
      passwordKey: secretKey,
      urlKey: secretKey,
      tls: z.strictObject({
        existingSecret: name,
        caKey: secretKey,
        certificateKey: secretKey,
        keyKey: secretKey,
      }),
    }),
    persistence: z.strictObject({
      size: quantity,
      storageClass: text,
      accessModes: z.array(z.enum(['ReadWriteOnce', 'ReadWriteOncePod', 'ReadWriteMany'])).min(1),
      existingClaim: name,
      annotations: strings,
    }),
  }),
  valkey: z.strictObject({
    enabled: z.boolean(),
    image: z.strictObject(image),
    existingSecret: name,
    resources,
  }),
  ports: z.strictObject({ host: z.enum(['0.0.0.0', '::']), https: port.min(1_024), admin: port.min(1_024) }),
  sidecar: z.strictObject({
    native: z.boolean(),
    podSelector: strings,
    upstreamPort: port,
    applicationContainer: name,
    singleReplica: z.boolean(),
  }),
  service: z.strictObject({
    type: z.enum(['ClusterIP', 'NodePort', 'LoadBalancer']),
    port,
    nodePort: z.int().min(1).max(65_535).nullable(),
    annotations: strings,
    labels,
    loadBalancerClass: text,
    loadBalancerSourceRanges: names,
    externalTrafficPolicy: z.enum(['', 'Local', 'Cluster']),
    ipFamilyPolicy: z.enum(['', 'SingleStack', 'PreferDualStack', 'RequireDualStack']),
  }),
  ingress: z.strictObject({
    enabled: z.boolean(),
    className: text,
    annotations: strings,
    hosts: z.array(
      z.strictObject({
        host: text.min(1),
        paths: z
          .array(
            z.strictObject({
              path: z.string().regex(/^\//),
              pathType: z.enum(['Prefix', 'Exact', 'ImplementationSpecific']).optional(),
            }),
          )
          .optional(),
      }),
    ),
    tls: anyObjects,
    clientCertificates: z.enum(['', 'passthrough', 'header']),
  }),
  gatewayApi: z.strictObject({
    httpRoute: z.strictObject({
      enabled: z.boolean(),
      parentRefs: anyObjects,
      hostnames: names,
      annotations: strings,
      clientCertificates: z.enum(['', 'header']),
    }),
    tlsRoute: z.strictObject({
      enabled: z.boolean(),
      apiVersion: z.string().regex(/^gateway\.networking\.k8s\.io\/v1(alpha[23])?$/),
      parentRefs: anyObjects,
      hostnames: names,
      annotations: strings,
    }),
  }),
  lifecycle: z.strictObject({
    preStopSleepSeconds: seconds,
    drainSeconds: seconds,
    terminationGracePeriodSeconds: seconds,
  }),
  probes: z.strictObject({ startup: probe, liveness: probe, readiness: probe }),
  replicaCount: z.int().min(0).max(1_000),
  autoscaling: z.strictObject({
    enabled: z.boolean(),
    minReplicas: count,
    maxReplicas: count,
    targetCPUUtilizationPercentage: z.int().min(1).max(1_000).nullable(),
    targetMemoryUtilizationPercentage: z.int().min(1).max(1_000).nullable(),
    behavior: anyObject,
  }),
  podDisruptionBudget: z.strictObject({
    enabled: z.boolean(),
    maxUnavailable: z.union([z.int().min(1), z.string().regex(/^[1-9][0-9]?%$/)]),
  }),
  topologySpread: z.strictObject({ enabled: z.boolean() }),
  topologySpreadConstraints: anyObjects,
  updateStrategy: anyObject,
  revisionHistoryLimit: z.int().min(0),
  nodeSelector: strings,
  tolerations: anyObjects,
  affinity: anyObject,
  priorityClassName: text,
  podLabels: labels,
  podAnnotations: strings,
  podSecurityContext: podSecurity,
  securityContext: containerSecurity,
  resources,
  serviceAccount: z.strictObject({
    create: z.boolean(),
    name,
    annotations: strings,
    automount: z.literal(false),
  }),
  networkPolicy: z.strictObject({
    enabled: z.boolean(),
    from: anyObjects,
    adminFrom: anyObjects,
    extraIngress: anyObjects,
    egress: anyObjects,
    kubeAPIServer: z.strictObject({
      cidrs: z.array(z.string().regex(/^[0-9A-Fa-f:.]+\/[0-9]{1,3}$/)),
      ports: z.array(port).min(1),
    }),
  }),
  metrics: z.strictObject({
    serviceMonitor: monitor,
    podMonitor: monitor,
    prometheusRule: z.strictObject({ enabled: z.boolean(), labels }),
    dashboard: z.strictObject({ enabled: z.boolean(), labels, annotations: strings }),
  }),
  extraArgs: z.array(
    z
      .string()
      .min(1)
      .meta({ not: { pattern: `${SECRET_SETTING}|${URL_WITH_PASSWORD}|${DECIDED_ARGUMENT}` } }),
  ),
  // A secret in values would end up in manifests and in version control.
  extraEnv: z.array(
    z.union([
      z.strictObject({
        name: z
          .string()
          .min(1)
          .meta({ not: { pattern: DECIDED_VARIABLE } }),
        valueFrom: anyObject,
      }),
      z.strictObject({
        name: z.string().meta({
          not: {
            anyOf: [{ pattern: DECIDED_VARIABLE }, { pattern: SECRET_NAME, not: { pattern: NO_SECRET } }],
          },
        }),
        value: z.string().meta({ not: { pattern: URL_WITH_PASSWORD } }),
      }),
    ]),
  ),
  envFrom: anyObjects,
  extraVolumes: anyObjects,
  extraVolumeMounts: anyObjects,
  extraContainers: anyObjects,
  extraInitContainers: anyObjects,
  extraObjects: z.array(z.union([text, anyObject])),
};

/** Settings that the chart derives from other values. */
const OWNED: readonly string[] = [
  'listen.host',
  'listen.port',
  'listen.behindTls',
  'listen.tls.certificate',
  'listen.tls.key',
  'admin.host',
  'admin.port',
  'admin.tokenFile',
  'keys.file',
  'store.type',
  'store.path',
  'store.url',
  'store.urlFile',
  'store.password',
  'store.passwordFile',
  'store.tls',
  'shutdown',
];

export function chartSchema(): Record<string, unknown> {
  const values = z.toJSONSchema(
    z.strictObject({
      ...chartValues,
      config: anyObject,
      // A parent chart sets it to disable this subchart.
      enabled: z.boolean().optional(),
    }),
    { io: 'input' },
  ) as JsonSchema & { properties: Record<string, JsonSchema> };
  const { required: _everything, ...schema } = optional(values);
  return {
    ...schema,
    title: 'Values of the gatehouse chart',
    properties: {
      ...schema.properties,
      kubernetesIssuer: withIssuerConfig(schema.properties['kubernetesIssuer'] ?? {}),
      config: configSchema(),
    },
  };
}

/** Settings of a trusted issuer that the chart sets itself, or that a Kubernetes API server does not have. */
const OWNED_ISSUER_SETTINGS = new Set([
  'issuer',
  'audience',
  'jwksUri',
  'jwksFile',
  'ca',
  'certificate',
  'key',
  'bearerTokenFile',
  'introspection',
  'logout',
]);

/** `kubernetesIssuer.config`: the product's schema of a trusted issuer, without the settings that the chart sets. */
function withIssuerConfig(kubernetesIssuer: JsonSchema): JsonSchema {
  const issuer = configSchema().properties?.['trustedIssuers']?.additionalProperties;
  if (typeof issuer !== 'object') throw new Error('trustedIssuers is not a map of issuers');
  const { required: _, properties = {}, ...rest } = issuer;
  const kept = Object.entries(properties).filter(([key]) => !OWNED_ISSUER_SETTINGS.has(key));
  return {
    ...kubernetesIssuer,
    properties: {
      ...kubernetesIssuer.properties,
      config: { ...rest, properties: Object.fromEntries(kept) },
    },
  };
}

/** A user's file contains only changes to `values.yaml`. */
function optional(schema: JsonSchema): JsonSchema & { properties: Record<string, JsonSchema> } {
  const { required, properties = {}, ...rest } = schema;
  const inner = Object.fromEntries(
    Object.entries(properties).map(([key, value]) => [key, value.properties ? optional(value) : value]),
  );
  return { ...rest, properties: inner, ...(required && {}) };
}

/**
 * The product's schema without the settings that the chart determines, and without secrets: if a setting can be read from a
 * file, only the setting with the file name remains.
 */
export function configSchema(): JsonSchema {
  const all = prune(getJsonSchema(), []);
  const { $schema: _, ...rest } = all as JsonSchema & { $schema?: string };
  return { ...rest, description: 'As in docs/configuration.md, without what the chart decides itself.' };
}

function prune(schema: JsonSchema, path: readonly string[]): JsonSchema {
  const { properties, required, items, additionalProperties, anyOf, oneOf, ...rest } = schema;
  const kept = Object.entries(properties ?? {}).filter(
    ([key]) => !OWNED.includes([...path, key].join('.')) && !(properties && Object.hasOwn(properties, `${key}File`)),
  );
  const names = new Set(kept.map(([key]) => key));
  const still = required?.filter((key) => names.has(key)) ?? [];
  return {
    ...rest,
    ...(properties && {
      properties: Object.fromEntries(kept.map(([key, value]) => [key, prune(value, [...path, key])])),
    }),
    ...(still.length > 0 && { required: still }),
    ...(items && { items: prune(items, [...path, '[]']) }),
    ...(additionalProperties !== undefined && {
      additionalProperties:
        typeof additionalProperties === 'object' ? prune(additionalProperties, [...path, '*']) : additionalProperties,
    }),
    ...(anyOf && { anyOf: anyOf.map((form) => prune(form, path)) }),
    ...(oneOf && { oneOf: oneOf.map((form) => prune(form, path)) }),
  };
}
