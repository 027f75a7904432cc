import { execFileSync } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { type ClusterProgram, clusterProgram } from '../../tools/chart/cluster.ts';
import { type Access, type Api, connect } from '../apiserver/api.ts';
import { type Daemon, startDaemon } from '../support/daemon.ts';
import { createCa, issue, issueServer } from '../support/pki.ts';
import { until } from '../support/until.ts';
import { IMAGES, NEXT_TAG } from './images.ts';
import {
  API_SERVICE_ADDRESS,
  DEFAULT_ROUTES,
  NODE_ADDRESS,
  NODE_ADDRESSES,
  POD_RANGES,
  SERVICE_RANGES,
  setUpNetwork,
} from './network.ts';

/** A Kubernetes with one node. Runs in the namespaces that run.ts creates. */
export interface Cluster {
  readonly access: Access;
  /** For helm and kubectl. */
  readonly kubeconfig: string;
  stop(): Promise<void>;
}

export interface ClusterOptions {
  /** For all state. */
  readonly folder: string;
  /** The parent of all cgroups of pods. */
  readonly cgroup: string;
  readonly images: readonly string[];
}

const NODE = 'node';
const URL = `https://${NODE_ADDRESS}:6443`;
const START_SECONDS = 300;
const ETCD = 'http://127.0.0.1:2379';

/** The users of the programs, each with its own token. */
const USERS = {
  admin: { name: 'admin', group: 'system:masters' },
  scheduler: { name: 'system:kube-scheduler' },
  controllers: { name: 'system:kube-controller-manager' },
  proxy: { name: 'system:kube-proxy' },
  kubelet: { name: `system:node:${NODE}`, group: 'system:nodes' },
  dns: { name: 'dns', group: 'system:masters' },
} as const satisfies Readonly<Record<string, { readonly name: string; readonly group?: string }>>;

type User = keyof typeof USERS;

export async function startCluster({ folder, cgroup, images }: ClusterOptions): Promise<Cluster> {
  isolateMounts(folder);
  setUpNetwork();
  const file = (name: string): string => join(folder, name);
  const write = (name: string, content: string): string => {
    writeFileSync(file(name), content, { mode: 0o600 });
    return file(name);
  };
  const ca = await writeCertificates(write);
  const tokens = writeTokens(write);
  const kubeconfig = (user: User): string =>
    write(`${user}.kubeconfig`, renderKubeconfig(file('ca.crt'), tokens[user]));

  const daemons: Daemon[] = [];
  const start = (program: string, args: readonly string[]): Daemon => {
    // runc, ip and nft.
    const env = { PATH: `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin` };
    const daemon = startDaemon(program, args, { folder, env });
    daemons.push(daemon);
    return daemon;
  };
  const startProgram = (name: ClusterProgram, args: readonly string[]): Daemon => start(clusterProgram(name), args);
  const waitUntil = (what: string, check: () => Promise<boolean>): Promise<boolean> =>
    until(
      what,
      () => {
        for (const daemon of daemons) daemon.assertRunning();
        return check().catch(() => false);
      },
      START_SECONDS,
    );
  const stop = async (): Promise<void> => {
    for (const daemon of daemons.reverse()) await daemon.stop();
  };
  try {
    const socket = startContainerd(start, write, folder);
    startEtcd(startProgram, folder);
    startApiServer(startProgram, file);
    const access: Access = { url: URL, ca, token: tokens.admin };
    const api = connect(access);
    await waitUntil('the API server is ready', async () => (await api.call('GET', '/readyz')).status === 200);
    startControllers(startProgram, file, kubeconfig);
    startProxy(startProgram, write, kubeconfig);
    startDns(startProgram, write, kubeconfig);
    await waitUntil('containerd is ready', async () => listImages(socket).length >= 0);
    for (const image of images) ctr(socket, 'images', 'import', image);
    ctr(socket, 'images', 'tag', IMAGES.gatehouse, IMAGES.gatehouse.replace(/[^:]*$/, NEXT_TAG));
    startKubelet(startProgram, write, kubeconfig, { folder, cgroup, socket });
    await waitUntil('the node is ready', () => isNodeReady(api));
    return { access, kubeconfig: kubeconfig('admin'), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

type Start<Name> = (program: Name, args: readonly string[]) => Daemon;
type Write = (name: string, content: string) => string;

/** Paths that containerd, the CNI plugins and the kubelet use whatever their configuration says. */
function isolateMounts(folder: string): void {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'mode=0755', 'tmpfs', '/run']);
  mkdirSync('/run/netns');
  mkdirSync(join(folder, 'var-log'));
  execFileSync('mount', ['--bind', join(folder, 'var-log'), '/var/log']);
}

async function writeCertificates(write: Write): Promise<string> {
  const ca = await createCa({ name: 'CN=cluster' });
  const server = await issueServer(ca, {
    commonName: 'kube-apiserver',
    dnsNames: ['kubernetes', 'kubernetes.default', 'kubernetes.default.svc', 'kubernetes.default.svc.cluster.local'],
    addresses: [NODE_ADDRESS, API_SERVICE_ADDRESS, '127.0.0.1'],
  });
  const client = await issue(ca, { commonName: 'kube-apiserver', subject: [{ O: ['system:masters'] }] });
  const account = generateKeyPairSync('rsa', { modulusLength: 2_048 });
  const files = {
    'ca.crt': ca.pem,
    'apiserver.crt': server.pem,
    'apiserver.key': server.keyPem,
    'kubelet-client.crt': client.pem,
    'kubelet-client.key': client.keyPem,
    'accounts.key': account.privateKey.export({ type: 'pkcs8', format: 'pem' }),
    'accounts.pub': account.publicKey.export({ type: 'spki', format: 'pem' }),
  };
  for (const [name, content] of Object.entries(files)) write(name, content);
  return ca.pem;
}

function writeTokens(write: Write): Readonly<Record<User, string>> {
  const users = Object.entries(USERS) as [User, { readonly name: string; readonly group?: string }][];
  const tokens = Object.fromEntries(users.map(([user]) => [user, randomBytes(24).toString('hex')]));
  const lines = users.map(([user, { name, group = '' }]) => `${tokens[user]},${name},${name},"${group}"\n`);
  write('tokens.csv', lines.join(''));
  return tokens as Record<User, string>;
}

const renderKubeconfig = (ca: string, token: string): string =>
  stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'test', cluster: { server: URL, 'certificate-authority': ca } }],
    users: [{ name: 'user', user: { token } }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: 'user' } }],
    'current-context': 'test',
  });

