import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import { Agent, request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TLSSocket } from 'node:tls';
import { stringify } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { baseSettings, type Change, type LogLine, type Reply, type TokenGrant } from './house.ts';
import { type Certified, issue, issueServer, makeCa } from './pki.ts';

/**
 * The real program in a process of its own, with everything it needs in a folder of its own. For tests about
 * what only whole processes do: signals, workers, being killed, files changing under it.
 */
export interface ServeFolder {
  readonly path: string;
  readonly ca: Certified;
  readonly alice: Certified;
  readonly upstream: { readonly port: number };
  file(name: string): string;
  write(name: string, text: string): void;
  /** Changes `gatehouse.yaml`. */
  configure(change: Change): void;
  /** Ends the upstream and what still runs on this folder, and removes it. */
  remove(): Promise<void>;
}

export interface ServeProcess {
  readonly pid: number;
  readonly port: number;
  readonly adminPort: number;
  /** Of the workers at start; none when one process does everything. */
  readonly workers: readonly number[];
  /** Parsed log lines, oldest first. */
  readonly log: readonly LogLine[];
  /** What it says on standard error. */
  readonly errors: () => string;
  readonly ended: Promise<{ readonly code: number | null; readonly signal: string | null }>;
  signal(signal: NodeJS.Signals): void;
  /** Ends it gently; tells the exit code. */
  stop(): Promise<number | null>;
  /** As a power switch would, as far as the process can tell. */
  kill9(): Promise<void>;
}

const SRC = join(import.meta.dirname, '../../src/main.ts');
const START_SECONDS = 60;

const running = new Map<string, Set<ServeProcess>>();

export async function makeServeFolder(
  change: Change = (settings) => settings,
  answer: RequestListener = (request, response) => {
    request.resume().on('end', () => response.end('ok'));
  },
): Promise<ServeFolder> {
  const path = mkdtempSync(join(tmpdir(), 'gatehouse-serve-'));
  const ca = await makeCa();
  const [server, alice] = await Promise.all([issueServer(ca), issue(ca, { commonName: 'alice' })]);
  const upstream = createServer(answer);
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  let settings: SettingsInput = baseSettings(port);
  const file = (name: string): string => join(path, name);
  const write = (name: string, text: string): void => {
    mkdirSync(join(file(name), '..'), { recursive: true });
    writeFileSync(file(name), text, { mode: 0o600 });
  };
  const configure = (next: Change): void => {
    settings = next(settings);
    write('gatehouse.yaml', stringify(settings));
  };
  write('ca.pem', ca.pem);
  write('server.pem', server.pem);
  write('server-key.pem', server.keyPem);
  configure(change);
  return {
    path,
    ca,
    alice,
    upstream: { port },
    file,
    write,
    configure,
    async remove() {
      await Promise.all([...(running.get(path) ?? [])].map((process) => process.kill9()));
      upstream.closeAllConnections();
      await new Promise((resolve) => upstream.close(resolve));
      rmSync(path, { recursive: true, force: true });
    },
  };
}

export interface StartOptions {
  /** Settings on the command line, such as `listen.workers=2`. */
  readonly set?: readonly string[];
  /** The built program instead of the sources. */
  readonly entry?: string;
  /** A program that starts it, such as `taskset -c 0`. */
  readonly under?: readonly string[];
  readonly nodeOptions?: readonly string[];
  /** Added to its environment. */
  readonly env?: Readonly<Record<string, string>>;
}

