import { type ClientRequest, IncomingMessage } from 'node:http';
import { Agent } from 'node:https';
import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import type { ProxyServer } from 'http-proxy-3';
import type { UpgradedConnection } from '../../http/downstream.ts';
import { FREE_FACTOR } from './connection-slots.ts';
import { parseTargetUrl, type Target, type Targets, type UpstreamSettings } from './targets.ts';
import { toTlsOptions, type UpstreamTlsFiles } from './tls-files.ts';
import type { Tunnel } from './tunnel.ts';

interface Endpoint {
  readonly target: Target;
  readonly address: ReturnType<typeof createProxyTarget>;
  active: number;
  /** Open connections of each client. */
  readonly activeByClient: Map<string, number>;
}

interface HandshakeHandlers {
  readonly onError: (error: Error) => void;
  /** It is also called for a 101 without `Upgrade`. */
  readonly onResponse: (response: IncomingMessage) => void;
  /** `join` sends the 101 with the header fields of the response to the client, and joins both sides. */
  readonly onUpgrade: (response: IncomingMessage, upstreamSocket: Socket, join: () => void) => void;
}

/**
 * The WebSockets of one upstream, forwarded through http-proxy-3's `ws()`; no other file uses that package.
 *
 * The package opens the connection, writes the 101 and joins both sides. It gets a request that is made here instead of the
 * client's, it writes nothing to the client but the 101, and the caller closes every connection that it leaves open.
 */
export class Tunnels {
  readonly targets: Targets;
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly open = new Set<Tunnel>();
  readonly #maxPerTarget: number;
  readonly #endpoints: readonly Endpoint[];
  readonly #agent: Agent | undefined;
  #proxy: ProxyServer | undefined = undefined;

  constructor(settings: UpstreamSettings, targets: Targets, tlsFiles: UpstreamTlsFiles) {
    const { serverName } = settings;
    this.targets = targets;
    this.timeouts = settings.timeouts;
    this.#maxPerTarget = settings.websockets;
    this.#endpoints = targets.all.map((target) => ({
      target,
      address: createProxyTarget(target, tlsFiles),
      active: 0,
      activeByClient: new Map(),
    }));
    // The package has no option for the server name; an agent has.
    this.#agent = serverName === undefined ? undefined : new Agent({ servername: serverName });
  }

  /** Reserves a WebSocket for a client until it closes its connection. Returns undefined if there are too many. */
  reserve(socket: Socket, shareKey: string): Endpoint | undefined {
    const endpoint = this.#endpoints[this.targets.choose().index];
    if (endpoint === undefined) return undefined;
    // One client gets at most a multiple of what is free, as for connections.
    const { active, activeByClient } = endpoint;
    if ((activeByClient.get(shareKey) ?? 0) >= FREE_FACTOR * (this.#maxPerTarget - active)) return undefined;
    adjustActive(endpoint, shareKey, 1);
    socket.once('close', () => adjustActive(endpoint, shareKey, -1));
    return endpoint;
  }

  /** Prepares the upstream request. Nothing is sent before this returns, so no response can have arrived. */
  createRequest(
    { socket, head }: UpgradedConnection,
    path: string,
    headers: readonly string[],
    { address: target }: Endpoint,
    handlers: HandshakeHandlers,
  ): ClientRequest {
    const proxy = (this.#proxy ??= loadProxy(this.timeouts.connect));
    let created: ClientRequest | undefined;
    const onCreated = (request: ClientRequest): void => {
      // The package would parse the path as a URL and change it.
      request.path = path;
      created = request;
    };
    proxy.once('proxyReqWs', onCreated);
    try {
      const agent = this.#agent;
      proxy.ws(createMessage(headers), socket, head, { target, ...(agent && { agent }) }, handlers.onError);
    } finally {
      proxy.off('proxyReqWs', onCreated);
    }
    if (created === undefined) throw new Error('no request was created');
    replaceListeners(created, handlers);
    return created;
  }

  /** Closes all WebSockets. */
  close(): void {
    for (const tunnel of this.open) tunnel.end(1001, 'going away');
  }
}

/** The package's own listeners would write errors and ordinary responses to the client's connection. */
function replaceListeners(request: ClientRequest, { onError, onResponse, onUpgrade }: HandshakeHandlers): void {
  request.removeAllListeners('error').on('error', onError);
  request.removeAllListeners('response').on('response', onResponse);
  const listeners = request.listeners('upgrade');
  request.removeAllListeners('upgrade').on('upgrade', (response, upstreamSocket: Socket, upstreamHead) =>
    onUpgrade(response, upstreamSocket, () => {
      for (const listener of listeners) listener.call(request, response, upstreamSocket, upstreamHead);
    }),
  );
}

function adjustActive(endpoint: Endpoint, shareKey: string, change: 1 | -1): void {
  const { target, activeByClient } = endpoint;
  endpoint.active += change;
  target.pending += change;
  const count = (activeByClient.get(shareKey) ?? 0) + change;
  if (count > 0) activeByClient.set(shareKey, count);
  else activeByClient.delete(shareKey);
}

/** The request that the package forwards. It has the header fields that are meant for the upstream, and no connection. */
function createMessage(headers: readonly string[]): IncomingMessage {
  const message = new IncomingMessage(new Socket());
  message.method = 'GET';
  message.httpVersion = '1.1';
  message.httpVersionMajor = 1;
  message.httpVersionMinor = 1;
  message.url = '/';
  message.headers = toUpgradeHeaders(headers);
  return message;
}

/** Loaded with the first WebSocket: it takes 20 ms and 3 MB, and most configurations forward none. */
function loadProxy(connectSeconds: number): ProxyServer {
  const { ProxyServer: Proxy } = createRequire(import.meta.url)('http-proxy-3') as {
    readonly ProxyServer: typeof ProxyServer;
  };
  const proxy = new Proxy({ connectTimeout: connectSeconds * 1_000, prependPath: false, ignorePath: true });
  // It throws without a listener. Each handshake gets its errors as well.
  proxy.on('error', () => {});
  return proxy;
}

function createProxyTarget({ url }: Target, tlsFiles: UpstreamTlsFiles) {
  const { protocol, hostname, port, socketPath } = parseTargetUrl(url);
  const address = { protocol, host: hostname, hostname, port };
  return socketPath === undefined ? { ...address, ...toTlsOptions(tlsFiles) } : { ...address, socketPath };
}

/** For Node's HTTP client: repeated fields become arrays. No prototype, so that no name is special. */
export function toUpgradeHeaders(list: readonly string[]): NodeJS.Dict<string | string[]> {
  const fields = Object.create(null) as Record<string, string | string[]>;
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = (list[at] ?? '').toLowerCase();
    const value = list[at + 1] ?? '';
    const existing = fields[name];
    fields[name] = existing === undefined ? value : [existing, value].flat();
  }
  return Object.assign(fields, { connection: 'Upgrade', upgrade: 'websocket' });
}