/** Returns its socket. */
function startContainerd(start: Start<string>, write: Write, folder: string): string {
  const socket = join(folder, 'containerd.sock');
  const cni = join(folder, 'cni');
  mkdirSync(cni);
  write(
    'cni/10-bridge.conflist',
    JSON.stringify({
      cniVersion: '0.4.0',
      name: 'pods',
      plugins: [
        {
          type: 'bridge',
          bridge: 'cni0',
          isGateway: true,
          // A pod may reach itself through its Service.
          hairpinMode: true,
          ipam: {
            type: 'host-local',
            ranges: POD_RANGES.map((subnet) => [{ subnet }]),
            routes: DEFAULT_ROUTES.map((dst) => ({ dst })),
            dataDir: join(folder, 'cni-addresses'),
          },
        },
      ],
    }),
  );
  const configuration = `
version = 2
root = "${join(folder, 'containerd')}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "${socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # Without CAP_SYS_RESOURCE, runc fails to lower the OOM score with "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
  sandbox_image = "${IMAGES.pause}"
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "${cni}"
`;
  start('containerd', ['--config', write('containerd.toml', configuration)]);
  return socket;
}

const ctr = (socket: string, ...args: readonly string[]): string =>
  execFileSync('ctr', ['--address', socket, '--namespace', 'k8s.io', ...args], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  });
const listImages = (socket: string): string => ctr(socket, 'images', 'list', '--quiet');

const startEtcd = (start: Start<ClusterProgram>, folder: string): Daemon =>
  start('etcd', [
    `--data-dir=${join(folder, 'etcd')}`,
    `--listen-client-urls=${ETCD}`,
    `--advertise-client-urls=${ETCD}`,
    '--listen-peer-urls=http://127.0.0.1:2380',
    '--initial-advertise-peer-urls=http://127.0.0.1:2380',
    '--initial-cluster=default=http://127.0.0.1:2380',
    // The data is discarded at the end.
    '--unsafe-no-fsync',
  ]);

