import { inject } from 'vitest';
import { type Api, connect } from '../apiserver/api.ts';
import { createRestrictedNamespace } from '../apiserver/namespace.ts';
import { createCa, createCrl, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { until } from '../support/until.ts';
import { CLIENT_ID, createServiceClient, SCOPE, type ServiceClient } from './client.ts';
import { createShell, type Shell } from './commands.ts';
import { IMAGES } from './images.ts';

/**
 * A namespace with what docs/kubernetes.md assumes: an API, a Redis, and the Secrets of gatehouse. It enforces the restricted
 * Pod Security Standard.
 */
export interface Shop {
  readonly namespace: string;
  readonly api: Api;
  readonly shell: Shell;
  readonly ca: IssuedCertificate;
  /** The client certificate of the integration. */
  readonly exporter: IssuedCertificate;
  /** `kubectl -n <namespace> …` */
  kubectl(args: string, options?: { readonly input?: string; readonly seconds?: number }): Promise<string>;
  apply(...objects: readonly object[]): Promise<void>;
  /** Replaces a Secret, as docs/kubernetes.md does. */
  writeSecret(name: string, files: Readonly<Record<string, string>>): Promise<void>;
  /** Installs or upgrades a release of the chart; returns what helm prints. */
  install(release: string, values: object): Promise<string>;
  /** A client of a Service. */
  connect(service: string, as?: IssuedCertificate): Promise<ServiceClient>;
  /** The address of a Service. */
  addressOf(service: string): Promise<string>;
  pods(selector: string): Promise<readonly Pod[]>;
  remove(): Promise<void>;
}

export interface Pod {
  readonly name: string;
  /** Milliseconds. */
  readonly createdAt: number;
  readonly address: string;
  readonly isReady: boolean;
  readonly isTerminating: boolean;
  readonly restarts: number;
}

interface PodObject {
  readonly metadata: {
    readonly name: string;
    readonly creationTimestamp: string;
    readonly deletionTimestamp?: string;
  };
  readonly status: {
    readonly podIP?: string;
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
    readonly containerStatuses?: readonly { readonly restartCount: number }[];
    readonly initContainerStatuses?: readonly { readonly restartCount: number }[];
  };
}

/** The values of docs/kubernetes.md for a gateway; the store and the number of replicas are up to the test. */
export const gatewayValues = (namespace: string) => ({
  signing: { existingSecret: 'gatehouse-keys' },
  tls: { existingSecret: 'gatehouse-tls' },
  clientCA: { existingSecret: 'staff-ca', crls: ['staff.crl'] },
  config: {
    publicUrl: 'https://api.example.test',
    certificates: { directory: 'machines' },
    directories: { machines: { label: 'machine', derive: true } },
    integrations: [{ clientId: CLIENT_ID, scope: SCOPE, access: [{ directory: 'machines' }] }],
    upstreams: { default: { url: `http://orders.${namespace}.svc:8080` } },
    routes: [
      { path: '/health', public: true },
      { path: '/files/**', methods: ['GET', 'HEAD'], requires: SCOPE },
    ],
  },
});

/** The values for a sidecar in the pods of an application. */
export function sidecarValues(
  namespace: string,
  application: string,
  sidecar: { readonly native: boolean; readonly applicationContainer?: string },
) {
  const { config, ...values } = gatewayValues(namespace);
  const { upstreams: _, ...settings } = config;
  return {
    ...values,
    ...redisStore(namespace),
    mode: 'sidecar',
    sidecar: { ...sidecar, podSelector: { app: application }, upstreamPort: 8_080 },
    config: settings,
  };
}

export const redisStore = (namespace: string) => ({
  store: { type: 'redis', redis: { url: `redis://redis.${namespace}.svc:6379/0` } },
});

/** As the restricted Pod Security Standard requires. */
export const RESTRICTED = {
  runAsNonRoot: true,
  runAsUser: 1_000,
  allowPrivilegeEscalation: false,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
} as const;

export const serviceFor = (name: string, port: number) => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name },
  spec: { selector: { app: name }, ports: [{ port }] },
});

