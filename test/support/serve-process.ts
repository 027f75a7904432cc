import type { RequestListener } from 'node:http';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type Child, type Exit, startChild } from './child-process.ts';
import { createHttpsClient, type HttpsClient, parseJson } from './https-client.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from './pki.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';
import { baseSettings, type LogLine, type SettingsChange, startUpstream } from './test-gateway.ts';
import { until } from './until.ts';

export { until } from './until.ts';

/**
 * The folder of a gatehouse process, with its configuration and certificates. For tests that need real processes: signals,
 * workers, SIGKILL, changed files.
 */
export interface ServeFolder extends Omit<TempFolder, 'remove'> {
  readonly ca: IssuedCertificate;
  readonly alice: IssuedCertificate;
  readonly upstream: { readonly port: number };
  /** Changes `gatehouse.yaml`. */
  configure(change: SettingsChange): void;
  /** Stops the upstream and all processes that use this folder, and removes it. */
  remove(): Promise<void>;
}

export interface ServeProcess {
  readonly pid: number;
  readonly port: number;
  readonly adminPort: number;
  /** Process ids of the workers at start; empty with a single process. */
  readonly workers: readonly number[];
  /** Parsed log lines, oldest first. */
  readonly log: readonly LogLine[];
  /** Output on stderr. */
  readonly errors: () => string;
  readonly ended: Promise<Exit>;
  signal(signal: NodeJS.Signals): void;
  /** Sends SIGTERM and returns the exit code. */
  stop(): Promise<number | null>;
  /** Sends SIGKILL, like a power failure as far as the process is concerned. */
  kill(): Promise<void>;
}

/** The variable names the built program (test/full.config.ts). */
const MAIN = join(import.meta.dirname, '../..', process.env['GATEHOUSE_TEST_ENTRY'] ?? 'src/main.ts');

const running = new Map<string, Set<ServeProcess>>();

export async function createServeFolder(
  change: SettingsChange = (settings) => settings,
  upstreamHandler: RequestListener = (request, response) => {
    request.resume().on('end', () => response.end('ok'));
  },
): Promise<ServeFolder> {
  const { remove, ...folder } = tempFolder('serve');
  const { path, write } = folder;
  const ca = await createCa();
  const [server, alice] = await Promise.all([issueServer(ca), issue(ca, { commonName: 'alice' })]);
  const upstream = await startUpstream(upstreamHandler);
  let settings: SettingsInput = baseSettings(upstream.port);
  const configure = (next: SettingsChange): void => {
    settings = next(settings);
    write('gatehouse.yaml', stringify(settings));
  };
  write('ca.pem', ca.pem);
  write('server.pem', server.pem);
  write('server-key.pem', server.keyPem);
  configure(change);
  return {
    ...folder,
    ca,
    alice,
    upstream,
    configure,
    async remove() {
      await Promise.all([...(running.get(path) ?? [])].map((process) => process.kill()));
      await upstream.close();
      remove();
    },
  };
}

export interface StartOptions {
  /** Settings on the command line, such as `listen.workers=2`. */
  readonly set?: readonly string[];
  /** The built program instead of the sources. */
  readonly entry?: string;
  /** A command that starts it, such as `taskset -c 0`. */
  readonly wrapper?: readonly string[];
  /** Path of Node; default: that of this process. */
  readonly node?: string;
  readonly nodeOptions?: readonly string[];
  /** Added to its environment. */
  readonly env?: Readonly<Record<string, string>>;
}

/** Starts `gatehouse serve` and waits until it logs `ready`. */
export async function startServe(
  folder: Pick<ServeFolder, 'path'>,
  { set = [], entry = MAIN, wrapper = [], node = process.execPath, nodeOptions = [], env = {} }: StartOptions = {},
): Promise<ServeProcess> {
  const args = [
    ...wrapper,
    node,
    ...nodeOptions,
    entry,
    'serve',
    '--config',
    join(folder.path, 'gatehouse.yaml'),
    ...set.flatMap((setting) => ['--set', setting]),
  ];
  const log: LogLine[] = [];
  const child = await startChild(args, {
    cwd: folder.path,
    env: { ...cleanEnvironment(), ...env },
    onLine(text) {
      const line = parseJson(text);
      // The last line of a killed process may be truncated.
      if (typeof line['event'] === 'string') log.push(line as LogLine);
    },
    ready: (text) => text.includes('"event":"ready"'),
  });
  return track(folder.path, child, log);
}

function track(path: string, child: Child, log: readonly LogLine[]): ServeProcess {
  const line = log.find(({ event }) => event === 'ready');
  const workers = Array.isArray(line?.['workers']) ? line['workers'].map(Number) : [];
  const { ended, signal, stderr: errors } = child;
  const started: ServeProcess = {
    pid: Number(line?.['pid']),
    port: Number(line?.['port']),
    adminPort: Number(line?.['admin_port']),
    workers,
    log,
    errors,
    ended,
    signal,
    async stop() {
      return (await child.stop('SIGTERM', 60)).code;
    },
    async kill() {
      await child.stop('SIGKILL');
      // Workers exit by themselves when the supervisor is gone.
      await until('the workers have exited', () => workers.every((pid) => !isAlive(pid)));
    },
  };
  const others = running.get(path) ?? new Set();
  running.set(path, others.add(started));
  void ended.then(() => others.delete(started));
  return started;
}

/** The caller's environment must not change the settings. */
const cleanEnvironment = (): NodeJS.ProcessEnv =>
  Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(GATEHOUSE_|NODE_OPTIONS|VITEST|NODE_ENV)/.test(name)),
  );

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Status of the readiness probe. */
export const readiness = async ({ adminPort }: Pick<ServeProcess, 'adminPort'>): Promise<number> =>
  (await fetch(`http://127.0.0.1:${adminPort}/readyz`)).status;

export type Client = HttpsClient;

/** A client with one connection, so that the same worker always serves it. */
export const connect = (folder: Pick<ServeFolder, 'ca'>, port: number, as?: IssuedCertificate): Client =>
  createHttpsClient({ port, ca: folder.ca.pem, as });

export interface WorkerClient extends Client {
  /** Process id of the worker that serves this client. */
  readonly worker: number;
}

/** Opens `count` clients and reads from the access log which worker serves each. */
export async function connectMany(
  folder: Pick<ServeFolder, 'ca'>,
  server: Pick<ServeProcess, 'port' | 'log'>,
  count: number,
  as?: IssuedCertificate,
): Promise<readonly WorkerClient[]> {
  const from = server.log.length;
  return Promise.all(
    Array.from({ length: count }, async () => {
      const client = connect(folder, server.port, as);
      const path = `/which-worker/${crypto.randomUUID()}`;
      await client.request({ path });
      const line = await until(`a log line for ${path}`, () =>
        server.log.slice(from).find((entry) => entry['path'] === path),
      );
      return { ...client, worker: Number(line['worker']) };
    }),
  );
}

/** The clients by worker. */
export const groupByWorker = <C extends WorkerClient>(clients: readonly C[]): ReadonlyMap<number, readonly C[]> =>
  Map.groupBy(clients, ({ worker }) => worker);
