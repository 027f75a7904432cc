import { argon2Sync, randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import { Agent, request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { loadSettings, writeProblems } from '../../src/config/load.ts';
import type { Settings, SettingsInput } from '../../src/config/schema.ts';
import { type Gateway, openGateway } from '../../src/gateway/gateway.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Certified, issue, issueServer, makeCa } from './pki.ts';

/**
 * A whole gatehouse for tests: real TLS, real certificates, the embedded store, a real upstream, in this process,
 * on free ports, with a clock that can be moved. Everything is removed again by `close`.
 */
export interface House {
  readonly folder: string;
  readonly ca: Certified;
  readonly port: number;
  readonly adminPort: number;
  readonly gateway: Gateway;
  readonly people: Readonly<Record<'alice' | 'bob', Certified>>;
  /** Parsed log lines, oldest first. */
  readonly log: readonly LogLine[];
  /** The same, as they were written. */
  readonly lines: readonly string[];
  readonly upstream: Upstream;
  clock: { advance(seconds: number): void; now(): number };
  ask(asked: Ask): Promise<Reply>;
  /** POST with a JSON body below /authsvc. */
  post(path: string, body: unknown, more?: Omit<Ask, 'path' | 'method' | 'body'>): Promise<Reply>;
  /** A grant for a person by certificate; fails the test when it is refused. */
  grant(more?: {
    readonly who?: 'alice' | 'bob';
    readonly clientId?: string;
    readonly scope?: string;
  }): Promise<TokenGrant>;
  refresh(token: string, more?: Record<string, unknown>): Promise<Reply>;
  /** A call to the API behind the gateway. */
  api(path: string, token?: string, more?: Partial<Ask>): Promise<Reply>;
  /** Changes the settings as a reload would. */
  reload(change: (settings: SettingsInput) => SettingsInput): Promise<void>;
  audits(event: string): LogLine[];
  /** Empties both logs, for tests that write millions of lines. */
  forgetLog(): void;
  /** Closes the gateway and opens it again on the same folder, perhaps with something done in between. */
  restart(meanwhile?: () => void | Promise<void>): Promise<void>;
  close(): Promise<void>;
}

export type LogLine = Readonly<Record<string, unknown>> & {
  readonly event: string;
  readonly audit?: boolean;
};

export interface TokenGrant {
  readonly access_token: string;
  readonly refresh_token: string;
  readonly expires_in: number;
  readonly expires: number;
  readonly token_type: string;
  readonly scope: string;
  readonly refresh_until: number;
  readonly identity?: string;
}

export interface Ask {
  readonly path: string;
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string | string[]>>;
  readonly body?: string | Buffer;
  /** The client certificate to present. */
  readonly as?: Certified;
  readonly agent?: Agent;
  /** Another gateway with the same certificates. */
  readonly port?: number;
}

export interface Reply {
  readonly status: number;
  readonly reason: string;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  readonly json: Record<string, unknown>;
}

export interface Upstream {
  readonly port: number;
  readonly calls: { readonly method: string; readonly url: string; readonly headers: IncomingHttpHeaders }[];
}

export const ALICE = 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}';
export const BOB = 'local:{9b1d3c8e-2f4a-4c7b-8d6e-1a2b3c4d5e6f}';
export const PASSWORD = 'correct horse battery staple';

/** Cheap parameters: tests sign in often, and the strength of the hash is not what they test. */
export function testPasswordHash(password: string): string {
  const nonce = randomBytes(16);
  const tag = argon2Sync('argon2id', {
    message: password,
    nonce,
    parallelism: 1,
    tagLength: 32,
    memory: 8_192,
    passes: 1,
  });
  const plain = (bytes: Buffer): string => bytes.toString('base64').replace(/=+$/, '');
  return `$argon2id$v=19$m=8192,t=1,p=1$${plain(nonce)}$${plain(tag)}`;
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
        revoke: 'off',
        verify: 'off',
        page: 'off',
        codeGuesses: 'off',
        allCodeGuesses: 'off',
      },
    },
    shutdown: { preStop: '0s', drain: '5s' },
    log: { level: 'debug' },
  };
}

/** `GATEHOUSE_TEST_LANE=off`: everything that a test does not send by one lane in particular takes the full one. */
const withLane = (settings: SettingsInput): SettingsInput =>
  process.env['GATEHOUSE_TEST_LANE'] === 'off'
    ? { ...settings, listen: { fastLane: false, ...settings.listen } }
    : settings;

export type Change = (settings: SettingsInput) => SettingsInput;