export interface ApplicationOptions {
  readonly replicas?: number;
  /** Listen address of the API. */
  readonly listen?: string;
  readonly env?: Readonly<Record<string, string>>;
}

/** The application of the documentation. */
export const createApplication = (
  name: string,
  { replicas = 2, listen = ':8080', env = {} }: ApplicationOptions = {},
) => ({
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name },
  spec: {
    replicas,
    selector: { matchLabels: { app: name } },
    strategy: { type: 'RollingUpdate', rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } },
    template: {
      metadata: { labels: { app: name } },
      spec: {
        automountServiceAccountToken: false,
        terminationGracePeriodSeconds: 45,
        containers: [
          {
            name: 'orders',
            image: IMAGES.api,
            args: ['api', listen],
            env: Object.entries(env).map(([key, value]) => ({ name: key, value })),
            ports: [{ containerPort: 8_080 }],
            securityContext: RESTRICTED,
            // A probe cannot reach an application that listens on the loopback interface.
            ...(listen.startsWith(':') && {
              readinessProbe: { tcpSocket: { port: 8_080 }, periodSeconds: 1 },
            }),
          },
        ],
      },
    },
  },
});

const REDIS = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'redis' },
  spec: {
    selector: { matchLabels: { app: 'redis' } },
    strategy: { type: 'Recreate' },
    template: {
      metadata: { labels: { app: 'redis' } },
      spec: {
        automountServiceAccountToken: false,
        containers: [
          {
            name: 'redis',
            image: IMAGES.valkey,
            args: ['--protected-mode', 'no', '--save', '', '--appendonly', 'no'],
            ports: [{ containerPort: 6_379 }],
            readinessProbe: { tcpSocket: { port: 6_379 }, periodSeconds: 1 },
            // As the Valkey of the chart. Without a request, it gets no CPU while other pods start.
            resources: { requests: { cpu: '50m', memory: '64Mi' } },
            securityContext: RESTRICTED,
          },
        ],
      },
    },
  },
};

export async function createShop(namespace: string): Promise<Shop> {
  const api = connect(inject('access'));
  await createRestrictedNamespace(api, namespace);
  const shell = createShell(namespace);
  const kubectl: Shop['kubectl'] = (args, options) => shell.run(`kubectl -n ${namespace} ${args}`, options);
  const apply: Shop['apply'] = async (...items) => {
    // JSON, because kubectl and helm read some words as other types in YAML.
    const input = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
    await kubectl('apply --server-side --force-conflicts -f -', { input });
  };
  const writeSecret: Shop['writeSecret'] = async (name, files) => {
    const data = Object.fromEntries(
      Object.entries(files).map(([key, text]) => [key, Buffer.from(text).toString('base64')]),
    );
    const type = 'tls.crt' in files ? 'kubernetes.io/tls' : 'Opaque';
    await apply({ apiVersion: 'v1', kind: 'Secret', metadata: { name }, type, data });
  };
  const addressOf = async (service: string): Promise<string> =>
    kubectl(`get service ${service} -o jsonpath={.spec.clusterIP}`);

  const ca = await createCa({ name: 'CN=staff CA' });
  const [server, exporter, crl] = await Promise.all([
    issueServer(ca),
    issue(ca, { commonName: CLIENT_ID }),
    createCrl(ca),
  ]);
  await shell.run('umask 077; gatehouse keys new keys.json');
  await kubectl(`create secret generic gatehouse-keys --from-file=${shell.folder}/keys.json`);
  await writeSecret('gatehouse-tls', { 'tls.crt': server.pem, 'tls.key': server.keyPem });
  await writeSecret('staff-ca', { 'ca.crt': ca.pem, 'staff.crl': crl.pem });
  await apply(REDIS, serviceFor('redis', 6_379));
  await kubectl('rollout status deployment/redis --timeout=120s');

  return {
    namespace,
    api,
    shell,
    ca,
    exporter,
    kubectl,
    apply,
    writeSecret,
    addressOf,
    install: (release, values) => {
      const file = shell.write(`${release}-values.json`, JSON.stringify(values));
      return shell.run(`helm -n ${namespace} upgrade --install ${release} helm/gatehouse -f ${file}`);
    },
    connect: async (service, as = exporter) =>
      createServiceClient({ address: await addressOf(service), ca: ca.pem, as }),
    pods: async (selector) => {
      const path = `/api/v1/namespaces/${namespace}/pods?labelSelector=${encodeURIComponent(selector)}`;
      const { body } = await api.call('GET', path);
      return ((body['items'] ?? []) as readonly PodObject[]).map(describePod);
    },
    // Its pods end while the next file starts.
    remove: async () => {
      await api.call('DELETE', `/api/v1/namespaces/${namespace}`);
    },
  };
}

