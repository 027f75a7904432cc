import { argon2Sync, randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type RequestListener } from 'node:http';
import type { Agent } from 'node:https';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { loadSettings, writeProblems } from '../../src/config/load.ts';
import type { Settings, SettingsInput } from '../../src/config/schema.ts';
import { type Gateway, openGateway } from '../../src/gateway/gateway.ts';
import { createLogger } from '../../src/observability/logger.ts';
import type { Reply, TokenGrant } from './https-client.ts';
import * as https from './https-client.ts';
import { type Certified, issue, issueServer, makeCa } from './pki.ts';
import { tcpServer } from './tcp-server.ts';
import { tempFolder } from './temp-folder.ts';

export type { Reply, TokenGrant } from './https-client.ts';

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

export interface Ask extends https.Ask {
  /** The client certificate to present. */
  readonly as?: Certified;
  readonly agent?: Agent;
  /** Another gateway with the same certificates. */
  readonly port?: number;
}

export interface Upstream {
  readonly port: number;
  readonly calls: { readonly method: string; readonly url: string; readonly headers: IncomingHttpHeaders }[];
  close(): Promise<void>;
}

export const ALICE = 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}';
export const BOB = 'local:{9b1d3c8e-2f4a-4c7b-8d6e-1a2b3c4d5e6f}';
export const PASSWORD = 'correct horse battery staple';

/** For Redis commands. In production they have 250 ms, in which Redis may not get a CPU on a busy machine. */
export const PATIENT_MS = 10_000;

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
        networkCodeGuesses: 'off',
        allCodeGuesses: 'off',
        identityCodeGuesses: 'off',
      },
    },
    shutdown: { preStop: '0s', drain: '5s' },
    log: { level: 'debug' },
  };
}

/** `GATEHOUSE_TEST_PATH=full`: requests take the full path unless a test chooses one. */
export const FULL_PATH = process.env['GATEHOUSE_TEST_PATH'] === 'full';
const onTestPath = (settings: SettingsInput): SettingsInput =>
  FULL_PATH ? { ...settings, listen: { fastLane: false, ...settings.listen } } : settings;

export type Change = (settings: SettingsInput) => SettingsInput;

export async function openHouse(
  change: Change = (settings) => settings,
  /** Puts further files into its folder, before it opens. */
  prepare: (folder: string) => void = () => {},
  commandTimeout?: number,
): Promise<House> {
  const place = tempFolder('house');
  const folder = place.path;
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
  place.write('ca.pem', ca.pem);
  place.write('server.pem', server.pem);
  place.write('server-key.pem', server.keyPem);
  prepare(folder);
  const upstream = await openUpstream();
  let given = onTestPath(change(baseSettings(upstream.port)));
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
  const open = async (): Promise<Gateway> =>
    openGateway({ settings: settingsIn(folder, given), log: logger, now, commandTimeout });
  let gateway = await open().catch(async (error: unknown) => {
    await upstream.close();
    place.remove();
    throw error;
  });
  const clients = new Map<Certified | undefined, https.HttpsClient>();
  const agentOf = (as: Certified | undefined): Agent => {
    const client = clients.get(as) ?? https.httpsClient({ port: 0, ca: ca.pem, as, connections: Infinity });
    clients.set(as, client);
    return client.agent;
  };
  const disconnect = (): void => {
    for (const client of clients.values()) client.close();
    clients.clear();
  };
  const ask = ({ as, agent = agentOf(as), port = gateway.port, ...asked }: Ask): Promise<Reply> =>
    https.exchange({ port, agent, ...asked });
  const post: House['post'] = (path, body, more = {}) => {
    const asked = https.jsonPost(path, body);
    return ask({ ...asked, ...more, headers: { ...asked.headers, ...more.headers } });
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
    grant: ({ who = 'alice', ...more } = {}) =>
      https.grantedBy((path, body) => post(path, body, { as: who === 'alice' ? alice : bob }), more),
    refresh: (token, more) => https.refreshBy(post, token, more),
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
      disconnect();
      await gateway.close();
      await meanwhile?.();
      gateway = await open();
    },
    async close() {
      disconnect();
      await gateway.close();
      await upstream.close();
      place.remove();
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

/** An API that returns what it was asked. */
export async function openUpstream(listener?: RequestListener): Promise<Upstream> {
  const calls: Upstream['calls'] = [];
  const describe: RequestListener = (request, response) => {
    const { method = '', url = '', headers } = request;
    calls.push({ method, url, headers });
    request.resume().on('end', () => {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify({ method, url, headers }));
    });
  };
  const { port, close } = await tcpServer(createServer(listener ?? describe));
  return { port, calls, close };
}
