import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type FaultyRelay, startFaultyRelay } from '../support/faulty-relay.ts';
import { createHttpsClient, type HttpsClient, type Reply, requestGrant } from '../support/https-client.ts';
import {
  createServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
} from '../support/serve-process.ts';
import { until } from '../support/until.ts';

/** Many keep-alive connections to one process. A failed or silent connection throws, and its outcome is unknown. */
export interface Caller extends HttpsClient {
  /** The status of a request through the proxy. */
  call(accessToken: string): Promise<number>;
}

/** One replica with its own relay to Redis. Each restart is a new process. */
export interface Replica {
  readonly name: number;
  readonly relay: FaultyRelay;
  readonly process: ServeProcess;
  readonly caller: Caller;
  /** How often the process was started. */
  readonly startCount: number;
  readonly isUp: boolean;
  kill(): Promise<void>;
  start(): Promise<void>;
  isReady(): Promise<boolean>;
}

export interface Fleet {
  readonly folder: ServeFolder;
  readonly replicas: readonly Replica[];
  /** Number of audit events with this name, over all processes of all replicas. */
  countAudits(event: string): number;
  allReady(): Promise<void>;
  close(): Promise<void>;
}

export interface FleetOptions {
  /** The port of the server behind the relays. */
  readonly redis: number;
  /** Connects without relays, to Sentinels or a Cluster. */
  readonly url?: string;
  readonly size?: number;
  readonly store?: SettingsInput['store'];
  readonly change?: (settings: SettingsInput) => SettingsInput;
  /** Connections to each replica. */
  readonly connections?: number;
  /** Timeout of a response. */
  readonly seconds?: number;
  /** Settings of one replica, such as `store.ack=everywhere`. */
  readonly set?: (replica: number) => readonly string[];
  readonly tap?: (replica: number) => (bytes: Buffer, connection: number) => void;
}

/** Starts several gatehouse processes on one Redis, each of which can be partitioned, stopped or killed. */
export async function startFleet(options: FleetOptions): Promise<Fleet> {
  const { redis, size = 3, store = {}, change = (settings) => settings } = options;
  const { connections = 32, seconds = 15 } = options;
  const folder = await createServeFolder((settings) =>
    change({
      ...settings,
      store: { type: 'redis', url: 'redis://127.0.0.1:1', ...store },
      keys: { file: 'keys.json' },
      log: { level: 'info', access: { enabled: false } },
    }),
  );
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const endedProcesses: ServeProcess[] = [];
  const relays: FaultyRelay[] = [];
  const starting = Array.from({ length: size }, async (_, name) => {
    const relay = await startFaultyRelay(redis, options.tap?.(name));
    relays.push(relay);
    const url = options.url ?? `redis://127.0.0.1:${relay.port}/0`;
    const args = [`store.url=${url}`, ...(options.set?.(name) ?? [])];
    return startReplica({ folder, name, relay, args, endedProcesses, call: { connections, seconds } });
  });
  const replicas = await Promise.all(starting).catch(async (error: unknown) => {
    // Clean up if one of them does not start.
    await Promise.allSettled(starting);
    await folder.remove();
    await Promise.all(relays.map((relay) => relay.close()));
    throw error;
  });
  return {
    folder,
    replicas,
    countAudits: (event) =>
      [...endedProcesses, ...replicas.map((replica) => replica.process)]
        .flatMap(({ log }) => log)
        .filter((line) => line.audit === true && line.event === event).length,
    async allReady() {
      await until(
        'every replica is ready',
        async () => (await Promise.all(replicas.map((replica) => replica.isReady()))).every(Boolean),
        60,
      );
    },
    async close() {
      for (const replica of replicas) replica.caller.close();
      await folder.remove();
      await Promise.all(replicas.map((replica) => replica.relay.close()));
    },
  };
}

interface ReplicaOptions {
  readonly folder: ServeFolder;
  readonly name: number;
  readonly relay: FaultyRelay;
  readonly args: readonly string[];
  readonly endedProcesses: ServeProcess[];
  readonly call: CallerOptions;
}

interface CallerOptions {
  readonly connections: number;
  readonly seconds: number;
}

async function startReplica({ folder, name, relay, args, endedProcesses, call }: ReplicaOptions): Promise<Replica> {
  const launch = (): Promise<ServeProcess> => startServe(folder, { set: args });
  let running = await launch();
  let caller = createCaller(folder, running.port, call);
  let startCount = 1;
  let isUp = true;
  return {
    name,
    relay,
    get process() {
      return running;
    },
    get caller() {
      return caller;
    },
    get startCount() {
      return startCount;
    },
    get isUp() {
      return isUp;
    },
    async kill() {
      isUp = false;
      const before = caller;
      await running.kill();
      endedProcesses.push(running);
      before.close();
    },
    async start() {
      running = await launch();
      caller = createCaller(folder, running.port, call);
      startCount += 1;
      isUp = true;
    },
    async isReady() {
      if (!isUp) return false;
      return (await readiness(running).catch(() => 0)) === 200;
    },
  };
}

function createCaller(folder: ServeFolder, port: number, calling: CallerOptions): Caller {
  const client = createHttpsClient({ port, ca: folder.ca.pem, as: folder.alice, ...calling });
  return {
    ...client,
    // On a busy machine Redis may count as unreachable, which is a temporary error.
    grant: (scope) => requestGrant((path, body) => retryWhileTemporary(() => client.post(path, body)), { scope }),
    call: async (token) => (await client.getWithToken('/whoami', token)).status,
  };
}

/** Whether a response is a temporary error, after which the client retries and keeps its tokens. */
export const isTemporary = ({ status, headers, json }: Reply): boolean =>
  Number(headers['retry-after']) > 0 && (status === 503 || (status === 400 && json['Error'] === 'invalid_request'));

export const isInvalidGrant = ({ status, json }: Reply): boolean => status === 400 && json['Error'] === 'invalid_grant';

/** Retries as long as the response is a temporary error, as `Retry-After` asks of clients. */
export const retryWhileTemporary = (send: () => Promise<Reply>): Promise<Reply> =>
  until(
    'the response is not temporary',
    async () => {
      const response = await send();
      return !isTemporary(response) && response;
    },
    60,
  );
