import { hash } from 'node:crypto';
import type { Socket } from 'node:net';
import { type AccessRule, parsePattern, type Requirement } from '../../src/domain/access-rule.ts';
import type { VerifiedToken } from '../../src/domain/grant.ts';
import type { Integration } from '../../src/domain/integration.ts';
import { parseScope, type Scope } from '../../src/domain/scope.ts';
import type { RequestNotes } from '../../src/http/request-context.ts';
import { openPublicListener } from '../../src/listener/listener.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { ClientRequest, type RequestEnvironment } from '../../src/proxy/client-request.ts';
import type { RequestConfig } from '../../src/proxy/config.ts';
import { LiveStreams } from '../../src/proxy/policy/live-streams.ts';
import { type ProxyDeps, ReverseProxy } from '../../src/proxy/proxy.ts';
import { UpstreamRegistry } from '../../src/proxy/upstream/registry.ts';
import type { UpstreamSettings } from '../../src/proxy/upstream/targets.ts';
import { createCa, type IssuedCertificate, issueServer } from './pki.ts';

export function scope(text: string): Scope {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(`not a scope: ${text}`);
  return parsed.value;
}

type RuleOptions = Partial<Omit<AccessRule, 'pattern' | 'requirement' | 'methods' | 'clients'>> & {
  readonly methods?: readonly string[];
  readonly clients?: readonly string[];
};

/** `rule('/files/**', 'files:read')`; `requires` is a scope, `public` or `any-token`. */
export function rule(path: string, requires: string, options: RuleOptions = {}): AccessRule {
  const parsed = parsePattern(path);
  if (!parsed.ok) throw new Error(parsed.problem);
  const requirement: Requirement =
    requires === 'public' || requires === 'any-token' ? { kind: requires } : { kind: 'scope', scope: scope(requires) };
  const { methods, clients, ...rest } = options;
  return {
    name: path,
    pattern: parsed.segments,
    requirement,
    upstream: 'default',
    encodedSlash: false,
    forwardAuthorization: false,
    ...rest,
    ...(methods && { methods: new Set(methods) }),
    ...(clients && { clients: new Set(clients) }),
  };
}

export const integration = (clientId: string, allowed: string): Integration => ({
  clientId,
  name: clientId,
  scope: scope(allowed),
  grants: new Set(['certificate', 'device']),
  access: [],
  accessLifetime: 3_600,
  grantLifetime: 7_776_000,
  bindToCertificate: false,
});

export const NOW = 1_900_000_000;

export const bearer = (options: Partial<VerifiedToken> = {}): VerifiedToken => ({
  grantId: 'grant-1',
  generation: 1,
  clientId: 'report-runner',
  identity: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
  scope: scope('files:read'),
  issuedAt: NOW - 60,
  expires: NOW + 3_600,
  keyId: 'k1',
  ...options,
});

export interface ProxyHarness {
  readonly port: number;
  /** The notes for the access log of each request. */
  readonly notes: RequestNotes[];
  readonly log: string[];
  /** Issuer of the server certificate and of client certificates; unused without `tls`. */
  readonly ca: IssuedCertificate;
  /** The server side of HTTP/2 connections. */
  readonly http2Sockets: ReadonlySet<Socket>;
  /** Requests that have not ended. */
  activeRequests(): number;
  /** Shuts the listener down. Returns whether all connections ended in time. */
  drain(seconds: number): Promise<boolean>;
  close(): Promise<void>;
}

export type TestUpstreamSettings = Partial<Omit<UpstreamSettings, 'timeouts'>> & {
  readonly timeouts?: Partial<UpstreamSettings['timeouts']>;
};

/** With the defaults of the configuration for what is omitted. */
const createUpstreamSettings = ({ timeouts, ...settings }: TestUpstreamSettings): UpstreamSettings => ({
  targets: [],
  protocol: 'http1',
  timeouts: { connect: 1, headers: 5, idle: 5, events: 3_600, body: 3_600, websocket: 300, ...timeouts },
  bodyBuffer: 65_536,
  connections: 8,
  maxPending: 512,
  websockets: 1_000,
  eventStreams: 1_000,
  ejection: { failures: 3 },
  rewriteLocation: true,
  paths: { letterCase: 'unknown', trailingSlash: 'unknown' },
  ...settings,
});

