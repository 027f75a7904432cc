import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { type Daemon, startDaemon } from '../support/daemon.ts';
import { freePort } from '../support/ports.ts';
import { until } from '../support/until.ts';
import { type Access, connect } from './api.ts';

/** A real etcd and a real kube-apiserver on loopback: they validate and store objects, but no pod runs. */
export interface ControlPlane {
  readonly access: Access;
  /** For helm and kubectl. */
  readonly kubeconfig: string;
  stop(): Promise<void>;
}

const START_SECONDS = 300;
const TRIES = 3;

export async function startControlPlane(): Promise<ControlPlane> {
  for (let tried = 1; ; tried++) {
    try {
      return await start();
    } catch (error) {
      // Another process may take a free port before it is used.
      if (tried === TRIES) throw error;
    }
  }
}

async function start(): Promise<ControlPlane> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-control-plane-'));
  const processes: Daemon[] = [];
  const stop = async (): Promise<void> => {
    for (const child of processes.reverse()) await child.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const [client, peer, secure] = [await freePort(), await freePort(), await freePort()];
    processes.push(startEtcd(folder, `http://127.0.0.1:${client}`, `http://127.0.0.1:${peer}`));
    const token = randomBytes(24).toString('hex');
    const server = startApiServer(folder, `http://127.0.0.1:${client}`, secure, token);
    processes.push(server);
    const url = `https://127.0.0.1:${secure}`;
    const certificate = join(folder, 'certificates/apiserver.crt');
    await until(
      'the API server is ready',
      () => {
        for (const child of processes) child.assertRunning();
        return isReady(url, certificate, token);
      },
      START_SECONDS,
    );
    const kubeconfig = join(folder, 'kubeconfig');
    writeFileSync(kubeconfig, renderKubeconfig(url, certificate, token), { mode: 0o600 });
    return { access: { url, ca: readFileSync(certificate, 'utf8'), token }, kubeconfig, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

const startEtcd = (folder: string, client: string, peer: string): Daemon =>
  startDaemon(
    clusterProgram('etcd'),
    [
      '--data-dir',
      join(folder, 'etcd'),
      `--listen-client-urls=${client}`,
      `--advertise-client-urls=${client}`,
      `--listen-peer-urls=${peer}`,
      `--initial-advertise-peer-urls=${peer}`,
      `--initial-cluster=default=${peer}`,
      // The data is discarded at the end.
      '--unsafe-no-fsync',
    ],
    { folder },
  );

function startApiServer(folder: string, etcd: string, port: number, token: string): Daemon {
  const account = generateKeyPairSync('rsa', { modulusLength: 2_048 });
  const files = {
    'accounts.key': account.privateKey.export({ type: 'pkcs8', format: 'pem' }),
    'accounts.pub': account.publicKey.export({ type: 'spki', format: 'pem' }),
    'tokens.csv': `${token},operator,operator,"system:masters"\n`,
  };
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text, { mode: 0o600 });
  mkdirSync(join(folder, 'certificates'));
  return startDaemon(
    clusterProgram('kube-apiserver'),
    [
      `--etcd-servers=${etcd}`,
      '--bind-address=127.0.0.1',
      `--secure-port=${port}`,
      `--cert-dir=${join(folder, 'certificates')}`,
      // A dual-stack cluster, so that Services may request either IP family.
      '--service-cluster-ip-range=10.96.0.0/16,fd00:96::/108',
      '--authorization-mode=RBAC',
      `--token-auth-file=${join(folder, 'tokens.csv')}`,
      // An issuer that gatehouse can reach: without kube-proxy and DNS, kubernetes.default.svc has no address.
      `--service-account-issuer=https://127.0.0.1:${port}`,
      `--service-account-jwks-uri=https://127.0.0.1:${port}/openid/v1/jwks`,
      `--service-account-key-file=${join(folder, 'accounts.pub')}`,
      `--service-account-signing-key-file=${join(folder, 'accounts.key')}`,
    ],
    { folder },
  );
}

async function isReady(url: string, certificate: string, token: string): Promise<boolean> {
  try {
    const api = connect({ url, ca: readFileSync(certificate, 'utf8'), token });
    const { status } = await api.call('GET', '/readyz');
    // The server creates it after its start.
    return status === 200 && (await api.call('GET', '/api/v1/namespaces/default')).status === 200;
  } catch {
    return false;
  }
}

const renderKubeconfig = (url: string, certificate: string, token: string): string =>
  stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'test', cluster: { server: url, 'certificate-authority': certificate } }],
    users: [{ name: 'operator', user: { token } }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: 'operator' } }],
    'current-context': 'test',
  });