/** Starts `gatehouse serve` and waits until it says that it is ready. */
export async function startServe(
  folder: Pick<ServeFolder, 'path'>,
  { set = [], entry = SRC, under = [], nodeOptions = [], env = {} }: StartOptions = {},
): Promise<ServeProcess> {
  const words = [
    ...under,
    process.execPath,
    ...nodeOptions,
    entry,
    'serve',
    '--config',
    join(folder.path, 'gatehouse.yaml'),
    ...set.flatMap((one) => ['--set', one]),
  ];
  const child = spawn(words[0] ?? '', words.slice(1), {
    cwd: folder.path,
    env: { ...cleanEnvironment(), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const log: LogLine[] = [];
  let errors = '';
  child.stderr.on('data', (part: Buffer) => {
    errors += part.toString();
  });
  const ended = new Promise<{ code: number | null; signal: string | null }>((resolve) =>
    child.once('close', (code, signal) => resolve({ code, signal })),
  );
  const ready = Promise.withResolvers<LogLine>();
  createInterface({ input: child.stdout }).on('line', (text) => {
    const line = readLine(text);
    if (line === undefined) return;
    log.push(line);
    if (line.event === 'ready') ready.resolve(line);
  });
  const late = setTimeout(() => {
    child.kill('SIGKILL');
    ready.reject(new Error(`gatehouse was not ready in ${START_SECONDS} s: ${errors}`));
  }, START_SECONDS * 1_000);
  void ended.then(({ code }) => ready.reject(new Error(`gatehouse ended with ${code}: ${errors}`)));
  try {
    return track(folder.path, child, await ready.promise, { log, errors: () => errors, ended });
  } finally {
    clearTimeout(late);
  }
}

function track(
  path: string,
  child: ChildProcess,
  line: LogLine,
  { log, errors, ended }: Pick<ServeProcess, 'log' | 'errors' | 'ended'>,
): ServeProcess {
  const workers = Array.isArray(line['workers']) ? line['workers'].map(Number) : [];
  const started: ServeProcess = {
    pid: Number(line['pid']),
    port: Number(line['port']),
    adminPort: Number(line['adminPort']),
    workers,
    log,
    errors,
    ended,
    signal: (signal) => void child.kill(signal),
    async stop() {
      child.kill('SIGTERM');
      return (await ended).code;
    },
    async kill9() {
      child.kill('SIGKILL');
      await ended;
      // Workers end by themselves when their supervisor is gone.
      await until('the workers are gone', () => workers.every((pid) => !isAlive(pid)));
    },
  };
  const others = running.get(path) ?? new Set();
  running.set(path, others.add(started));
  void ended.then(() => others.delete(started));
  return started;
}

/** Settings come from the folder alone, whatever the caller's shell has set. */
const cleanEnvironment = (): NodeJS.ProcessEnv =>
  Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(GATEHOUSE_|NODE_OPTIONS|VITEST|NODE_ENV)/.test(name)),
  );

const readLine = (text: string): LogLine | undefined => {
  try {
    return JSON.parse(text) as LogLine;
  } catch {
    // The last line of a process that was killed may be cut off.
    return undefined;
  }
};

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Waits for a condition, not for a time; the time only says when to give up. */
export async function until<T>(
  what: string,
  look: () => T | Promise<T>,
  seconds = 30,
): Promise<Exclude<T, false | undefined | null | 0 | ''>> {
  const end = performance.now() + seconds * 1_000;
  for (;;) {
    const found = await look();
    if (found) return found as Exclude<T, false | undefined | null | 0 | ''>;
    if (performance.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** What its probe answers. */
export const readiness = async ({ adminPort }: Pick<ServeProcess, 'adminPort'>): Promise<number> =>
  (await fetch(`http://127.0.0.1:${adminPort}/readyz`)).status;

/** One client with one kept-alive connection, which therefore is always served by the same worker. */
export interface Client {
  ask(asked: {
    readonly path: string;
    readonly method?: string;
    readonly headers?: Readonly<Record<string, string>>;
    readonly body?: string;
  }): Promise<Reply & { readonly connection: TLSSocket }>;
  post(path: string, body: unknown): Promise<Reply>;
  grant(scope?: string): Promise<TokenGrant>;
  refresh(token: string): Promise<Reply>;
  revoke(accessToken: string): Promise<Reply>;
  /** Is this access token accepted by this client's worker? Asked of the proxy, and of Authorize/Verify. */
  accepted(accessToken: string): Promise<boolean>;
  close(): void;
}

export function connect(folder: Pick<ServeFolder, 'ca'>, port: number, as?: Certified): Client {
  const agent = new Agent({
    keepAlive: true,
    maxSockets: 1,
    ca: folder.ca.pem,
    ...(as !== undefined && { cert: as.pem, key: as.keyPem }),
  });
  const ask: Client['ask'] = ({ path, method = 'GET', headers = {}, body }) =>
    new Promise((resolve, reject) => {
      const sent = httpsRequest(
        { host: '127.0.0.1', servername: 'localhost', port, path, method, agent, headers },
        (response) => {
          const connection = response.socket as TLSSocket;
          let text = '';
          response.setEncoding('utf8');
          response.on('data', (part: string) => {
            text += part;
          });
          response.on('error', reject);
          response.on('end', () =>
            resolve({
              status: response.statusCode ?? 0,
              reason: response.statusMessage ?? '',
              headers: response.headers,
              text,
              json: readLine(text) ?? {},
              connection,
            }),
          );
        },
      );
      sent.setTimeout(30_000, () => sent.destroy(new Error('no answer in 30 s')));
      sent.on('error', reject);
      sent.end(body);
    });
  const post: Client['post'] = (path, body) => {
    const text = JSON.stringify(body);
    return ask({
      path: `/authsvc${path}`,
      method: 'POST',
      body: text,
      headers: { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(text)) },
    });
  };
  const bearer = (path: string, token: string) =>
    ask({ path, headers: { authorization: `Bearer ${token}` } });
  return {
    ask,
    post,
    async grant(scope = 'files:read') {
      const ask = (): Promise<Reply> => post('/Authorize/Certificate', { client_id: 'report-runner', scope });
      let reply = await ask();
      // A process that was held up on a busy machine asks to be asked again; whoever is told so does.
      for (let tries = 0; tries < 20 && reply.headers['retry-after'] !== undefined; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve, 500));
        reply = await ask();
      }
      if (reply.status !== 200) throw new Error(`no grant: ${reply.status} ${reply.text}`);
      return reply.json as unknown as TokenGrant;
    },
    refresh: (token) => post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token }),
    revoke: (token) => bearer('/authsvc/Revoke/Token', token),
    async accepted(token) {
      const through = (await bearer('/whoami', token)).status;
      const verified = (await bearer('/authsvc/Authorize/Verify', token)).status;
      if (through !== verified) throw new Error(`the proxy says ${through}, Verify says ${verified}`);
      if (through !== 200 && through !== 401) throw new Error(`neither yes nor no: ${through}`);
      return through === 200;
    },
    close: () => agent.destroy(),
  };
}

export interface PlacedClient extends Client {
  /** Process id of the worker that serves this client. */
  readonly worker: number;
}

/** Opens so many clients and finds out, from the request log, which worker serves each. */
export async function connectMany(
  folder: Pick<ServeFolder, 'ca'>,
  server: Pick<ServeProcess, 'port' | 'log'>,
  count: number,
  as?: Certified,
): Promise<readonly PlacedClient[]> {
  const from = server.log.length;
  return Promise.all(
    Array.from({ length: count }, async () => {
      const client = connect(folder, server.port, as);
      const path = `/which-worker/${crypto.randomUUID()}`;
      await client.ask({ path });
      const line = await until(`a log line for ${path}`, () =>
        server.log.slice(from).find((one) => one['path'] === path),
      );
      return { ...client, worker: Number(line['worker']) };
    }),
  );
}

/** The clients of each worker. */
export const byWorker = <C extends PlacedClient>(clients: readonly C[]): ReadonlyMap<number, readonly C[]> =>
  Map.groupBy(clients, ({ worker }) => worker);
