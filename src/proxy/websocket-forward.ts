import type { IncomingMessage } from 'node:http';
import type { VerifiedToken } from '../domain/verified-token.ts';
import type { Downstream, ForwardedHead, UpgradedConnection } from '../http/downstream.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import type { HttpVersion, RequestHead } from '../http/request-head.ts';
import { errorFields } from '../observability/logger.ts';
import { type ExchangeOwner, type ForwardRequest, SILENT_MS } from './exchange.ts';
import { logUpstreamError, refusalFor, reportEnded, TokenEndedError } from './exchange-errors.ts';
import type { StreamEndReason } from './policy/live-streams.ts';
import { getEnforcedBearer, getUpstreamPath, isEventStream } from './policy/upstream-rewriter.ts';
import { listClientFields } from './response-fields.ts';
import type { Tunnel } from './upstream/tunnel.ts';
import type { Tunnels } from './upstream/websocket.ts';

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
  readonly #bearer: VerifiedToken | undefined;
  #connection!: UpgradedConnection;
  #isOpen = false;
  /** An ordinary response of the upstream. */
  #declined: IncomingMessage | undefined = undefined;
  /** Ends what is forwarded at present. */
  #end: (reason: StreamEndReason) => void = () => {};
  #unwatch = (): void => {};

  constructor(downstream: Downstream, owner: ExchangeOwner, request: WebSocketRequest) {
    const { config, allowed } = request;
    this.#downstream = downstream;
    this.#owner = owner;
    this.#request = request;
    this.#bearer = config.endStreams === 'none' ? undefined : getEnforcedBearer(allowed);
  }

  start(tunnels: Tunnels, headers: readonly string[]): void {
    const { id, notes, shareKey, config, allowed } = this.#request;
    const owner = this.#owner;
    // The token may have expired or been revoked while its signature was verified.
    const bearer = allowed.isDelayed === true ? getEnforcedBearer(allowed) : undefined;
    const ended = bearer && config.streams.getEndReason(bearer);
    if (ended !== undefined) return owner.refuse(refusalFor(new TokenEndedError(ended)));
    // From the beginning: the token may be revoked while the upstream handles the handshake.
    this.#watch(() => true);
    this.#connection = this.#downstream.upgrade();
    const { socket, head } = this.#connection;
    const pending = tunnels.forward({
      socket,
      head,
      path: getUpstreamPath(allowed.rule, allowed.target),
      headers,
      shareKey,
      buildResponseHeaders: (raw, status) => ['X-Request-Id', id, ...config.headers.buildResponseHeaders(raw, status)],
      onOpen: (tunnel) => this.#onOpen(tunnel),
      onDeclined: (response) => this.#onDeclined(response),
      onFailure: (refusal, cause) => {
        if (refusal.reason.startsWith('upstream')) logUpstreamError(this.#request, 'upstream_failed', cause);
        owner.refuse(refusal);
      },
      onAbort: (cause) => {
        notes.reason = 'aborted';
        config.log.debug('websocket_aborted', { request_id: id, ...errorFields(cause), stack: undefined });
      },
      onInternalError: (error) => {
        config.log.error('internal_error', { request_id: id, ...errorFields(error) });
        if (this.#isOpen || this.#downstream.hasStarted) socket.destroy();
        else owner.refuse({ reason: 'upstream_failed' });
      },
    });
    if (pending === undefined || this.#isOpen) return;
    this.#end = (reason) => {
      const error = new TokenEndedError(reason);
      pending.cancel(refusalFor(error), error);
    };
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

  #onOpen(tunnel: Tunnel): void {
    this.#isOpen = true;
    this.#owner.status = 101;
    this.#connection.release();
    this.#end = (reason) => {
      reportEnded(this.#request, new TokenEndedError(reason));
      if (reason === 'going_away') tunnel.end(1001, 'going away');
      else tunnel.end(1008, `access token ${reason.replaceAll('_', ' ')}`);
    };
  }

  /** The upstream sent an ordinary response, which ends with its token as it would without the upgrade. */
  #onDeclined(response: IncomingMessage): void {
    const { id, notes, config } = this.#request;
    const { rawHeaders, statusCode: status = 502 } = response;
    const isEvents = isEventStream(rawHeaders);
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
