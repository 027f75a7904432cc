import { Redis } from 'ioredis';
import { needs } from '../set-up/programs.ts';
import { startChild } from './child-process.ts';
import { freePort } from './ports.ts';
import { tempFolder } from './temp-folder.ts';
import { until } from './until.ts';

needs('redis-server');

export interface RedisServer {
  readonly port: number;
  readonly url: string;
  readonly pid: number;
  /** Stops the process (SIGSTOP), like a machine that hangs, until `resume`. */
  pause(): void;
  resume(): void;
  kill(): Promise<void>;
  /** Kills it and removes its files. */
  stop(): Promise<void>;
}

export interface RedisServerOptions {
  /** Default: a free port. */
  readonly port?: number;
  /** Arguments before the settings: a configuration file. */
  readonly file?: readonly string[];
  /** Accept TLS connections only. */
  readonly tls?: boolean;
}

/** Starts a real server on a free port with its own folder. Settings are command-line arguments. */
export async function startRedis(
  settings: readonly string[] = [],
  options: RedisServerOptions = {},
): Promise<RedisServer> {
  const folder = tempFolder('redis');
  const port = options.port ?? (await freePort());
  const ports = options.tls === true ? ['--port', '0', '--tls-port', String(port)] : ['--port', String(port)];
  const ownArgs = ['--bind', '127.0.0.1', ...ports, '--dir', folder.path, '--daemonize', 'no'];
  const args = [...(options.file ?? []), ...ownArgs, ...(options.file ? [] : ['--save', '']), ...settings];
  const child = await startChild(['redis-server', ...args], {
    ready: (line) => /Ready to accept connections|Sentinel ID is/.test(line),
  }).catch((error: unknown) => {
    folder.remove();
    throw error;
  });
  const kill = async (): Promise<void> => void (await child.stop('SIGKILL'));
  return {
    port,
    url: `redis://127.0.0.1:${port}/0`,
    pid: child.pid,
    pause: () => child.signal('SIGSTOP'),
    resume: () => child.signal('SIGCONT'),
    kill,
    async stop() {
      await kill();
      folder.remove();
    },
  };
}

export interface RedisCluster {
  readonly url: string;
  readonly nodes: readonly RedisServer[];
  stop(): Promise<void>;
}

/** Three primaries that share all slots. */
export async function startRedisCluster(): Promise<RedisCluster> {
  const nodes: RedisServer[] = [];
  const busPorts: number[] = [];
  const stop = async (): Promise<void> => void (await Promise.all(nodes.map((node) => node.stop())));
  try {
    for (let node = 0; node < 3; node += 1) {
      const busPort = await freePort();
      const args = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '2000', '--cluster-port', String(busPort)];
      nodes.push(await startRedis(args));
      busPorts.push(busPort);
    }
  } catch (error) {
    await stop();
    throw error;
  }
  try {
    await formRedisCluster(
      nodes.map(({ port }, index) => ({ host: '127.0.0.1', port, busPort: busPorts[index] ?? 0 })),
    );
    return { url: `redis+cluster://${nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`, nodes, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

export interface ClusterNode {
  readonly host: string;
  readonly port: number;
  readonly busPort: number;
}

/** Makes a Cluster of three empty nodes, which share all slots. */
export async function formRedisCluster(nodes: readonly ClusterNode[]): Promise<void> {
  const clients = nodes.map(({ host, port }) => new Redis(port, host));
  try {
    const bounds = [0, 5_461, 10_923, 16_384];
    await Promise.all(
      clients.map((client, index) => client.cluster('ADDSLOTSRANGE', bounds[index] ?? 0, (bounds[index + 1] ?? 0) - 1)),
    );
    for (const { host, port, busPort } of nodes.slice(1)) await clients[0]?.cluster('MEET', host, port, busPort);
    const isComplete = async (client: Redis): Promise<boolean> =>
      /cluster_state:ok[^]*cluster_known_nodes:3/.test(await client.cluster('INFO'));
    await until('the nodes form a cluster', async () => (await Promise.all(clients.map(isComplete))).every(Boolean));
  } finally {
    for (const client of clients) client.disconnect();
  }
}
