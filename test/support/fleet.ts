import { Pool } from 'undici';
import type { SettingsInput } from '../../src/config/schema.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import type { TokenGrant } from './house.ts';
import { makeServeFolder, type ServeFolder, type ServeProcess, startServe, until } from './serve-process.ts';
import { type FaultyWay, faultyWay } from './tcp-fault.ts';

/** What a caller learns; a connection that broke or fell silent is an exception, and its outcome unknown. */
export interface Answer {
  readonly status: number;
  readonly retryAfter: string | undefined;
  readonly json: Record<string, unknown>;
}

/** Many kept-alive connections to one gatehouse. */
export interface Caller {
  post(path: string, body: unknown): Promise<Answer>;
  bearer(path: string, token: string): Promise<Answer>;
  /** Asks until it is granted. */
  grant(): Promise<TokenGrant>;
  refresh(token: string): Promise<Answer>;
  revoke(accessToken: string): Promise<Answer>;
  /** The status of a call through the proxy: no network before the upstream. */
  call(accessToken: string): Promise<number>;
  close(): Promise<void>;
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
  /** Milliseconds a caller waits for an answer. */
  readonly patience?: number;
  /** Settings of one replica, such as `store.ack=everywhere`. */
  readonly set?: (replica: number) => readonly string[];
  readonly tap?: (replica: number) => (bytes: Buffer, connection: number) => void;
}

/** Several real gatehouses on one Redis, each a process of its own that can be cut off, stopped or killed. */
export async function openFleet(options: FleetOptions): Promise<Fleet> {
  const { redis, size = 3, store = {}, change = (settings) => settings } = options;
  const { connections = 32, patience = ANSWER_MS } = options;
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
    return oneOf({ folder, name, way, words, ended, call: { connections, patience } });
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
      await Promise.all(replicas.map((replica) => replica.caller.close()));
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
  readonly patience: number;
}

async function oneOf({ folder, name, way, words, ended, call }: Place): Promise<Replica> {
  const launch = (tries = 3): Promise<ServeProcess> =>
    startServe(folder, { set: [`store.url=redis://127.0.0.1:${way.port}/0`, ...words] }).catch(
      (error: unknown) => {
        // 69: something it needs was away just then. Whoever runs it starts it again.
        if (tries > 1 && /ended with 69/.test(String(error))) return launch(tries - 1);
        throw error;
      },
    );
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
      await before.close();
    },
    async start() {
      running = await launch();
      caller = callerOf(folder, running.port, call);
      life += 1;
      isUp = true;
    },
    async isReady() {
      if (!isUp) return false;
      const reply = await fetch(`http://127.0.0.1:${running.adminPort}/readyz`, {
        signal: AbortSignal.timeout(5_000),
      }).catch(() => undefined);
      await reply?.body?.cancel();
      return reply?.status === 200;
    },
  };
}

const ANSWER_MS = 15_000;

function callerOf(folder: ServeFolder, port: number, { connections, patience }: Calling): Caller {
  const pool = new Pool(`https://127.0.0.1:${port}`, {
    connections,
    allowH2: false,
    connect: {
      ca: folder.ca.pem,
      cert: folder.alice.pem,
      key: folder.alice.keyPem,
      servername: 'localhost',
      timeout: ANSWER_MS,
    },
  });
  const ask = async (
    method: 'GET' | 'POST',
    path: string,
    headers: Record<string, string>,
    body: string | null = null,
  ): Promise<Answer> => {
    const signal = AbortSignal.timeout(patience);
    const reply = await pool.request({ method, path, headers, body, signal });
    const text = await reply.body.text();
    const retryAfter = reply.headers['retry-after'];
    return {
      status: reply.statusCode,
      retryAfter: typeof retryAfter === 'string' ? retryAfter : undefined,
      json: jsonOf(text),
    };
  };
  const post: Caller['post'] = (path, body) =>
    ask('POST', `/authsvc${path}`, { 'content-type': 'application/json' }, JSON.stringify(body));
  const bearer: Caller['bearer'] = (path, token) => ask('GET', path, { authorization: `Bearer ${token}` });
  return {
    post,
    bearer,
    grant: () =>
      until(
        'a grant',
        async () => {
          const { status, json } = await post('/Authorize/Certificate', {
            client_id: 'report-runner',
            scope: 'files:read',
          }).catch(() => ({ status: 0, json: {} }));
          return status === 200 && (json as unknown as TokenGrant);
        },
        60,
      ),
    refresh: (token) => post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token }),
    revoke: (token) => bearer('/authsvc/Revoke/Token', token),
    call: async (token) => (await bearer('/whoami', token)).status,
    close: () => pool.destroy(),
  };
}

const jsonOf = (text: string): Record<string, unknown> => {
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    return {};
  }
};

/** Was this our failure, told as one? Then the caller tries again, and throws nothing away. */
export const isTemporary = ({ status, retryAfter, json }: Answer): boolean =>
  Number(retryAfter) > 0 && (status === 503 || (status === 400 && json['Error'] === 'invalid_request'));

export const isInvalidGrant = ({ status, json }: Answer): boolean =>
  status === 400 && json['Error'] === 'invalid_grant';

/** As a client is told to: tries again for as long as the answer is "try again". */
export const persistently = (send: () => Promise<Answer>): Promise<Answer> =>
  until(
    'an answer that is not "try again"',
    async () => {
      const answer = await send();
      return !isTemporary(answer) && answer;
    },
    60,
  );
