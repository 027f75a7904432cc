import type { ServerResponse } from 'node:http';
import { discardBody } from '../../http/discarded-body.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { getNetworkKey } from '../body-buffering.ts';
import { type Downstream, Exchange, type ForwardConfig, type ForwardRequest } from '../exchange.ts';
import type { ProxyRefusal } from '../policy/refusals.ts';
import type { RequestHead } from '../policy/request-head.ts';
import { type AllowedRequest, getUpstreamPath } from '../policy/upstream-rewriter.ts';
import { clientFields } from '../response-fields.ts';
import { UpstreamError } from '../upstream/connection.ts';
import type { ResponseHead } from '../upstream/response-head.ts';
import type { Upstream } from '../upstream/upstream.ts';
import { MessageBody } from './node-request-body.ts';

/** Up to this size, a body that is sent with its head is sent as text: Node then writes both at once. */
const TEXT_BODY = 16_384;
/** Pipelined requests of one connection that are forwarded at the same time; later ones wait for the responses before them. */
const MAX_PARALLEL = 8;

/** A request and a response of Node's HTTP servers, over HTTP/1.1 or HTTP/2: the full path. */
export class NodeDownstream implements Downstream {
  readonly request: ForwardRequest;
  hasStarted = false;
  readonly #context: RequestContext;
  readonly #response: ServerResponse;
  readonly #refuse: (refusal: ProxyRefusal) => void;
  readonly #exchange: Exchange;
  #endsByClose: boolean;
  #isHeadSent = false;
  #drains = false;
  /** What the last read brought: its position in the connection's buffer, and copies where it was in several places. */
  #bytes: Buffer | undefined = undefined;
  #start = 0;
  #end = 0;
  #parts: Buffer[] | undefined = undefined;

  constructor(
    config: ForwardConfig,
    context: RequestContext,
    head: RequestHead,
    allowed: AllowedRequest,
    fields: string,
    limitFields: readonly string[],
    refuse: (refusal: ProxyRefusal) => void,
  ) {
    const { request, response } = context;
    const { rule, target, caller } = allowed;
    this.request = {
      id: context.id,
      method: request.method ?? '',
      path: getUpstreamPath(rule, target),
      fields,
      host: target.authority ?? head.host,
      rawHeaders: request.rawHeaders,
      allowed,
      content: undefined,
      body:
        head.framing === 'none'
          ? undefined
          : MessageBody.of(request, head.contentLength, config.maxBodyBytes),
      limitFields,
      shareKey: caller?.bearer.identity ?? getNetworkKey(context.clientAddress),
      config,
      notes: context.notes,
    };
    this.#endsByClose = request.httpVersion === '1.0';
    this.#context = context;
    this.#response = response;
    this.#refuse = refuse;
    this.#exchange = new Exchange(this);
  }

  forward(upstream: Upstream): void {
    const { response, pendingBefore } = this.#context;
    let hasStarted = false;
    const start = (hasWaited: boolean): void => {
      hasStarted = true;
      this.request.notes.transfer = this.#exchange;
      this.#exchange.start(upstream, this.request, hasWaited);
    };
    const startLater = (): void => {
      if (!this.isClosed) start(true);
    };
    response.on('close', () => {
      if (hasStarted) this.#exchange.clientClosed();
      else this.request.notes.reason = 'client_disconnected';
    });
    // A client could make gatehouse hold any number of responses that it does not read.
    if (pendingBefore >= MAX_PARALLEL) response.once('socket', startLater);
    // RFC 9112 §9.3.2: it must not overtake the request before it on this connection, whose body is read a moment later.
    else if (this.#isPipelined && this.request.body === undefined) setImmediate(startLater);
    else start(false);
  }

  get #isPipelined(): boolean {
    return this.#response.socket === null && this.#context.request.httpVersion !== '2';
  }

  get isClosed(): boolean {
    return this.#response.destroyed;
  }

  get unread(): number {
    return this.#response.writableLength;
  }

  writeHead(head: ResponseHead): void {
    // RFC 9110 §15. HTTP/1.1 forwards it as it is; Node refuses to send it over HTTP/2.
    if (head.status > 599 && this.#context.request.httpVersion === '2')
      throw new UpstreamError('an invalid status', 'malformed_response');
    const { list } = clientFields(this.request, head);
    if (head.isEndUncertain) {
      // A last chunk would prove an end that is not known.
      this.#endsByClose = true;
      this.#response.shouldKeepAlive = false;
      this.#response.useChunkedEncodingByDefault = false;
    }
    this.#response.writeHead(head.status, [
      'X-Request-Id',
      this.request.id,
      ...list,
      ...this.request.limitFields,
    ]);
    this.hasStarted = true;
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    if (this.#bytes !== undefined) (this.#parts ??= []).push(copyOf(this.#bytes, this.#start, this.#end));
    this.#bytes = bytes;
    this.#start = start;
    this.#end = end;
    return true;
  }

  flush(): boolean {
    const part = this.#takePart();
    if (part === undefined) {
      if (!this.#isHeadSent) this.#response.flushHeaders();
      this.#isHeadSent = true;
      return true;
    }
    this.#isHeadSent = true;
    if (this.isClosed || this.#response.write(part)) return true;
    if (!this.#drains) {
      this.#drains = true;
      this.#response.on('drain', () => this.#exchange.clientDrained());
    }
    return false;
  }

  end(): void {
    const { request } = this.#context;
    if (this.isClosed) return;
    const bytes = this.#bytes;
    if (bytes === undefined) this.#response.end();
    else if (this.#parts === undefined && this.#end - this.#start <= TEXT_BODY)
      this.#response.end(bytes.toString('latin1', this.#start, this.#end), 'latin1');
    else this.#response.end(this.#takePart());
    // The upstream responded before the request was complete.
    if (!request.complete)
      discardBody(request, (arrived) => {
        if (!arrived) request.destroy();
      });
  }

  refuse(refusal: ProxyRefusal): void {
    this.#refuse(refusal);
  }

  /** Where only the close marks the end of the response, a reset shows that it is not complete. */
  abort(): void {
    const { socket } = this.#context.request;
    if (this.#endsByClose && !('encrypted' in socket)) socket.resetAndDestroy();
    this.#response.destroy();
  }

  #takePart(): Buffer | undefined {
    if (this.#bytes === undefined) return undefined;
    const last = copyOf(this.#bytes, this.#start, this.#end);
    const parts = this.#parts;
    this.#bytes = undefined;
    this.#parts = undefined;
    return parts === undefined ? last : Buffer.concat([...parts, last]);
  }
}

function copyOf(bytes: Buffer, start: number, end: number): Buffer {
  const copy = Buffer.allocUnsafe(end - start);
  bytes.copy(copy, 0, start, end);
  return copy;
}
