import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream';
import type { VerifiedToken } from '../domain/verified-token.ts';
import type { RequestContext } from '../http/request-context.ts';
import { errorFields } from '../observability/logger.ts';
import { getNetworkKey } from './body-buffering.ts';
import { type ForwardConfig, SILENT_MS } from './exchange.ts';
import { refusalFor, TokenEndedError } from './exchange-errors.ts';
import { getCorsFields, replaceCorsFields } from './policy/cors.ts';
import type { StreamEndReason } from './policy/live-streams.ts';
import type { ProxyRefusal } from './policy/refusals.ts';
import type { RequestHead } from './policy/request-head.ts';
import {
  type AllowedRequest,
  getEnforcedBearer,
  getUpstreamPath,
  isEventStream,
} from './policy/upstream-rewriter.ts';
import type { Tunnel } from './upstream/tunnel.ts';
import type { Tunnels } from './upstream/websocket.ts';

/** A WebSocket handshake that is forwarded, and the tunnel or the ordinary response that follows. */
export class WebSocketForward {
  readonly #config: ForwardConfig;
  readonly #context: RequestContext;
  readonly #allowed: AllowedRequest;
  readonly #refuse: (refusal: ProxyRefusal) => void;
  readonly #bearer: VerifiedToken | undefined;
  /** Ends what is forwarded at present. */
  #end: (reason: StreamEndReason) => void = () => {};
  #unwatch = (): void => {};

  constructor(
    config: ForwardConfig,
    context: RequestContext,
    allowed: AllowedRequest,
    refuse: (refusal: ProxyRefusal) => void,
  ) {
    this.#config = config;
    this.#context = context;
    this.#allowed = allowed;
    this.#refuse = refuse;
    this.#bearer = config.endStreams === 'none' ? undefined : getEnforcedBearer(allowed);
  }

  start(tunnels: Tunnels, head: RequestHead, headers: readonly string[]): void {
    const { response, upgrade } = this.#context;
    const { rule, target, caller } = this.#allowed;
    if (upgrade === undefined) return;
    // The token may have expired or been revoked while its signature was verified.
    const bearer = this.#allowed.isDelayed === true ? getEnforcedBearer(this.#allowed) : undefined;
    const ended = bearer && this.#config.streams.getEndReason(bearer);
    if (ended !== undefined) return this.#refuse(refusalFor(new TokenEndedError(ended)));
    // From the beginning: the token may be revoked while the upstream handles the handshake.
    this.#watch(() => true);
    response.once('close', () => this.#unwatch());
    const pending = tunnels.forward({
      ...upgrade,
      path: getUpstreamPath(rule, target),
      headers,
      shareKey: caller?.bearer.identity ?? getNetworkKey(this.#context.clientAddress),
      buildResponseHeaders: (raw, status) => this.#buildResponseHeaders(raw, status),
      onOpen: (tunnel) => this.#onOpen(tunnel),
      onDeclined: (upstreamResponse) => this.#onDeclined(upstreamResponse, target.authority ?? head.host),
      onFailure: (refusal, cause) => {
        if (refusal.reason.startsWith('upstream')) this.#logError('upstream_failed', cause);
        this.#refuse(refusal);
      },
      onAbort: (cause) => {
        this.#context.note({ reason: 'aborted' });
        const fields = { request_id: this.#context.id, ...errorFields(cause), stack: undefined };
        this.#config.log.debug('websocket_aborted', fields);
      },
      onInternalError: (error) => {
        const fields = { request_id: this.#context.id, ...errorFields(error) };
        this.#config.log.error('internal_error', fields);
        if (response.headersSent || response.statusCode === 101) upgrade.socket.destroy();
        else this.#refuse({ reason: 'upstream_failed' });
      },
    });
    if (pending === undefined || response.statusCode === 101) return;
    this.#end = (reason) => {
      const error = new TokenEndedError(reason);
      pending.cancel(refusalFor(error), error);
    };
  }

  #onOpen(tunnel: Tunnel): void {
    this.#context.response.statusCode = 101;
    this.#end = (reason) => {
      this.#reportEnd(reason);
      if (reason === 'going_away') tunnel.end(1001, 'going away');
      else tunnel.end(1008, `access token ${reason.replaceAll('_', ' ')}`);
    };
  }

  /** The upstream sent an ordinary response, which ends with its token as it would without the upgrade. */
  #onDeclined(upstreamResponse: IncomingMessage, host: string): void {
    const { request, response } = this.#context;
    const { rewriter, endStreams } = this.#config;
    const { rawHeaders, statusCode: status = 502 } = upstreamResponse;
    const isEvents = isEventStream(rawHeaders);
    const location = rewriter.getLocationRewrite(this.#allowed, host);
    const fields = this.#buildResponseHeaders(rawHeaders, status, location);
    const cors = getCorsFields(this.#allowed.rule, request.rawHeaders);
    this.#context.note({ reason: 'upgrade_declined', isEventStream: isEvents });
    response.writeHead(status, cors === undefined ? fields : replaceCorsFields(fields, cors));
    this.#unwatch();
    let isEnded = false;
    this.#end = (reason) => {
      isEnded = true;
      this.#reportEnd(reason);
      response.destroy();
    };
    if (isEvents) this.#watch(createSilenceCheck(upstreamResponse, response));
    else if (this.#bearer !== undefined && endStreams === 'all') this.#watch(() => false);
    pipeline(upstreamResponse, response, (error) => {
      if (error && !isEnded) this.#logError('upstream_aborted', error);
    });
  }

  #buildResponseHeaders(...args: Parameters<ForwardConfig['headers']['buildResponseHeaders']>): string[] {
    return ['X-Request-Id', this.#context.id, ...this.#config.headers.buildResponseHeaders(...args)];
  }

  #watch(endsAtShutdown: () => boolean): void {
    this.#unwatch = this.#config.streams.add({
      bearer: this.#bearer,
      get endsAtShutdown() {
        return endsAtShutdown();
      },
      end: (reason) => this.#end(reason),
    });
  }

  #reportEnd(reason: StreamEndReason): void {
    const { rule, caller } = this.#allowed;
    this.#context.note({ reason: new TokenEndedError(reason).reason });
    this.#config.log.info('stream_ended', {
      request_id: this.#context.id,
      rule: rule.name,
      grant: caller?.bearer.grantId,
      reason,
    });
  }

  #logError(event: string, cause: unknown): void {
    const { upstream } = this.#allowed.rule;
    const fields = { request_id: this.#context.id, upstream, ...errorFields(cause), stack: undefined };
    this.#config.log.warn(event, fields);
  }
}

/** Whether an event stream has sent nothing, and the client had read everything, since an earlier call, a second ago or more. */
function createSilenceCheck({ socket }: IncomingMessage, response: ServerResponse): () => boolean {
  let lastBytes = -1;
  let since = 0;
  return () => {
    const now = performance.now();
    if (socket.bytesRead === lastBytes && response.writableLength === 0) return now - since >= SILENT_MS;
    lastBytes = socket.bytesRead;
    since = now;
    return false;
  };
}
