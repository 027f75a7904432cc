import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createNetServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type AccessRule, type Demand, parsePattern } from '../../src/domain/access-rule.ts';
import type { Bearer } from '../../src/domain/bearer.ts';
import type { Integration } from '../../src/domain/integration.ts';
import { parseScope, type Scope } from '../../src/domain/scope.ts';
import type { Call, CallNote } from '../../src/http/call.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { createFastLane, type FastLane } from '../../src/proxy/fast/lane.ts';
import { createProxy, type ProxyDeps } from '../../src/proxy/proxy.ts';
import type { UpstreamSettings } from '../../src/proxy/upstream-settings.ts';
import { answerFor, isHandshake } from '../../src/tls/handshake-call.ts';
import { openPublicListener } from '../../src/tls/listener.ts';

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
  /** Undefined where everything takes the full lane. */
  readonly lane: FastLane | undefined;
  close(): Promise<void>;
}

export interface HarnessOptions extends Partial<Omit<ProxyDeps, 'upstreams'>> {
  readonly upstream: string | readonly string[];
  readonly upstreamSettings?: Partial<UpstreamSettings>;
  /** Upstreams beside `default`. */
  readonly more?: Readonly<Record<string, UpstreamSettings>>;
  /** Access tokens and what they say. */
  readonly tokens?: Readonly<Record<string, Bearer>>;
  readonly certificate?: () => Buffer | undefined;
  /** What reads connections first; as `GATEHOUSE_TEST_LANE` says when left out. */
  readonly firstLane?: 'fast' | 'full';
  /** Behind the gateway's own listener, without TLS. */
  readonly listener?: boolean;
}

const NOBODY = { some: false, includes: () => false };

export const RULES: readonly AccessRule[] = [
  rule('/public/**', 'public'),
  rule('/files/**', 'files:read'),
  rule('/admin/**', 'admin:manage'),
];

/** The proxy behind a real server, as the listener would call it; token reading and revocations from a table. */
export async function proxyHarness(options: HarnessOptions): Promise<ProxyHarness> {
  const { upstream, upstreamSettings, more, tokens = { A: bearer() }, certificate, ...rest } = options;
  const {
    firstLane = process.env['GATEHOUSE_TEST_LANE'] === 'off' ? 'full' : 'fast',
    listener = false,
    ...deps
  } = rest;
  const notes: CallNote[] = [];
  const log: string[] = [];
  const server = createServer({
    keepAliveTimeout: 60_000,
    requireHostHeader: true,
    shouldUpgradeCallback: isHandshake,
  });
  const sockets = new Set<Socket>();
  const door = createNetServer({ noDelay: true }, (socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket)).on('error', () => socket.destroy());
    const handOver = (): void => void server.emit('connection', socket);
    if (lane === undefined) return handOver();
    lane.take({
      socket,
      peer: socket.remoteAddress ?? '',
      encrypted: false,
      certificate: certificate ?? (() => undefined),
      misdirects: undefined,
      handOver,
    });
  });
  await new Promise<void>((resolve) => {
    door.listen(0, '127.0.0.1', resolve);
  });
  const { port } = door.address() as AddressInfo;
  const integrations = new Map([
    ['report-runner', integration('report-runner', 'files:read,write;reports:read')],
  ]);
  const logger = createLogger({ level: 'debug', format: 'json', write: (line) => log.push(line) });
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
    publicUrl: `http://127.0.0.1:${port}`,
    realm: 'gatehouse',
    headers: {
      user: 'X-Forwarded-User',
      clientId: 'X-Forwarded-Client-Id',
      scope: 'X-Forwarded-Scope',
      cookie: '__Host-gatehouse',
    },
    maxBodyBytes: 1_048_576,
    trusts: () => false,
    now: () => NOW,
    log: logger,
    readAccess: (token) => tokens[token],
    revocations: { isRevoked: () => false },
    integrationOf: (clientId) => integrations.get(clientId),
    ...deps,
  });

  const trusts = deps.trusts ?? (() => false);
  const lane =
    firstLane === 'full'
      ? undefined
      : createFastLane({
          limits: { headers: 16_384, headerTimeout: 60 },
          current: () => ({
            ...proxy.fast,
            trustedProxies: { some: true, includes: trusts },
            looksOurs: () => false,
            enter() {},
            leave() {},
          }),
          onBegin: (call) => void notes.push(call.notes),
          onDone() {},
          log: logger,
          now: deps.now ?? (() => NOW),
        });
  const limits = { headers: 16_384, headerTimeout: 60, connections: 10_000 };
  const opened =
    listener &&
    (await openPublicListener({
      host: '127.0.0.1',
      port: 0,
      limits,
      proxyProtocol: NOBODY,
      trustedProxies: NOBODY,
      onCall: (call) => void proxy.handle(call),
      firstReader: lane,
      log: logger,
      now: deps.now ?? (() => NOW),
    }));
  let count = 0;
  const serve = (request: IncomingMessage, response: ServerResponse, upgrade?: Call['upgrade']): void => {
    count += 1;
    const id = `request-${count}`;
    const gathered: { -readonly [K in keyof CallNote]: CallNote[K] } = {};
    notes.push(gathered);
    const peer = request.socket.remoteAddress ?? '';
    void proxy.handle({
      request,
      response,
      ...(upgrade !== undefined && { upgrade }),
      id,
      arrivedAt: NOW,
      peer,
      clientAddress: peer,
      certificate: certificate ?? (() => undefined),
      notes: gathered,
      note: (fields) => void Object.assign(gathered, fields),
    });
  };
  const plain = (request: IncomingMessage, response: ServerResponse): void => serve(request, response);
  server.on('request', plain).on('checkContinue', plain).on('checkExpectation', plain);
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    serve(request, answerFor(request, request.socket), { socket, head });
  });
  return {
    port: opened ? opened.port : port,
    notes,
    log,
    lane,
    async close() {
      if (opened) await opened.close();
      for (const socket of sockets) socket.destroy();
      const closed = new Promise((resolve) => door.close(resolve));
      await proxy.close(1);
      await closed;
    },
  };
}
