import { type AccessRule, type Demand, parsePattern } from '../../src/domain/access-rule.ts';
import type { Bearer } from '../../src/domain/bearer.ts';
import type { Integration } from '../../src/domain/integration.ts';
import { parseScope, type Scope } from '../../src/domain/scope.ts';
import type { CallNote } from '../../src/http/call.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { createFastLane, type FastLane } from '../../src/proxy/fast/lane.ts';
import { createProxy, type ProxyDeps } from '../../src/proxy/proxy.ts';
import type { UpstreamSettings } from '../../src/proxy/upstream-settings.ts';
import { FULL_PATH } from './house.ts';
import { testListener } from './listener.ts';
import { type Certified, issueServer, makeCa } from './pki.ts';

export function scope(text: string): Scope {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(`not a scope: ${text}`);
  return parsed.value;
}

type RuleOptions = Partial<Omit<AccessRule, 'pattern' | 'demand' | 'methods' | 'clients'>> & {
  readonly methods?: readonly string[];
  readonly clients?: readonly string[];
};

/** `rule('/files/**', 'files:read')`; `public` and `any-token` are what they say. */
export function rule(path: string, asks: string, options: RuleOptions = {}): AccessRule {
  const parsed = parsePattern(path);
  if (!parsed.ok) throw new Error(parsed.problem);
  const demand: Demand =
    asks === 'public' || asks === 'any-token' ? { kind: asks } : { kind: 'scope', scope: scope(asks) };
  const { methods, clients, ...rest } = options;
  return {
    name: path,
    pattern: parsed.segments,
    demand,
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

export const bearer = (options: Partial<Bearer> = {}): Bearer => ({
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
  /** What the log line of each request would hold. */
  readonly notes: CallNote[];
  readonly log: string[];
  /** Undefined where everything takes the full path. */
  readonly lane: FastLane | undefined;
  /** Issued the server's certificate, and those of clients that are asked for; unused without `tls`. */
  readonly ca: Certified;
  close(): Promise<void>;
}

export interface HarnessOptions extends Partial<Omit<ProxyDeps, 'upstreams'>> {
  readonly upstream: string | readonly string[];
  readonly upstreamSettings?: Partial<UpstreamSettings>;
  /** Upstreams beside `default`. */
  readonly more?: Readonly<Record<string, UpstreamSettings>>;
  /** Access tokens and what they say. */
  readonly tokens?: Readonly<Record<string, Bearer>>;
  /** What reads connections first; by default as `GATEHOUSE_TEST_PATH` says. */
  readonly firstLane?: 'fast' | 'full';
  /** TLS with a certificate of the harness's `ca`, which asks for client certificates. */
  readonly tls?: boolean;
  /** HTTP/2 beside HTTP/1.1, with `tls`. */
  readonly http2?: boolean;
}

export const RULES: readonly AccessRule[] = [
  rule('/public/**', 'public'),
  rule('/files/**', 'files:read'),
  rule('/admin/**', 'admin:manage'),
];

/** The proxy behind the gateway's own listener; token reading and revocations from a table. */
export async function proxyHarness(options: HarnessOptions): Promise<ProxyHarness> {
  const { upstream, upstreamSettings, more, tokens = { A: bearer() }, ...rest } = options;
  const { firstLane = FULL_PATH ? 'full' : 'fast', tls = false, http2 = false, ...deps } = rest;
  const { now = () => NOW, trusts = () => false } = deps;
  const notes: CallNote[] = [];
  const log: string[] = [];
  const logger = createLogger({ level: 'debug', format: 'json', write: (line) => log.push(line) });
  const trustedProxies = { some: true, includes: trusts };
  const limits = { headers: 16_384, headerTimeout: 60, connections: 10_000 };
  const ca = await makeCa();
  const server = await issueServer(ca);
  const listener = await testListener({
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
    trustedProxies,
    onCall(call) {
      notes.push(call.notes);
      void proxy.handle(call);
    },
    ...(firstLane === 'fast' && { firstReader: { take: (connection) => fastLane.take(connection) } }),
    log: logger,
    now,
  });
  const integrations = new Map([
    ['report-runner', integration('report-runner', 'files:read,write;reports:read')],
  ]);
  const proxy = createProxy({
    rules: RULES,
    upstreams: {
      default: {
        targets: typeof upstream === 'string' ? [upstream] : upstream,
        timeouts: { connect: 1, headers: 5, idle: 5 },
        connections: 8,
        ...upstreamSettings,
      },
      ...more,
    },
    publicUrl: `http://127.0.0.1:${listener.port}`,
    realm: 'gatehouse',
    headers: {
      user: 'X-Forwarded-User',
      clientId: 'X-Forwarded-Client-Id',
      scope: 'X-Forwarded-Scope',
      cookie: '__Host-gatehouse',
    },
    maxBodyBytes: 1_048_576,
    trusts,
    now,
    log: logger,
    readAccess: (token) => tokens[token],
    revocations: { isRevoked: () => false },
    integrationOf: (clientId) => integrations.get(clientId),
    ...deps,
  });
  const fastLane = createFastLane({
    limits,
    current: () => ({ ...proxy.fast, trustedProxies, looksOurs: () => false, enter() {}, leave() {} }),
    onBegin: (call) => void notes.push(call.notes),
    onDone() {},
    log: logger,
    now,
  });
  return {
    port: listener.port,
    notes,
    log,
    lane: firstLane === 'fast' ? fastLane : undefined,
    ca,
    async close() {
      await listener.close();
      await proxy.close(1);
    },
  };
}
