import type { ClientRequest, IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { VerifiedToken } from '../domain/grant.ts';
import type { Downstream, ForwardedHead, UpgradedConnection } from '../http/downstream.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import type { HttpVersion, RequestHead } from '../http/request-head.ts';
import { errorFields } from '../observability/logger.ts';
import { type ExchangeOwner, type ForwardRequest, SILENT_MS } from './exchange.ts';
import { logUpstreamError, refusalFor, reportEnded, TokenEndedError } from './exchange-errors.ts';
import type { StreamEndReason } from './policy/live-streams.ts';
import type { ProxyRefusal } from './policy/refusals.ts';
import { getEnforcedBearer, getUpstreamPath, isEventStream } from './policy/upstream-rewriter.ts';
import { listClientFields } from './response-fields.ts';
import type { Target } from './upstream/targets.ts';
import { computeAcceptKey, openTunnel, type Tunnel } from './upstream/tunnel.ts';
import { type Tunnels, toUpgradeHeaders } from './upstream/websocket.ts';

/** RFC 6455 §4.1. Anything else, such as an offer of several protocols, is handled as an ordinary request. */
export const isWebSocketHandshake = (
  method: string,
  version: HttpVersion,
  { upgrade, connection, framing, contentLength = 0 }: RequestHead,
): boolean =>
  upgrade?.toLowerCase() === 'websocket' &&
  connection?.has('upgrade') === true &&
  method === 'GET' &&
  version === '1.1' &&
  framing === 'none' &&
  contentLength === 0;

/** An `Upgrade` field outside of a valid handshake. An upstream must not take it for one. */
export const requestsWebSocket = ({ upgrade }: RequestHead): boolean =>
  upgrade !== undefined && /(?:^|,)\s*websocket\s*(?:,|$)/i.test(upgrade);

type WebSocketRequest = Pick<
  ForwardRequest,
  'id' | 'host' | 'rawHeaders' | 'shareKey' | 'notes' | 'config' | 'allowed'
>;

/** A WebSocket handshake that is forwarded, and the tunnel or the ordinary response that follows. */
export class WebSocketForward {
  readonly #downstream: Downstream;
  readonly #owner: ExchangeOwner;
  readonly #request: WebSocketRequest;
  readonly #tunnels: Tunnels;
  readonly #bearer: VerifiedToken | undefined;
  #connection!: UpgradedConnection;
  #target!: Target;
  #key = '';
  #timer: NodeJS.Timeout | undefined = undefined;
  #upstreamRequest: ClientRequest | undefined = undefined;
  /** The upstream has responded, or no response is awaited any more. */
  #isSettled = false;
  #isOpen = false;
  #isStream = false;
  /** An ordinary response of the upstream. */
  #declined: IncomingMessage | undefined = undefined;
  /** Ends what is forwarded at present. */
  #end: (reason: StreamEndReason) => void = (reason) => this.#cancel(new TokenEndedError(reason));
  #unwatch = (): void => {};

  constructor(downstream: Downstream, owner: ExchangeOwner, request: WebSocketRequest, tunnels: Tunnels) {
    const { config, allowed } = request;
    this.#downstream = downstream;
    this.#owner = owner;
    this.#request = request;
    this.#tunnels = tunnels;
    this.#bearer = config.endStreams === 'none' ? undefined : getEnforcedBearer(allowed);
  }

  start(headers: readonly string[]): void {
    const { shareKey, config, allowed } = this.#request;
    const { timeouts } = this.#tunnels;
    // The token may have expired or been revoked while its signature was verified.
    const bearer = allowed.isDelayed === true ? getEnforcedBearer(allowed) : undefined;
    const ended = bearer && config.streams.getEndReason(bearer);
    if (ended !== undefined) return this.#owner.refuse(refusalFor(new TokenEndedError(ended)));
    this.#key = getSingleHeader(headers, 'sec-websocket-key') ?? '';
    const refusal = checkHandshake(this.#key, getSingleHeader(headers, 'sec-websocket-version'));
    if (refusal !== undefined) return this.#owner.refuse(refusal);
    this.#connection = this.#downstream.upgrade();
    const { socket } = this.#connection;
    const endpoint = this.#tunnels.reserve(socket, shareKey);
    if (endpoint === undefined) return this.#owner.refuse({ reason: 'overloaded', retryAfter: 1 });
    // From the beginning: the token may be revoked while the upstream handles the handshake.
    this.#watch(() => true);
    this.#target = endpoint.target;
    socket.once('close', () => {
      if (this.#isStream) this.#target.streams -= 1;
      if (this.#settle()) this.#upstreamRequest?.destroy();
    });
    const onTimeout = (): void => {
      this.#fail({ reason: 'upstream_too_slow' }, new Error('no response to the handshake'));
      this.#upstreamRequest?.destroy();
    };
    this.#timer = setTimeout(() => this.#guard(onTimeout), timeouts.headers * 1_000);
    try {
      const path = getUpstreamPath(allowed.rule, allowed.target);
      this.#upstreamRequest = this.#tunnels.createRequest(this.#connection, path, headers, endpoint, {
        onError: (error) => this.#guard(() => this.#onError(error)),
        onResponse: (response) => this.#guard(() => this.#onResponse(response)),
        onUpgrade: (...upgrade) => this.#guard(() => this.#onUpgrade(...upgrade)),
      });
    } catch (error) {
      this.#fail(toHandshakeRefusal(error as Error), error);
    }
  }

  /** The client has read everything that was written. */
  onDrain(): void {
    this.#declined?.resume();
  }

  /** The request has ended. */
  onEnd(): void {
    this.#unwatch();
    const declined = this.#declined;
    this.#declined = undefined;
    declined?.destroy();
  }

  #onError(error: Error): void {
    if (!this.#isSettled) this.#tunnels.targets.reportFailure(this.#target);
    this.#fail(toHandshakeRefusal(error), error);
  }

  /** False: it was settled before. */
  #settle(): boolean {
    if (this.#isSettled) return false;
    this.#isSettled = true;
    clearTimeout(this.#timer);
    return true;
  }

  /** No WebSocket was opened, or it failed after that. */
  #fail(refusal: ProxyRefusal, cause: unknown): void {
    const { id, notes, config } = this.#request;
    if (this.#settle()) {
      if (refusal.reason.startsWith('upstream')) logUpstreamError(this.#request, 'upstream_failed', cause);
      return this.#owner.refuse(refusal);
    }
    notes.reason = 'aborted';
    config.log.debug('websocket_aborted', { request_id: id, ...errorFields(cause), stack: undefined });
  }

  /** No effect after the upstream's response. */
  #cancel(error: TokenEndedError): void {
    if (!this.#settle()) return;
    this.#owner.refuse(refusalFor(error));
    this.#upstreamRequest
      ?.removeAllListeners('error')
      .on('error', () => {})
      .destroy();
  }

  /** Node's HTTP client calls the listeners: an exception would end the process, not only the handshake. */
  #guard(handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.#settle();
      this.#upstreamRequest?.destroy();
      this.#request.config.log.error('internal_error', { request_id: this.#request.id, ...errorFields(error) });
      if (this.#isOpen || this.#downstream.hasStarted) this.#connection.socket.destroy();
      else this.#owner.refuse({ reason: 'upstream_failed' });
    }
  }

  #rejectResponse(upstreamSocket: Socket): void {
    upstreamSocket.destroy();
    if (!this.#isSettled) this.#tunnels.targets.reportFailure(this.#target);
    this.#fail({ reason: 'upstream_failed' }, new Error('invalid handshake response'));
  }

  /** Has no effect after the client has closed its connection. */
  #markStream(): void {
    if (this.#connection.socket.destroyed) return;
    this.#isStream = true;
    this.#target.streams += 1;
  }

  #onUpgrade(response: IncomingMessage, upstreamSocket: Socket, join: () => void): void {
    const { targets, timeouts, open } = this.#tunnels;
    const { id, config } = this.#request;
    const { socket } = this.#connection;
    if (!isAccepted(response, this.#key)) return this.#rejectResponse(upstreamSocket);
    targets.reportSuccess(this.#target);
    if (!this.#settle() || socket.destroyed) return void upstreamSocket.destroy();
    this.#markStream();
    const fields = config.headers.buildResponseHeaders(response.rawHeaders, 101);
    response.headers = toUpgradeHeaders(['X-Request-Id', id, ...fields]);
    const tunnel: Tunnel = openTunnel(socket, upstreamSocket, timeouts.websocket, () => open.delete(tunnel));
    open.add(tunnel);
    join();
    tunnel.start();
    this.#isOpen = true;
    this.#owner.status = 101;
    this.#connection.release();
    this.#end = (reason) => {
      reportEnded(this.#request, new TokenEndedError(reason));
      if (reason === 'going_away') tunnel.end(1001, 'going away');
      else tunnel.end(1008, `access token ${reason.replaceAll('_', ' ')}`);
    };
  }

  /** An ordinary response of the upstream ends with its token as it would without the upgrade. */
  #onResponse(response: IncomingMessage): void {
    const { id, notes, config } = this.#request;
    const { rawHeaders, statusCode: status = 0 } = response;
    // Node reports a 101 without `Upgrade` here, and accepts any status of three digits (RFC 9110 §15).
    if (status < 200) return this.#rejectResponse(response.socket);
    this.#tunnels.targets.reportSuccess(this.#target);
    if (!this.#settle()) return void response.destroy();
    const isEvents = isEventStream(rawHeaders);
    if (isEvents) this.#markStream();
    limitPauses(response, this.#connection.socket, this.#tunnels.timeouts, isEvents);
    notes.reason = 'upgrade_declined';
    notes.isEventStream = isEvents;
    this.#owner.status = status;
    this.#declined = response;
    const list = listClientFields(this.#request, rawHeaders, status, true);
    this.#downstream.writeHead(describeHead(response), { list, text: '', block: undefined }, id, []);
    // The body may begin much later.
    this.#downstream.flush();
    this.#unwatch();
    this.#end = (reason) => {
      reportEnded(this.#request, new TokenEndedError(reason));
      this.#declined = undefined;
      response.destroy();
      this.#downstream.abort(false);
    };
    if (isEvents) this.#watch(createSilenceCheck(response, this.#downstream));
    else if (this.#bearer !== undefined && config.endStreams === 'all') this.#watch(() => false);
    this.#pump(response);
  }

  #pump(response: IncomingMessage): void {
    const downstream = this.#downstream;
    response.on('data', (part: Buffer) => {
      if (this.#declined !== response) return;
      const takesMore = downstream.write(part, 0, part.length);
      if (!downstream.flush() || !takesMore) response.pause();
    });
    response.on('end', () => {
      if (this.#declined !== response) return;
      this.#declined = undefined;
      downstream.end();
    });
    const onFailed = (error: unknown): void => {
      if (this.#declined !== response) return;
      this.#declined = undefined;
      logUpstreamError(this.#request, 'upstream_aborted', error);
      downstream.abort(false);
    };
    response.on('error', onFailed).on('aborted', () => onFailed(new Error('the response was aborted')));
  }

  #watch(endsAtShutdown: () => boolean): void {
    this.#unwatch = this.#request.config.streams.add({
      bearer: this.#bearer,
      get endsAtShutdown() {
        return endsAtShutdown();
      },
      end: (reason) => this.#end(reason),
    });
  }
}

function describeHead({ statusCode: status = 502, rawHeaders }: IncomingMessage): ForwardedHead {
  const length = getSingleHeader(rawHeaders, 'content-length');
  const hasNoBody = status === 204 || status === 304;
  return {
    status,
    framing: hasNoBody ? 'none' : length === undefined ? 'chunked' : 'length',
    length: Number(length ?? 0),
    isEndUncertain: false,
    hasDate: getSingleHeader(rawHeaders, 'date') !== undefined,
  };
}

/** Whether an event stream has sent nothing, and the client had read everything, since an earlier call, a second ago or more. */
function createSilenceCheck({ socket }: IncomingMessage, downstream: Downstream): () => boolean {
  let lastBytes = -1;
  let since = 0;
  return () => {
    const now = performance.now();
    if (socket.bytesRead === lastBytes && downstream.unread === 0) return now - since >= SILENT_MS;
    lastBytes = socket.bytesRead;
    since = now;
    return false;
  };
}

/** RFC 6455 §4.2.1: the parts that an upstream might not check. */
function checkHandshake(key: string, version: string | undefined): ProxyRefusal | undefined {
  if (!/^[A-Za-z0-9+/]{22}==$/.test(key)) return { reason: 'malformed', detail: 'an invalid Sec-WebSocket-Key' };
  return version === '13' ? undefined : { reason: 'websocket_version' };
}

/** RFC 6455 §4.1: otherwise it is not a WebSocket. */
const isAccepted = ({ statusCode, headers }: IncomingMessage, key: string): boolean =>
  statusCode === 101 &&
  headers.upgrade?.toLowerCase() === 'websocket' &&
  /(?:^|,)[ \t]*upgrade[ \t]*(?:,|$)/i.test(headers.connection ?? '') &&
  headers['sec-websocket-accept'] === computeAcceptKey(key);

const TIMEOUT_CODES = new Set(['ECONNECT_TIMEOUT', 'ETIMEDOUT']);

function toHandshakeRefusal(error: Error): ProxyRefusal {
  const { code } = error as NodeJS.ErrnoException;
  if (TIMEOUT_CODES.has(code ?? '')) return { reason: 'upstream_too_slow' };
  if (code === 'ERR_INVALID_CHAR') return { reason: 'malformed', detail: 'an invalid header field' };
  return { reason: 'upstream_failed' };
}

/** The client must read within `idle`; an event stream that it has read completely may pause for `events`. */
function limitPauses(
  response: IncomingMessage,
  client: Socket,
  { idle, events }: Tunnels['timeouts'],
  isEvents: boolean,
): void {
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
