import { argon2Sync, randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type RequestListener } from 'node:http';
import type { Agent } from 'node:https';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { formatProblems, loadSettings } from '../../src/config/load.ts';
import type { Settings, SettingsInput } from '../../src/config/schema.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import type { Reply, TokenGrant } from './https-client.ts';
import * as https from './https-client.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from './pki.ts';
import { listenTcp } from './tcp-server.ts';
import { tempFolder } from './temp-folder.ts';

export type { Reply, TokenGrant } from './https-client.ts';

/**
 * A complete in-process gatehouse with real TLS, real certificates, the embedded store and a real upstream, on free ports,
 * with an adjustable clock. `close` removes everything.
 */
export interface TestGateway {
  readonly folder: string;
  readonly ca: IssuedCertificate;
  readonly port: number;
  readonly adminPort: number;
  readonly server: Gateway;
  readonly users: Readonly<Record<'alice' | 'bob', IssuedCertificate>>;
  /** Parsed log lines, oldest first. */
  readonly log: readonly LogLine[];
  /** The unparsed log lines. */
  readonly logLines: readonly string[];
  readonly upstream: Upstream;
  clock: { advance(seconds: number): void; now(): number };
  request(testRequest: TestRequest): Promise<Reply>;
  /** POST with a JSON body to a path under /authsvc. */
  post(path: string, body: unknown, more?: Omit<TestRequest, 'path' | 'method' | 'body'>): Promise<Reply>;
  /** Requests a certificate grant for a user; throws if it is rejected. */
  grant(more?: {
    readonly user?: 'alice' | 'bob';
    readonly clientId?: string;
    readonly scope?: string;
  }): Promise<TokenGrant>;
  refresh(token: string, more?: Record<string, unknown>): Promise<Reply>;
  /** Calls the API behind the gateway. */
  api(path: string, token?: string, more?: Partial<TestRequest>): Promise<Reply>;
  /** Changes the settings and reloads. */
  reload(change: (settings: SettingsInput) => SettingsInput): Promise<void>;
  auditEvents(event: string): LogLine[];
  /** Clears `log` and `logLines`, for tests that write millions of lines. */
  clearLog(): void;
  /** Closes the gateway, runs `meanwhile`, and opens the gateway again on the same folder. */
  restart(meanwhile?: () => void | Promise<void>): Promise<void>;
  close(): Promise<void>;
}

export type LogLine = Readonly<Record<string, unknown>> & {
  readonly event: string;
  readonly audit?: boolean;
};

export interface TestRequest extends https.ClientRequestInit {
  /** The client certificate to present. */
  readonly as?: IssuedCertificate;
  readonly agent?: Agent;
  /** Another gateway with the same certificates. */
  readonly port?: number;
}

export interface Upstream {
  readonly port: number;
  readonly requests: {
    readonly method: string;
    readonly url: string;
    readonly headers: IncomingHttpHeaders;
  }[];
  close(): Promise<void>;
}

export const ALICE = 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}';
export const BOB = 'local:{9b1d3c8e-2f4a-4c7b-8d6e-1a2b3c4d5e6f}';
export const PASSWORD = 'correct horse battery staple';

/** Timeout of Redis commands. The default of one second is too short if Redis gets no CPU on a busy machine. */
export const REDIS_TIMEOUT_MS = 10_000;

const passwordHashes = new Map<string, string>();

/** Cheap parameters: tests sign in often and don't test the strength of the hash. */
export function testPasswordHash(password: string): string {
  const known = passwordHashes.get(password);
  if (known !== undefined) return known;
  const nonce = randomBytes(16);
  const tag = argon2Sync('argon2id', {
    message: password,
    nonce,
    parallelism: 1,
    tagLength: 32,
    memory: 8_192,
    passes: 1,
  });
  const unpadded = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '');
  const created = `$argon2id$v=19$m=8192,t=1,p=1$${unpadded(nonce)}$${unpadded(tag)}`;
  passwordHashes.set(password, created);
  return created;
}

export function baseSettings(upstreamPort: number): SettingsInput {
  return {
    publicUrl: 'https://localhost:8443',
    listen: { port: 0, tls: { certificate: 'server.pem', key: 'server-key.pem' } },
    admin: { port: 0 },
    certificates: { issuers: ['ca.pem'], directory: 'staff' },
    directories: {
      staff: {
        label: 'local',
        users: [
          {
            id: '{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
            name: 'alice',
            displayName: 'Alice Example',
            commonName: 'alice',
            email: 'alice@example.test',
            userPrincipalName: 'alice@corp.example.test',
            groups: ['operators'],
            passwordHash: testPasswordHash(PASSWORD),
          },
          {
            id: '{9b1d3c8e-2f4a-4c7b-8d6e-1a2b3c4d5e6f}',
            name: 'bob',
            displayName: 'Bob Example',
            commonName: 'bob',
            email: 'bob@example.test',
            groups: ['readers'],
            passwordHash: testPasswordHash(PASSWORD),
          },
        ],
      },
    },
    integrations: [
      {
        clientId: 'report-runner',
        name: 'Report runner',
        scope: 'reports:read,write;files:read',
        access: [{ groups: ['operators'] }, { groups: ['readers'], scope: 'files:read' }],
      },
      { clientId: 'other-app', scope: 'files:read', access: [{ groups: ['operators'] }] },
    ],
    upstreams: { default: { url: `http://127.0.0.1:${upstreamPort}` } },
    routes: [
      { path: '/health', public: true },
      { path: '/files/**', methods: ['GET', 'HEAD'], requires: 'files:read' },
      { path: '/reports/**', requires: 'reports:write' },
      { path: '/whoami', requires: 'any-token' },
      { path: '/other/**', requires: 'files:read', clients: ['other-app'] },
    ],
    limits: {
      rates: {
        token: 'off',
        certificate: 'off',
        device: 'off',
        page: 'off',
        codeGuesses: 'off',
        networkCodeGuesses: 'off',
        allCodeGuesses: 'off',
        clientGuesses: 'off',
        allClientGuesses: 'off',
        tokenGuesses: 'off',
      },
    },
    shutdown: { preStop: '0s', drain: '5s' },
    log: { level: 'debug' },
  };
}

