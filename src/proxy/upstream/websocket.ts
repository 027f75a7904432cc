import { type ClientRequest, IncomingMessage } from 'node:http';
import { Agent } from 'node:https';
import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { ProxyServer } from 'http-proxy-3';
import { getSingleHeader } from '../../http/raw-headers.ts';
import type { ProxyRefusal } from '../policy/refusals.ts';
import { isEventStream } from '../policy/upstream-rewriter.ts';
import { FREE_FACTOR } from './connection-slots.ts';
import { parseTargetUrl, type Target, type Targets, type UpstreamSettings } from './targets.ts';
import { toTlsOptions, type UpstreamTlsFiles } from './tls-files.ts';
import { openTunnel, type Tunnel } from './tunnel.ts';
import { computeAcceptKey } from './websocket-frames.ts';

/**
 * Forwards WebSockets through http-proxy-3's `ws()`; no other file uses that package.
 *
 * The package opens the connection, writes the 101 and joins both sides. It gets a request that is made here instead of the
 * client's, it writes nothing to the client but the 101, and every connection it leaves open is closed here.
 */
interface UpgradeRequest {
  readonly socket: Duplex;
  /** Bytes that arrived after the client's head; they wait for the upstream's 101. */
  readonly head: Buffer;
  /** Path and query, as they are sent to the upstream. */
  readonly path: string;
  readonly headers: readonly string[];
  /** The client, for its share of the WebSockets of a target. */
  readonly shareKey: string;
  readonly buildResponseHeaders: (rawHeaders: readonly string[], status: number) => string[];
  readonly onOpen: (tunnel: Tunnel) => void;
  /** The upstream responded with a status of 200 or higher. */
  readonly onDeclined: (response: IncomingMessage) => void;
  /** No WebSocket was opened, and nothing was sent to the client. Called at most once. */
  readonly onFailure: (refusal: ProxyRefusal, cause: unknown) => void;
  /** It failed after it had been opened. */
  readonly onAbort: (cause: unknown) => void;
  /** The response could not be processed. The upstream connection is closed; nothing else is called. */
  readonly onInternalError: (error: unknown) => void;
}

interface Endpoint {
  readonly target: Target;
  readonly address: ReturnType<typeof createProxyTarget>;
  active: number;
  /** Open connections of each client. */
  readonly activeByClient: Map<string, number>;
}

/** The WebSockets of one upstream. */
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

  /** Returns undefined if the handshake was refused at once. */
  forward(request: UpgradeRequest): Handshake | undefined {
    const key = getSingleHeader(request.headers, 'sec-websocket-key');
    const refusal = checkHandshake(key, getSingleHeader(request.headers, 'sec-websocket-version'));
    if (refusal !== undefined) {
      request.onFailure(refusal, undefined);
      return undefined;
    }
    const endpoint = this.#endpoints[this.targets.choose().index];
    if (endpoint === undefined || !this.#mayOpen(endpoint, request.shareKey)) {
      request.onFailure({ reason: 'overloaded', retryAfter: 1 }, undefined);
      return undefined;
    }
    const handshake = new Handshake(this, request, endpoint, key ?? '');
    return handshake.start() ? handshake : undefined;
  }

  /** One client gets at most a multiple of what is free, as for connections. */
  #mayOpen({ active, activeByClient }: Endpoint, shareKey: string): boolean {
    return (activeByClient.get(shareKey) ?? 0) < FREE_FACTOR * (this.#maxPerTarget - active);
  }

  /** Prepares the upstream request. Nothing is sent before this returns, so no response can have arrived. */
  createRequest(
    { socket, head, path, headers }: UpgradeRequest,
    target: Endpoint['address'],
    onError: (error: Error) => void,
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
      proxy.ws(createMessage(headers), socket, head, { target, ...(agent && { agent }) }, onError);
    } finally {
      proxy.off('proxyReqWs', onCreated);
    }
    if (created === undefined) throw new Error('no request was created');
    return created;
  }

  /** Closes all WebSockets. */
  close(): void {
    for (const tunnel of this.open) tunnel.end(1001, 'going away');
  }
}

/** One handshake, until the upstream has responded. */
class Handshake {
  readonly #tunnels: Tunnels;
  readonly #request: UpgradeRequest;
  readonly #endpoint: Endpoint;
  readonly #key: string;
  readonly #timer: NodeJS.Timeout;
  #isSettled = false;
  #isStream = false;
  #upstreamRequest: ClientRequest | undefined = undefined;

