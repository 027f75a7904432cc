import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { freePort } from './gateway-process.ts';

export interface RedisServer {
  readonly port: number;
  readonly url: string;
  readonly pid: number;
  /** Stands still, as a machine that hangs; `resume` lets it go on. */
  pause(): void;
  resume(): void;
  kill(): Promise<void>;
  /** Ends it and removes its files. */
  stop(): Promise<void>;
}

const LIMIT_MS = 20_000;

export interface ServerOptions {
  /** A port of one's choice; else a free one. */
  readonly at?: number;
  /** Words in front of the settings: a configuration file. */
  readonly file?: readonly string[];
  /** Speaks TLS only. */
  readonly tls?: boolean;
}

/** A real server on a free port, with a folder of its own. Settings are words as on its command line. */
export async function redisServer(
  settings: readonly string[] = [],
  options: ServerOptions = {},
): Promise<RedisServer> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-redis-'));
  const port = options.at ?? (await freePort());
  const ports = options.tls === true ? ['--port', '0', '--tls-port', String(port)] : ['--port', String(port)];
  const own = ['--bind', '127.0.0.1', ...ports, '--dir', folder, '--daemonize', 'no'];
  const words = [...(options.file ?? []), ...own, ...(options.file ? [] : ['--save', '']), ...settings];
  const child = spawn('redis-server', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    await saysReady(child);
  } catch (error) {
    child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
    throw error;
  }
  const kill = async (): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  };
  return {
    port,
    url: `redis://127.0.0.1:${port}/0`,
    pid: child.pid ?? 0,
    pause: () => void child.kill('SIGSTOP'),
    resume: () => void child.kill('SIGCONT'),
    kill,
    async stop() {
      await kill();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export interface RedisCluster {
  readonly url: string;
  readonly nodes: readonly RedisServer[];
  stop(): Promise<void>;
}

/** A node of a cluster listens ten thousand ports higher as well. */
async function portForCluster(): Promise<number> {
  for (let tries = 0; tries < 100; tries += 1) {
    const port = await freePort();
    if (port + 10_000 < 65_536) return port;
  }
  throw new Error('no free port with room above it');
}

/** Three primaries that share all slots. */
export async function redisCluster(): Promise<RedisCluster> {
  const nodes: RedisServer[] = [];
  const stop = async (): Promise<void> => void (await Promise.all(nodes.map((node) => node.stop())));
  try {
    for (let node = 0; node < 3; node += 1)
      nodes.push(
        await redisServer(['--cluster-enabled', 'yes', '--cluster-node-timeout', '2000'], {
          at: await portForCluster(),
        }),
      );
  } catch (error) {
    await stop();
    throw error;
  }
  const clients = nodes.map(({ port }) => new Redis(port, '127.0.0.1'));
  try {
    const bounds = [0, 5_461, 10_923, 16_384];
    await Promise.all(
      clients.map((client, index) =>
        client.cluster('ADDSLOTSRANGE', bounds[index] ?? 0, (bounds[index + 1] ?? 0) - 1),
      ),
    );
    for (const { port } of nodes.slice(1)) await clients[0]?.cluster('MEET', '127.0.0.1', port);
    const isWhole = async (client: Redis): Promise<boolean> =>
      /cluster_state:ok[^]*cluster_known_nodes:3/.test(await client.cluster('INFO'));
    for (const until = performance.now() + LIMIT_MS; ; ) {
      if ((await Promise.all(clients.map(isWhole))).every(Boolean)) break;
      if (performance.now() > until) throw new Error('the cluster did not come together');
      await pause(50);
    }
    return { url: `redis+cluster://${nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`, nodes, stop };
  } catch (error) {
    await stop();
    throw error;
  } finally {
    for (const client of clients) client.disconnect();
  }
}

async function saysReady(child: ChildProcess): Promise<void> {
  if (child.stdout === null) throw new Error('no output to read');
  const said: string[] = [];
  const lines = createInterface({ input: child.stdout });
  const limit = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS);
  try {
    for await (const line of lines) {
      said.push(line);
      if (/Ready to accept connections|Sentinel ID is/.test(line)) return;
    }
    throw new Error(`redis-server did not start:\n${said.join('\n')}`);
  } finally {
    clearTimeout(limit);
    lines.close();
    child.stdout.resume();
  }
}