export interface HarnessOptions extends Partial<Omit<ProxyDeps, 'upstreams'>> {
  readonly upstream: string | readonly string[];
  readonly upstreamSettings?: TestUpstreamSettings;
  /** Additional upstreams. */
  readonly extraUpstreams?: Readonly<Record<string, TestUpstreamSettings>>;
  /** Access tokens and their contents. */
  readonly tokens?: Readonly<Record<string, VerifiedToken>>;
  /** Serve TLS with a certificate issued by `ca`, and request client certificates. */
  readonly tls?: boolean;
  /** Offer HTTP/2 in addition to HTTP/1.1; needs `tls`. */
  readonly http2?: boolean;
  /** Serves requests below /authsvc/. */
  readonly serve?: RequestConfig['serve'];
}

export const RULES: readonly AccessRule[] = [
  rule('/public/**', 'public'),
  rule('/files/**', 'files:read'),
  rule('/admin/**', 'admin:manage'),
];

/** The proxy behind the gateway's real listener, with tokens and revocations from a table. */
export async function startProxyHarness(options: HarnessOptions): Promise<ProxyHarness> {
  const { upstream, upstreamSettings, extraUpstreams = {}, tokens = { A: bearer() }, ...rest } = options;
  const { tls = false, http2 = false, serve, ...deps } = rest;
  const { now = () => NOW, isTrustedPeer = () => false } = deps;
  const notes: RequestNotes[] = [];
  const http2Sockets = new Set<Socket>();
  let activeRequests = 0;
  const log: string[] = [];
  const logger = createLogger({ level: 'debug', format: 'json', write: (line) => log.push(line) });
  const trustedProxies = { hasEntries: true, includes: isTrustedPeer };
  const limits = { headers: 16_384, headerTimeout: 60, connections: 10_000 };
  const ca = await createCa();
  const server = await issueServer(ca);
  const environment: RequestEnvironment = {
    maxTargetLength: 8_192,
    getConfig: () => ({
      ...proxy.config,
      trustedProxies,
      isServiceTarget: (target) => serve !== undefined && target.startsWith('/authsvc/'),
      isForwardAuth: () => false,
      serve: serve ?? (() => undefined),
      retain: () => void (activeRequests += 1),
      release: () => void (activeRequests -= 1),
    }),
    onRequestStart: (request) => void notes.push(request.notes),
    onRequestEnd() {},
    log: logger,
    now,
  };
  const listener = await openPublicListener({
    host: '127.0.0.1',
    port: 0,
    limits,
    ...(tls && {
      tls: {
        certificate: server.pem,
        key: server.keyPem,
        minVersion: 'TLSv1.2',
        issuers: [ca.pem],
        askCertificate: 'always',
        http2,
      },
    }),
    proxyProtocol: { hasEntries: false, includes: () => false },
    createHandler(connection, downstream) {
      if (downstream.maxStatus === 599) http2Sockets.add(connection.socket);
      return new ClientRequest(environment, connection, downstream);
    },
    log: logger,
    now,
  });
  const integrations = new Map([['report-runner', integration('report-runner', 'files:read,write;reports:read')]]);
  const revocations = { isRevoked: () => false };
  const resources = new AsyncDisposableStack();
  const proxy = new ReverseProxy({
    rules: RULES,
    upstreams: {
      default: createUpstreamSettings({
        targets: typeof upstream === 'string' ? [upstream] : [...upstream],
        ...upstreamSettings,
      }),
      ...Object.fromEntries(
        Object.entries(extraUpstreams).map(([name, settings]) => [name, createUpstreamSettings(settings)]),
      ),
    },
    registry: new UpstreamRegistry(logger),
    scope: { resources, onActivate: (task) => task() },
    publicUrl: `http://127.0.0.1:${listener.port}`,
    headers: {
      user: 'X-Forwarded-User',
      clientId: 'X-Forwarded-Client-Id',
      scope: 'X-Forwarded-Scope',
      cookie: '__Host-gatehouse',
    },
    maxBodyBytes: 1_048_576,
    isTrustedPeer,
    now,
    log: logger,
    readAccessToken: (token) => tokens[token],
    revocations,
    streams: new LiveStreams({ revocations: deps.revocations ?? revocations, now, log: logger }),
    endStreams: 'upgrades-and-events',
    quotas: undefined,
    renderRootPage: undefined,
    // The certificate of the TLS connection, without validation.
    getCertificate(context) {
      const der = context.certificate();
      return der && { der, fingerprint: hash('sha256', der, 'base64url'), accepted: true };
    },
    isCertificateAmbiguous: () => false,
    getIntegration: (clientId) => integrations.get(clientId),
    ...deps,
  });
  return {
    port: listener.port,
    notes,
    log,
    ca,
    http2Sockets,
    activeRequests: () => activeRequests,
    drain: (seconds) => listener.drain(seconds),
    async close() {
      await listener.close();
      await resources.disposeAsync();
    },
  };
}