  constructor(tunnels: Tunnels, request: UpgradeRequest, endpoint: Endpoint, key: string) {
    this.#tunnels = tunnels;
    this.#request = request;
    this.#endpoint = endpoint;
    this.#key = key;
    adjustActive(endpoint, request.shareKey, 1);
    endpoint.target.pending += 1;
    request.socket.once('close', () => {
      adjustActive(endpoint, request.shareKey, -1);
      endpoint.target.pending -= 1;
      if (this.#isStream) endpoint.target.streams -= 1;
      if (this.#settle()) this.#upstreamRequest?.destroy();
    });
    this.#timer = setTimeout(() => {
      this.#fail({ reason: 'upstream_too_slow' }, new Error('no response to the handshake'));
      this.#upstreamRequest?.destroy();
    }, tunnels.timeouts.headers * 1_000);
  }

  start(): boolean {
    try {
      this.#upstreamRequest = this.#tunnels.createRequest(this.#request, this.#endpoint.address, this.#onError);
    } catch (error) {
      this.#onError(error as Error);
      return false;
    }
    this.#replaceListeners(this.#upstreamRequest);
    return true;
  }

  /** No effect after the upstream's response. */
  cancel(refusal: ProxyRefusal, cause: Error): void {
    if (!this.#settle()) return;
    this.#request.onFailure(refusal, cause);
    this.#upstreamRequest
      ?.removeAllListeners('error')
      .on('error', () => {})
      .destroy();
  }

  /** The package's own listeners would write errors and ordinary responses to the client's connection. */
  #replaceListeners(upstreamRequest: ClientRequest): void {
    const { targets } = this.#tunnels;
    const { target } = this.#endpoint;
    upstreamRequest.removeAllListeners('error').on('error', (error) => {
      if (!this.#isSettled) targets.reportFailure(target);
      this.#onError(error);
    });
    upstreamRequest
      .removeAllListeners('response')
      .on('response', (response) => this.#guard(() => this.#onResponse(response)));
    const join = upstreamRequest.listeners('upgrade');
    upstreamRequest.removeAllListeners('upgrade').on('upgrade', (response, upstreamSocket: Socket, upstreamHead) =>
      this.#guard(() =>
        this.#onUpgrade(response, upstreamSocket, () => {
          for (const listener of join) listener.call(upstreamRequest, response, upstreamSocket, upstreamHead);
        }),
      ),
    );
  }

  /** Node's HTTP client calls the listeners: an exception would end the process, not only the handshake. */
  #guard(handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.#settle();
      this.#upstreamRequest?.destroy();
      this.#request.onInternalError(error);
    }
  }

  #onResponse(response: IncomingMessage): void {
    // Node reports a 101 without `Upgrade` here, and accepts any status of three digits (RFC 9110 §15).
    if ((response.statusCode ?? 0) < 200) return this.#rejectResponse(response.socket);
    this.#tunnels.targets.reportSuccess(this.#endpoint.target);
    if (!this.#settle()) return void response.destroy();
    const isEvents = isEventStream(response.rawHeaders);
    if (isEvents) this.#markStream();
    this.#limitPauses(response, isEvents);
    this.#request.onDeclined(response);
  }

  #rejectResponse(upstreamSocket: Socket): void {
    upstreamSocket.destroy();
    if (!this.#isSettled) this.#tunnels.targets.reportFailure(this.#endpoint.target);
    this.#fail({ reason: 'upstream_failed' }, new Error('invalid handshake response'));
  }

  /** The client must read within `idle`; an event stream that it has read completely may pause for `events`. */
  #limitPauses(response: IncomingMessage, isEvents: boolean): void {
    const { idle, events } = this.#tunnels.timeouts;
    const client = this.#request.socket as Socket;
    const { socket } = response;
    let bytesRead = -1;
    let silentSeconds = 0;
    let delivered = -1;
    response.setTimeout(idle * 1_000, () => {
      silentSeconds = socket.bytesRead === bytesRead ? silentSeconds + idle : idle;
      bytesRead = socket.bytesRead;
      const deliveredBefore = delivered;
      delivered = client.bytesWritten - client.writableLength;
      const mayContinue = client.writableLength > 0 ? delivered > deliveredBefore : isEvents && silentSeconds < events;
      if (mayContinue) socket.setTimeout(idle * 1_000);
      else response.destroy(new Error('the response stalled'));
    });
  }

  #onUpgrade(response: IncomingMessage, upstreamSocket: Socket, join: () => void): void {
    const { targets, timeouts, open } = this.#tunnels;
    const { socket, buildResponseHeaders, onOpen } = this.#request;
    if (!isAccepted(response, this.#key)) return this.#rejectResponse(upstreamSocket);
    targets.reportSuccess(this.#endpoint.target);
    if (!this.#settle() || socket.destroyed) return void upstreamSocket.destroy();
    this.#markStream();
    response.headers = toHeaderDict([...buildResponseHeaders(response.rawHeaders, 101), ...UPGRADE_FIELDS]);
    const tunnel = openTunnel(socket as Socket, upstreamSocket, timeouts.websocket, () => open.delete(tunnel));
    open.add(tunnel);
    join();
    tunnel.start();
    onOpen(tunnel);
  }

  /** Not after the client has closed its connection. */
  #markStream(): void {
    if (this.#request.socket.destroyed) return;
    this.#isStream = true;
    this.#endpoint.target.streams += 1;
  }

  readonly #onError = (error: Error): void => this.#fail(toHandshakeRefusal(error), error);

  #fail(refusal: ProxyRefusal, cause: unknown): void {
    if (this.#settle()) this.#request.onFailure(refusal, cause);
    else this.#request.onAbort(cause);
  }

  /** False: it was settled before. */
  #settle(): boolean {
    if (this.#isSettled) return false;
    this.#isSettled = true;
    clearTimeout(this.#timer);
    return true;
  }
}

function adjustActive(endpoint: Endpoint, shareKey: string, change: 1 | -1): void {
  const { activeByClient } = endpoint;
  endpoint.active += change;
  const count = (activeByClient.get(shareKey) ?? 0) + change;
  if (count > 0) activeByClient.set(shareKey, count);
  else activeByClient.delete(shareKey);
}

const UPGRADE_FIELDS = ['Connection', 'Upgrade', 'Upgrade', 'websocket'] as const;

/** The request that the package forwards. It has the header fields that are meant for the upstream, and no connection. */
function createMessage(headers: readonly string[]): IncomingMessage {
  const message = new IncomingMessage(new Socket());
  message.method = 'GET';
  message.httpVersion = '1.1';
  message.httpVersionMajor = 1;
  message.httpVersionMinor = 1;
  message.url = '/';
  message.headers = toHeaderDict([...headers, ...UPGRADE_FIELDS]);
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

/** RFC 6455 §4.2.1: the parts that an upstream might not check. */
function checkHandshake(key: string | undefined, version: string | undefined): ProxyRefusal | undefined {
  if (key === undefined || !/^[A-Za-z0-9+/]{22}==$/.test(key))
    return { reason: 'malformed', detail: 'an invalid Sec-WebSocket-Key' };
  return version === '13' ? undefined : { reason: 'websocket_version' };
}

/** RFC 6455 §4.1: otherwise it is not a WebSocket. */
const isAccepted = ({ statusCode, headers }: IncomingMessage, key = ''): boolean =>
  statusCode === 101 &&
  headers.upgrade?.toLowerCase() === 'websocket' &&
  /(?:^|,)[ \t]*upgrade[ \t]*(?:,|$)/i.test(headers.connection ?? '') &&
  headers['sec-websocket-accept'] === computeAcceptKey(key);

/** For Node's HTTP client: repeated fields become arrays. No prototype, so that no name is special. */
function toHeaderDict(list: readonly string[]): NodeJS.Dict<string | string[]> {
  const fields = Object.create(null) as Record<string, string | string[]>;
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] ?? '';
    const value = list[at + 1] ?? '';
    const existing = fields[name.toLowerCase()];
    fields[name.toLowerCase()] = existing === undefined ? value : [existing, value].flat();
  }
  return fields;
}

const TIMEOUT_CODES = new Set(['ECONNECT_TIMEOUT', 'ETIMEDOUT']);

function toHandshakeRefusal(error: Error): ProxyRefusal {
  const { code } = error as NodeJS.ErrnoException;
  if (TIMEOUT_CODES.has(code ?? '')) return { reason: 'upstream_too_slow' };
  if (code === 'ERR_INVALID_CHAR') return { reason: 'malformed', detail: 'an invalid header field' };
  return { reason: 'upstream_failed' };
}
