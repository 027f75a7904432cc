import type { SettingsInput } from '../../src/config/schema.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { grantedBy, type HttpsClient, httpsClient, type Reply } from '../support/https-client.ts';
import {
  makeServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
} from '../support/serve-process.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';
import { until } from '../support/until.ts';

/** Many kept-alive connections to one gatehouse. A connection that breaks or falls silent is an exception, and its outcome unknown. */
export interface Caller extends HttpsClient {
  /** The status of a call through the proxy: no network before the upstream. */
  call(accessToken: string): Promise<number>;
}

/** One gatehouse of the fleet, on its own way to Redis. It is another process after each restart. */
export interface Replica {
  readonly name: number;
  readonly way: FaultyWay;
  readonly process: ServeProcess;
  readonly caller: Caller;
  /** Counts its lives. */
  readonly life: number;
  readonly isUp: boolean;
  kill9(): Promise<void>;
  start(): Promise<void>;
  isReady(): Promise<boolean>;
}

export interface Fleet {
  readonly folder: ServeFolder;
  readonly replicas: readonly Replica[];
  /** Log lines of all lives of all replicas with this event. */
  audits(event: string): number;
  allReady(): Promise<void>;
  close(): Promise<void>;
}

export interface FleetOptions {
  readonly redis: number;
  readonly size?: number;
  readonly store?: SettingsInput['store'];
  readonly change?: (settings: SettingsInput) => SettingsInput;
  /** Connections to each replica. */
  readonly connections?: number;
  /** Deadline of a response. */
  readonly seconds?: number;
  /** Settings of one replica, such as `store.ack=everywhere`. */
  readonly set?: (replica: number) => readonly string[];
  readonly tap?: (replica: number) => (bytes: Buffer, connection: number) => void;
}

/** Several real gatehouses on one Redis, each a process of its own that can be cut off, stopped or killed. */
export async function openFleet(options: FleetOptions): Promise<Fleet> {
  const { redis, size = 3, store = {}, change = (settings) => settings } = options;
  const { connections = 32, seconds = 15 } = options;
  const folder = await makeServeFolder((settings) =>
    change({
      ...settings,
      store: { type: 'redis', url: 'redis://127.0.0.1:1', ...store },
      keys: { file: 'keys.json' },
      log: { level: 'info', access: { enabled: false } },
    }),
  );
  writeKeyringFile(folder.file('keys.json'), newKeyring('EdDSA'), { replace: false });
  const ended: ServeProcess[] = [];
  const ways: FaultyWay[] = [];
  const starting = Array.from({ length: size }, async (_, name) => {
    const way = await faultyWay(redis, options.tap?.(name));
    ways.push(way);
    const words = options.set?.(name) ?? [];
    return oneOf({ folder, name, way, words, ended, call: { connections, seconds } });
  });
  const replicas = await Promise.all(starting).catch(async (error: unknown) => {
    // Nothing is left behind when one of them does not start.
    await Promise.allSettled(starting);
    await folder.remove();
    await Promise.all(ways.map((way) => way.close()));
    throw error;
  });
  return {
    folder,
    replicas,
    audits: (event) =>
      [...ended, ...replicas.map((replica) => replica.process)]
        .flatMap(({ log }) => log)
        .filter((line) => line.audit === true && line.event === event).length,
    async allReady() {
      await until(
        'every replica is ready',
        async () => (await Promise.all(replicas.map((one) => one.isReady()))).every(Boolean),
        60,
      );
    },
    async close() {
      for (const replica of replicas) replica.caller.close();
      await folder.remove();
      await Promise.all(replicas.map((replica) => replica.way.close()));
    },
  };
}

interface Place {
  readonly folder: ServeFolder;
  readonly name: number;
  readonly way: FaultyWay;
  readonly words: readonly string[];
  readonly ended: ServeProcess[];
  readonly call: Calling;
}

interface Calling {
  readonly connections: number;
  readonly seconds: number;
}

async function oneOf({ folder, name, way, words, ended, call }: Place): Promise<Replica> {
  const launch = (): Promise<ServeProcess> =>
    startServe(folder, { set: [`store.url=redis://127.0.0.1:${way.port}/0`, ...words] });
  let running = await launch();
  let caller = callerOf(folder, running.port, call);
  let life = 1;
  let isUp = true;
  return {
    name,
    way,
    get process() {
      return running;
    },
    get caller() {
      return caller;
    },
    get life() {
      return life;
    },
    get isUp() {
      return isUp;
    },
    async kill9() {
      isUp = false;
      const before = caller;
      await running.kill9();
      ended.push(running);
      before.close();
    },
    async start() {
      running = await launch();
      caller = callerOf(folder, running.port, call);
      life += 1;
      isUp = true;
    },
    async isReady() {
      if (!isUp) return false;
      return (await readiness(running).catch(() => 0)) === 200;
    },
  };
}

function callerOf(folder: ServeFolder, port: number, calling: Calling): Caller {
  const client = httpsClient({ port, ca: folder.ca.pem, as: folder.alice, ...calling });
  return {
    ...client,
    // A Redis without a CPU for 250 ms counts as unreachable, and the response asks to come again.
    grant: (scope) => grantedBy((path, body) => persistently(() => client.post(path, body)), { scope }),
    call: async (token) => (await client.bearer('/whoami', token)).status,
  };
}

/** Was this reported as a temporary failure? Then the client tries again, and keeps its tokens. */
export const isTemporary = ({ status, headers, json }: Reply): boolean =>
  Number(headers['retry-after']) > 0 &&
  (status === 503 || (status === 400 && json['Error'] === 'invalid_request'));

export const isInvalidGrant = ({ status, json }: Reply): boolean =>
  status === 400 && json['Error'] === 'invalid_grant';

/** As `Retry-After` asks of a client while Redis fails: tries again for as long as the response is temporary. */
export const persistently = (send: () => Promise<Reply>): Promise<Reply> =>
  until(
    'the response is not temporary',
    async () => {
      const answer = await send();
      return !isTemporary(answer) && answer;
    },
    60,
  );