export async function openHouse(
  change: Change = (settings) => settings,
  /** Puts further files into its folder, before it opens. */
  prepare: (folder: string) => void = () => {},
): Promise<House> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-house-'));
  // Certificates outlast every grant: tests move the clock past `refresh_until`.
  const notAfter = new Date(Date.now() + 10 * 365 * 86_400_000);
  const ca = await makeCa({ notAfter });
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
  writeFileSync(join(folder, 'ca.pem'), ca.pem);
  writeFileSync(join(folder, 'server.pem'), server.pem);
  writeFileSync(join(folder, 'server-key.pem'), server.keyPem, { mode: 0o600 });

  prepare(folder);
  const upstream = await openUpstream();
  let given = withLane(change(baseSettings(upstream.port)));
  let offset = 0;
  const now = (): number => Date.now() / 1_000 + offset;
  const log: LogLine[] = [];
  const lines: string[] = [];
  const logger = createLogger({
    level: 'debug',
    format: 'json',
    write: (line) => {
      lines.push(line);
      log.push(JSON.parse(line) as LogLine);
    },
  });
  const open = (): Promise<Gateway> => openGateway({ settings: settingsIn(folder, given), log: logger, now });
  let gateway = await open().catch(async (error: unknown) => {
    await upstream.close();
    rmSync(folder, { recursive: true, force: true });
    throw error;
  });
  const agents = new Map<Certified | undefined, Agent>();
  const agentOf = (as: Certified | undefined): Agent => {
    const agent =
      agents.get(as) ??
      new Agent({ keepAlive: true, ca: ca.pem, ...(as !== undefined && { cert: as.pem, key: as.keyPem }) });
    agents.set(as, agent);
    return agent;
  };

  const ask = ({
    path,
    method = 'GET',
    headers = {},
    body,
    as,
    agent = agentOf(as),
    port = gateway.port,
  }: Ask): Promise<Reply> =>
    new Promise((resolve, reject) => {
      const sent = httpsRequest(
        {
          host: '127.0.0.1',
          servername: 'localhost',
          port,
          path,
          method,
          agent,
          headers: { host: `localhost:${port}`, ...headers },
        },
        (response) => {
          const parts: Buffer[] = [];
          response.on('data', (part: Buffer) => parts.push(part));
          response.on('error', reject);
          response.on('end', () => {
            const text = Buffer.concat(parts).toString();
            resolve({
              status: response.statusCode ?? 0,
              reason: response.statusMessage ?? '',
              headers: response.headers,
              text,
              json: readJson(text),
            });
          });
        },
      );
      sent.on('error', reject);
      sent.end(body);
    });
  const post: House['post'] = (path, body, more = {}) =>
    ask({
      path: `/authsvc${path}`,
      method: 'POST',
      body: JSON.stringify(body),
      ...more,
      headers: { 'content-type': 'application/json', ...more.headers },
    });

  return {
    folder,
    ca,
    get port() {
      return gateway.port;
    },
    get adminPort() {
      return gateway.adminPort ?? 0;
    },
    get gateway() {
      return gateway;
    },
    people: { alice, bob },
    log,
    lines,
    upstream,
    clock: { advance: (seconds) => void (offset += seconds), now },
    ask,
    post,
    async grant({ who = 'alice', clientId = 'report-runner', scope = 'files:read' } = {}) {
      const reply = await post(
        '/Authorize/Certificate',
        { client_id: clientId, scope },
        { as: who === 'alice' ? alice : bob },
      );
      if (reply.status !== 200) throw new Error(`no grant: ${reply.status} ${reply.text}`);
      return reply.json as unknown as TokenGrant;
    },
    refresh: (token, more = {}) =>
      post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token, ...more }),
    api: (path, token, more = {}) =>
      ask({
        path,
        ...more,
        headers: { ...(token !== undefined && { authorization: `Bearer ${token}` }), ...more.headers },
      }),
    async reload(next) {
      const wanted = next(given);
      await gateway.reload(settingsIn(folder, wanted));
      given = wanted;
    },
    forgetLog() {
      log.length = 0;
      lines.length = 0;
    },
    audits: (event) => log.filter((line) => line.audit === true && line.event === event),
    async restart(meanwhile) {
      for (const agent of agents.values()) agent.destroy();
      agents.clear();
      await gateway.close();
      await meanwhile?.();
      gateway = await open();
    },
    async close() {
      for (const agent of agents.values()) agent.destroy();
      await gateway.close();
      await upstream.close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** The settings as `serve` reads them: through a file. */
export function settingsIn(folder: string, given: SettingsInput): Settings {
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(file, stringify(given));
  const loaded = loadSettings({ file, env: {} });
  if (!loaded.ok) throw new Error(writeProblems(loaded));
  return loaded.settings;
}

const readJson = (text: string): Record<string, unknown> => {
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    return {};
  }
};

/** An API that tells what it was asked. */
async function openUpstream(): Promise<Upstream & { close(): Promise<void> }> {
  const calls: Upstream['calls'] = [];
  const server: Server = createServer((request, response) => {
    const { method = '', url = '', headers } = request;
    calls.push({ method, url, headers });
    request.resume().on('end', () => {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ method, url, headers }));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    calls,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