export type SettingsChange = (settings: SettingsInput) => SettingsInput;

export async function startGateway(
  change: SettingsChange = (settings) => settings,
  /** Writes additional files to its folder before it opens. */
  prepare: (folder: string) => void = () => {},
  commandTimeout?: number,
): Promise<TestGateway> {
  const tempDir = tempFolder('gateway');
  const folder = tempDir.path;
  // Certificates must outlive every grant: tests advance the clock past `refresh_until`.
  const notAfter = new Date(Date.now() + 10 * 365 * 86_400_000);
  const ca = await createCa({ notAfter });
  const [server, alice, bob] = await Promise.all([
    issueServer(ca, { notAfter }),
    issue(ca, {
      notAfter,
      commonName: 'alice',
      emails: ['alice@example.test'],
      userPrincipalNames: ['alice@corp.example.test'],
    }),
    issue(ca, { notAfter, commonName: 'bob', emails: ['bob@example.test'] }),
  ]);
  tempDir.write('ca.pem', ca.pem);
  tempDir.write('server.pem', server.pem);
  tempDir.write('server-key.pem', server.keyPem);
  prepare(folder);
  const upstream = await startUpstream();
  let input = change(baseSettings(upstream.port));
  let offset = 0;
  const now = (): number => Date.now() / 1_000 + offset;
  const log: LogLine[] = [];
  const logLines: string[] = [];
  const logger = createLogger({
    level: 'debug',
    format: 'json',
    write: (line) => {
      logLines.push(line);
      log.push(JSON.parse(line) as LogLine);
    },
  });
  const open = async (): Promise<Gateway> =>
    openGateway({ settings: writeAndLoadSettings(folder, input), log: logger, now, commandTimeout });
  let gateway = await open().catch(async (error: unknown) => {
    await upstream.close();
    tempDir.remove();
    throw error;
  });
  const clients = new Map<IssuedCertificate | undefined, https.HttpsClient>();
  const getAgent = (as: IssuedCertificate | undefined): Agent => {
    const client = clients.get(as) ?? https.createHttpsClient({ port: 0, ca: ca.pem, as, connections: Infinity });
    clients.set(as, client);
    return client.agent;
  };
  const disconnect = (): void => {
    for (const client of clients.values()) client.close();
    clients.clear();
  };
  const request = ({ as, agent = getAgent(as), port = gateway.port, ...testRequest }: TestRequest): Promise<Reply> =>
    https.sendRequest({ port, agent, ...testRequest });
  const post: TestGateway['post'] = (path, body, more = {}) => {
    const testRequest = https.jsonPostInit(path, body);
    return request({ ...testRequest, ...more, headers: { ...testRequest.headers, ...more.headers } });
  };

  return {
    folder,
    ca,
    get port() {
      return gateway.port;
    },
    get adminPort() {
      return gateway.adminPort ?? 0;
    },
    get server() {
      return gateway;
    },
    users: { alice, bob },
    log,
    logLines,
    upstream,
    clock: { advance: (seconds) => void (offset += seconds), now },
    request,
    post,
    grant: ({ user = 'alice', ...more } = {}) =>
      https.requestGrant((path, body) => post(path, body, { as: user === 'alice' ? alice : bob }), more),
    refresh: (token, more) => https.requestRefresh(post, token, more),
    api: (path, token, more = {}) =>
      request({
        path,
        ...more,
        headers: { ...(token !== undefined && { authorization: `Bearer ${token}` }), ...more.headers },
      }),
    async reload(next) {
      const changed = next(input);
      await gateway.reload(writeAndLoadSettings(folder, changed));
      input = changed;
    },
    clearLog() {
      log.length = 0;
      logLines.length = 0;
    },
    auditEvents: (event) => log.filter((line) => line.audit === true && line.event === event),
    async restart(meanwhile) {
      disconnect();
      await gateway.close();
      await meanwhile?.();
      gateway = await open();
    },
    async close() {
      disconnect();
      await gateway.close();
      await upstream.close();
      tempDir.remove();
    },
  };
}

/** Loads the settings from a file, as `serve` does. */
export function writeAndLoadSettings(folder: string, input: SettingsInput): Settings {
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(file, stringify(input));
  const loaded = loadSettings({ file, env: {} });
  if (!loaded.ok) throw new Error(formatProblems(loaded));
  return loaded.settings;
}

/** An API that returns the method, URL and headers of the request. */
export async function startUpstream(listener?: RequestListener): Promise<Upstream> {
  const requests: Upstream['requests'] = [];
  const echo: RequestListener = (request, response) => {
    const { method = '', url = '', headers } = request;
    requests.push({ method, url, headers });
    request.resume().on('end', () => {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ method, url, headers }));
    });
  };
  const { port, close } = await listenTcp(createServer(listener ?? echo));
  return { port, requests, close };
}