function describePod({ metadata, status }: PodObject): Pod {
  const containers = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
  return {
    name: metadata.name,
    createdAt: Date.parse(metadata.creationTimestamp),
    address: status.podIP ?? '',
    isReady: (status.conditions ?? []).some((one) => one.type === 'Ready' && one.status === 'True'),
    isTerminating: metadata.deletionTimestamp !== undefined,
    restarts: containers.reduce((sum, { restartCount }) => sum + restartCount, 0),
  };
}

/** The labels of the pods of a gateway. */
export const GATEWAY_PODS = 'app.kubernetes.io/component=gateway';

/** Waits until exactly `count` pods are there and ready. */
export const waitForPods = (shop: Shop, selector: string, count: number): Promise<readonly Pod[]> =>
  waitUntilReady(selector, count, () => shop.pods(selector));

/** The same without pods that are terminating. The oldest pod comes first. */
export const waitForReadyPods = (shop: Shop, selector: string, count: number): Promise<readonly Pod[]> =>
  waitUntilReady(selector, count, async () =>
    (await shop.pods(selector))
      .filter(({ isTerminating }) => !isTerminating)
      .toSorted((a, b) => a.createdAt - b.createdAt),
  );

const waitUntilReady = (
  selector: string,
  count: number,
  listPods: () => Promise<readonly Pod[]>,
): Promise<readonly Pod[]> =>
  until(
    `${count} pods with ${selector} are ready`,
    async () => {
      const pods = await listPods();
      return pods.length === count && pods.every(({ isReady, isTerminating }) => isReady && !isTerminating) && pods;
    },
    300,
  );

/** Installs a gateway in front of an application, both with two pods, and waits until all are ready. */
export async function startGateway(shop: Shop, values: object): Promise<readonly Pod[]> {
  await shop.apply(createApplication('orders'), serviceFor('orders', 8_080));
  await shop.install('gate', { replicaCount: 2, ...values });
  await shop.kubectl('rollout status deployment/orders --timeout=120s');
  await shop.kubectl('rollout status deployment/gate-gatehouse --timeout=180s');
  return waitForPods(shop, GATEWAY_PODS, 2);
}

/** The commands in the notes that `helm install` prints. */
export const commandsInNotes = (notes: string): readonly string[] =>
  [...notes.matchAll(/^ {5}((?:kubectl|helm) .*)$/gm)].map(([, command = '']) => command);

/** Rotates the keys with the commands of docs/kubernetes.md. */
export async function rotateKeys({ namespace, shell }: Shop): Promise<void> {
  await shell.run(`umask 077
    gatehouse keys rotate keys.json --keep 90d
    kubectl -n ${namespace} create secret generic gatehouse-keys --from-file=keys.json --dry-run=client -o yaml | kubectl replace -f -`);
}