const startApiServer = (start: Start<ClusterProgram>, file: (name: string) => string): Daemon =>
  start('kube-apiserver', [
    `--etcd-servers=${ETCD}`,
    `--advertise-address=${NODE_ADDRESS}`,
    '--secure-port=6443',
    `--tls-cert-file=${file('apiserver.crt')}`,
    `--tls-private-key-file=${file('apiserver.key')}`,
    `--token-auth-file=${file('tokens.csv')}`,
    `--kubelet-client-certificate=${file('kubelet-client.crt')}`,
    `--kubelet-client-key=${file('kubelet-client.key')}`,
    '--kubelet-preferred-address-types=InternalIP',
    `--service-cluster-ip-range=${SERVICE_RANGES.join(',')}`,
    '--authorization-mode=Node,RBAC',
    '--enable-admission-plugins=NodeRestriction',
    '--service-account-issuer=https://kubernetes.default.svc.cluster.local',
    `--service-account-key-file=${file('accounts.pub')}`,
    `--service-account-signing-key-file=${file('accounts.key')}`,
  ]);

function startControllers(
  start: Start<ClusterProgram>,
  file: (name: string) => string,
  kubeconfig: (user: User) => string,
): void {
  const common = ['--leader-elect=false', '--bind-address=127.0.0.1'];
  start('kube-controller-manager', [
    `--kubeconfig=${kubeconfig('controllers')}`,
    `--service-account-private-key-file=${file('accounts.key')}`,
    `--root-ca-file=${file('ca.crt')}`,
    '--use-service-account-credentials=true',
    ...common,
  ]);
  start('kube-scheduler', [`--kubeconfig=${kubeconfig('scheduler')}`, ...common]);
}

function startProxy(start: Start<ClusterProgram>, write: Write, kubeconfig: (user: User) => string): void {
  const configuration = {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: 'nftables',
    clientConnection: { kubeconfig: kubeconfig('proxy') },
    clusterCIDR: POD_RANGES.join(','),
    hostnameOverride: NODE,
    bindAddress: NODE_ADDRESS,
    // These parameters apply to the whole machine.
    conntrack: { maxPerCore: 0, min: 0, tcpCloseWaitTimeout: '0s', tcpEstablishedTimeout: '0s' },
  };
  start('kube-proxy', [`--config=${write('kube-proxy.yaml', stringify(configuration))}`]);
}

function startDns(start: Start<ClusterProgram>, write: Write, kubeconfig: (user: User) => string): void {
  const corefile = `.:53 {
  bind ${NODE_ADDRESS}
  errors
  cache 2
  kubernetes cluster.local {
    kubeconfig ${kubeconfig('dns')} test
    ttl 2
  }
}
`;
  start('coredns', ['-conf', write('Corefile', corefile)]);
}

function startKubelet(
  start: Start<ClusterProgram>,
  write: Write,
  kubeconfig: (user: User) => string,
  { folder, cgroup, socket }: { readonly folder: string; readonly cgroup: string; readonly socket: string },
): void {
  const configuration = {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    failCgroupV1: false,
    failSwapOn: false,
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${cgroup}`,
    enforceNodeAllocatable: ['pods'],
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: false },
      x509: { clientCAFile: join(folder, 'ca.crt') },
    },
    authorization: { mode: 'AlwaysAllow' },
    address: NODE_ADDRESS,
    clusterDNS: [NODE_ADDRESS],
    clusterDomain: 'cluster.local',
    resolvConf: write('resolv.conf', 'search nowhere.invalid\n'),
    containerRuntimeEndpoint: `unix://${socket}`,
    podLogsDir: '/var/log/pods',
    volumePluginDir: join(folder, 'volume-plugins'),
    makeIPTablesUtilChains: false,
    // The disk and the memory of the machine are shared with other programs.
    evictionHard: {
      'memory.available': '50Mi',
      'nodefs.available': '0%',
      'nodefs.inodesFree': '0%',
      'imagefs.available': '0%',
      'imagefs.inodesFree': '0%',
    },
    imageGCHighThresholdPercent: 100,
    maxPods: 60,
    serializeImagePulls: false,
    eventRecordQPS: 0,
    kubeAPIQPS: 100,
    kubeAPIBurst: 200,
    // How long a changed Secret may take to reach a pod; the default is a minute.
    syncFrequency: '5s',
    oomScoreAdj: 0,
  };
  start('kubelet', [
    `--config=${write('kubelet.yaml', stringify(configuration))}`,
    `--kubeconfig=${kubeconfig('kubelet')}`,
    `--root-dir=${join(folder, 'kubelet')}`,
    `--hostname-override=${NODE}`,
    `--node-ip=${NODE_ADDRESSES.join(',')}`,
  ]);
}

async function isNodeReady(api: Api): Promise<boolean> {
  const { body } = await api.call('GET', `/api/v1/nodes/${NODE}`);
  const { conditions = [] } = (body['status'] ?? {}) as {
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
  };
  return conditions.some(({ type, status }) => type === 'Ready' && status === 'True');
}
