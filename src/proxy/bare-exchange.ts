import type { ServerResponse } from 'node:http';
import { BodyPace, bufferFor, ReadAhead, STREAM_WAIT } from './client-pace.ts';
import {
  type Carried,
  type ForwardJob,
  GrantEnded,
  isPipelined,
  REPEATABLE,
  refusalFor,
} from './exchange.ts';
import type { AnswerHead } from './leg/answer-head.ts';
import { type Asking, askSoon } from './leg/ask-soon.ts';
import type { BareUpstream } from './leg/bare-upstream.ts';
import type { Due } from './leg/deadlines.ts';
import {
  ANSWER_LATE,
  type Asker,
  CONNECT_LATE,
  LostAnswer,
  type UpstreamSocket,
} from './leg/upstream-socket.ts';
import type { StreamEnd } from './live-streams.ts';
import { discardRest, type ProxyRefusal } from './refuse.ts';
import { BodyFault } from './request-body.ts';
import { EXPECTS_BODY } from './request-head.ts';
import { type BodyCarrier, SentBody } from './sent-body.ts';
import { Slot, type SlotHolder, type Slots } from './slots.ts';
import type { Target } from './targets.ts';

/**
 * - `buffering`: a part of the body must arrive before a connection is used for it.
 * - `waiting`: for a connection slot; `called`: it has one, and takes a connection in a moment.
 * - `connecting`, `sending` the body, `asked`: the upstream has it.
 * - `answering`: the answer has begun.
 */
type Stage = 'buffering' | 'waiting' | 'called' | 'connecting' | 'sending' | 'asked' | 'answering' | 'over';

/** One request of the full lane and its answer, over a bare connection; what happens to either side is told to the other. */
export class BareExchange implements Carried, SlotHolder, Asking, Asker, BodyCarrier, Due {
  deadline = Number.POSITIVE_INFINITY;
  before: Due | undefined = undefined;
  after: Due | undefined = undefined;
  upstreamSeconds: number | undefined = undefined;
  bytesOut = 0;
  readonly #upstream: BareUpstream;
  readonly #job: ForwardJob;
  readonly #startedAt = performance.now();
  readonly #slot = new Slot(this);
  readonly #readAhead = new ReadAhead();
  #slots!: Slots;
  #pace: BodyPace | undefined;
  #stage: Stage = 'waiting';
  #repeated = false;
  /** It was not forwarded as soon as it was admitted. */
  #waited = false;
  #fields = '';
  #body: SentBody | undefined;
  #socket: UpstreamSocket | undefined;
  /** What this read brought of the answer: where it stands, and copies of what stood in several places. */
  #bytes: Buffer | undefined;
  #from = 0;
  #to = 0;
  #parts: Buffer[] | undefined;
  #headSent = false;
  /** The client has not taken what it was given. */
  #stalled = false;
  #drains = false;

  constructor(upstream: BareUpstream, job: ForwardJob) {
    this.#upstream = upstream;
    this.#job = job;
  }

  /** False when it was refused at once. */
  start(): boolean {
    const { request, response, method, path, headers, hasBody, bodyLength, maxBodyBytes } = this.#job;
    const fields = fieldsOf(headers);
    if (fields === undefined || !REQUEST_LINE.test(`${method} ${path}`)) {
      this.#job.failed({ reason: 'malformed', detail: 'a header field' }, undefined);
      return false;
    }
    this.#fields = fields;
    response.on('close', () => {
      this.#readAhead.end();
      this.#clientLeft();
    });
    this.#upstream.deadlines.add(this);
    if (hasBody) this.#bufferBody(new SentBody(request, bodyLength, maxBodyBytes, this));
    else if (isPipelined(this.#job))
      setImmediate(() => {
        if (this.#stage === 'waiting') this.#enter(this.#upstream.targets.choose());
      });
    else this.#enter(this.#upstream.targets.choose());
    return this.#stage !== 'over';
  }

  /** How long the body takes to arrive is up to the client. */
  #bufferBody(body: SentBody): void {
    const { pace, bodyBuffer } = this.#upstream;
    const { method, shareKey } = this.#job;
    this.#body = body;
    this.#waited = true;
    this.#stage = 'buffering';
    this.#pace = new BodyPace();
    this.#pace.start(pace);
    const isStream = body.isUnmeasured && EXPECTS_BODY.has(method);
    this.deadline = isStream ? performance.now() + STREAM_WAIT : this.#pace.deadline;
    body.buffer(bufferFor(method, bodyBuffer, shareKey));
  }

  bodyBuffered(): void {
    if (this.#stage === 'buffering') this.#enter(this.#upstream.targets.choose());
  }

  get waitsForClient(): boolean {
    // Until there is a connection, nothing waits for the client.
    return this.#socket?.connected === true && this.#body?.waitsForClient === true;
  }

  get unread(): number {
    return this.#job.response.writableLength;
  }

  get bytesIn(): number {
    return this.#body?.bytes ?? 0;
  }

  cut(why: StreamEnd): void {
    this.#end(new GrantEnded(why));
  }

  onSlot(): void {
    const ended = this.#waited ? this.#job.tokenFault() : undefined;
    if (ended !== undefined) return this.cut(ended);
    this.#stage = 'called';
    askSoon(this);
  }

  ask(): void {
    // It has left meanwhile.
    if (this.#stage !== 'called') return;
    try {
      this.#ask();
    } catch (error) {
      this.onFault(error);
    }
  }

  #ask(): void {
    const { method, path } = this.#job;
    const sockets = this.#upstream.socketsOf(this.#slots.target);
    const { address } = sockets;
    const toHead = method === 'HEAD';
    const body = this.#body;
    const expectsBody = EXPECTS_BODY.has(method);
    // RFC 9110 §9.3.1: where nobody expects a body, a server may take it for the next request. There is none after it.
    const isLast = toHead || (body !== undefined && !expectsBody);
    const opening = isLast || this.#repeated ? address.openingOnce : address.opening;
    // RFC 9110 §8.6: without a body these say so.
    const framing = body?.framing ?? (expectsBody ? 'content-length: 0\r\n' : '');
    const socket = sockets.take(this.#repeated);
    if (isLast) socket.useUp();
    const head = `${method} ${path}${opening}${this.#fields}${framing}\r\n`;
    this.#socket = socket;
    if (socket.connected) this.#stage = body === undefined ? 'asked' : 'sending';
    else this.#stage = 'connecting';
    if (body === undefined) socket.ask(this, toHead, head, undefined, true);
    else {
      socket.hold();
      socket.ask(this, toHead, head, undefined, false);
      const takesMore = body.begin(socket);
      socket.release();
      // What was there was too much.
      if (this.#socket === undefined) return;
      if (socket.connected) body.flow(takesMore);
    }
    if (!socket.connected) this.#wait(this.#upstream.timeouts.connect);
    else this.#sent();
  }

  onConnected(): void {
    if (this.#stage !== 'connecting') return;
    this.#stage = this.#body === undefined ? 'asked' : 'sending';
    this.#body?.flow(true);
    this.#sent();
  }

  onDrain(): void {
    this.#pace?.resumed();
    this.#body?.drained();
    this.#body?.flow(true);
    if (this.#stage === 'sending') this.#sent();
  }

  bodyMoved(bytes: number): void {
    this.#pace?.moved(bytes);
    if (this.#stage === 'buffering') {
      // A stream of unknown length does not wait longer because more of it arrives.
      if (this.#body?.isUnmeasured !== true || !EXPECTS_BODY.has(this.#job.method)) this.#waitForBody();
      return;
    }
    this.#slot.moved(bytes);
    if (this.#body?.isWhole === true) this.#slot.uploaded();
    if (this.#stage === 'sending') this.#sent();
  }

  bodyFailed(fault: BodyFault): void {
    // Who has left is told by the answer's own end; here it may be only the body that broke off.
    if (fault.kind === 'client_gone' && this.#job.response.destroyed) this.#clientLeft();
    else this.#end(fault);
  }

  #sent(): void {
    const { timeouts } = this.#upstream;
    if (this.#body === undefined || this.#body.isWhole) {
      this.#slot.uploaded();
      this.#stage = 'asked';
      this.#wait(timeouts.headers);
    } else if (this.#body.waitsForClient) this.#waitForBody();
    else this.#wait(timeouts.idle);
  }

  #waitForBody(): void {
    if (this.#pace !== undefined) this.deadline = this.#pace.deadline;
  }

  onHead(head: AnswerHead): void {
    const { status, rawHeaders } = head;
    this.#stage = 'answering';
    this.upstreamSeconds = (performance.now() - this.#startedAt) / 1_000;
    this.#upstream.targets.answered(this.#slots.target);
    this.#job.response.writeHead(status, this.#job.answerHeaders(rawHeaders, status, head));
  }

  onData(bytes: Buffer, from: number, end: number): boolean {
    this.bytesOut += end - from;
    if (this.#bytes !== undefined) (this.#parts ??= []).push(copyOf(this.#bytes, this.#from, this.#to));
    this.#bytes = bytes;
    this.#from = from;
    this.#to = end;
    return true;
  }

  onRead(): void {
    if (this.#stage !== 'answering') return;
    const { response } = this.#job;
    const part = this.#takePart();
    this.#wait(this.#upstream.timeouts.idle);
    if (part === undefined) {
      if (!this.#headSent) response.flushHeaders();
      this.#headSent = true;
      return;
    }
    this.#headSent = true;
    if (response.destroyed || response.write(part)) return;
    if (!this.#drains) {
      this.#drains = true;
      response.on('drain', () => this.#clientReads());
    }
    const unread = response.writableLength;
    if (this.#readAhead.allows(unread, this.#job.shareKey)) return;
    this.#stalled = true;
    this.#slot.stalled();
    this.#socket?.pause();
  }

  onWhole(kept: boolean): void {
    const { request, response } = this.#job;
    this.#socket = undefined;
    this.#finish(kept);
    // It will be told in a moment that nobody wants it any more.
    if (response.destroyed) return;
    const bytes = this.#bytes;
    if (bytes === undefined) response.end();
    else if (this.#parts === undefined && this.#to - this.#from <= MOST_AT_ONCE)
      endWith(response, bytes.toString('latin1', this.#from, this.#to));
    else response.end(this.#takePart());
    // The upstream answered without hearing the client out.
    if (!request.complete)
      discardRest(request, (arrived) => {
        if (!arrived) request.destroy();
      });
  }

  onLost(cause: LostAnswer): void {
    this.#socket = undefined;
    if (this.#stage !== 'answering') {
      if (!cause.idleClose) this.#upstream.targets.failed(this.#slots.target);
      if (this.#mayRepeat(cause)) return this.#repeat(cause);
    }
    this.#end(cause);
  }

  onFault(error: unknown): void {
    const cause = error instanceof Error ? error : new Error('a mistake of ours', { cause: error });
    if (this.#stage !== 'over') return this.#end(cause);
    // In its last moment: nobody else would end it.
    this.#job.broken(cause);
    this.#job.response.destroy();
  }

  /** What is awaited did not come in time. */
  late(): void {
    switch (this.#stage) {
      case 'buffering':
        if (this.#body?.isUnmeasured === true && EXPECTS_BODY.has(this.#job.method))
          return this.#body.endBuffering();
        return this.#end(new BodyFault('client_too_slow'));
      case 'waiting':
      case 'called':
        this.#finish();
        return this.#job.failed(OVERLOADED, undefined);
      case 'connecting':
        this.#socket?.drop();
        return this.onLost(new LostAnswer('no connection in time', CONNECT_LATE, { unreached: true }));
      case 'sending':
        return this.#end(new BodyFault(this.waitsForClient ? 'client_too_slow' : 'upstream_too_slow'));
      case 'asked':
        return this.#end(new LostAnswer('no answer in time', ANSWER_LATE));
      case 'answering':
        if (!this.#stalled) return this.#end(new LostAnswer('no more in time', ANSWER_LATE));
        if (this.#readAhead.hasRead(this.#job.response.writableLength))
          return this.#wait(this.#upstream.timeouts.idle);
        return this.onEvicted();
      case 'over':
    }
  }

  onEvicted(): void {
    if (this.#stage !== 'answering') return this.#end(new BodyFault('client_too_slow'));
    this.#finish();
    this.#job.broken(new BodyFault('client_too_slow'));
    this.#job.response.destroy();
  }

  #enter(target: Target): void {
    this.#slots = this.#upstream.slotsOf(target);
    this.#stage = 'waiting';
    this.#wait(this.#upstream.timeouts.headers);
    const isUpload = this.#body !== undefined && !this.#body.hasArrived;
    const isAccepted = this.#slot.enter(this.#slots, this.#job.shareKey, isUpload);
    this.#waited = true;
    if (isAccepted) return;
    this.#finish();
    this.#job.failed(OVERLOADED, undefined);
  }

  #clientLeft(): void {
    if (this.#stage === 'over') return;
    this.#finish();
    this.#job.broken(new BodyFault('client_gone'));
  }

  #clientReads(): void {
    this.#readAhead.end();
    if (this.#stage !== 'answering' || !this.#stalled) return;
    this.#stalled = false;
    this.#slot.flowing();
    this.#wait(this.#upstream.timeouts.idle);
    this.#socket?.resume();
  }

  /** The buffer is not ours, and what is written may wait for the client. */
  #takePart(): Buffer | undefined {
    if (this.#bytes === undefined) return undefined;
    const last = copyOf(this.#bytes, this.#from, this.#to);
    const parts = this.#parts;
    this.#bytes = undefined;
    this.#parts = undefined;
    return parts === undefined ? last : Buffer.concat([...parts, last]);
  }

  /** RFC 9110 §9.2.2, RFC 9112 §9.3.1: a connection may be closed for being idle just when we use it again. */
  #mayRepeat({ idleClose, unreached }: LostAnswer): boolean {
    const { method, hasBody } = this.#job;
    if (this.#repeated || hasBody || !REPEATABLE.has(method)) return false;
    return idleClose || (unreached && this.#upstream.targets.hasOther(this.#slots.target));
  }

  #repeat(cause: LostAnswer): void {
    this.#slot.leave();
    this.#repeated = true;
    this.#job.repeated(cause);
    this.#enter(this.#upstream.targets.another(this.#slots.target));
  }

  /** There is no answer, or it breaks off. */
  #end(cause: Error): void {
    if (this.#stage === 'over') return;
    const isBegun = this.#stage === 'answering';
    this.#finish();
    const { request, response } = this.#job;
    if (!isBegun || !response.headersSent) return this.#job.failed(refusalFor(cause), cause);
    this.#job.broken(cause);
    breakOff(response, request.httpVersion);
  }

  /** `later`: its place in the line becomes free together with its connection. */
  #finish(later = false): void {
    this.#stage = 'over';
    this.#upstream.deadlines.remove(this);
    this.#socket?.drop();
    this.#socket = undefined;
    this.#body?.stop();
    this.#slot.leave(later);
  }

  #wait(seconds: number): void {
    this.deadline = performance.now() + seconds * 1_000;
  }
}

const OVERLOADED: ProxyRefusal = { reason: 'overloaded', retryAfter: 1 };

/** RFC 9112 §3. Both were judged before; what is written to a connection is looked at once more. */
const REQUEST_LINE = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+ \/[\x21-\x7e]*$/;
/** RFC 9110 §5.1, §5.5: no control character, as the HTTP client has it too. */
const FIELDS = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*$/;

/** As they stand on the wire, but for the framing; undefined when one of them cannot stand there. */
function fieldsOf(list: readonly string[]): string | undefined {
  let text = '';
  let count = 0;
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] as string;
    if (name === 'content-length') continue;
    text += `${name}: ${list[at + 1]}\r\n`;
    count += 1;
  }
  // Each a line, and no lines beyond those: a value cannot have brought one with it.
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) count -= 1;
  return count === 0 && FIELDS.test(text) ? text : undefined;
}

function copyOf(bytes: Buffer, from: number, to: number): Buffer {
  const copy = Buffer.allocUnsafe(to - from);
  bytes.copy(copy, 0, from, to);
  return copy;
}

/** Longer bodies are better off as bytes. */
const MOST_AT_ONCE = 16_384;

/** How node's answers keep the head that was decided until something is sent. */
type Unsent = ServerResponse & { _header?: unknown; _headerSent?: boolean };

/**
 * Head and body leave in one piece: node would hand the connection three. Where its answers do not look as they do now
 * (those of HTTP/2 do not), it is done as usual.
 */
function endWith(response: Unsent, body: string): void {
  const { _header: head } = response;
  if (typeof head !== 'string' || response._headerSent !== false || !head.endsWith('\r\n\r\n')) {
    response.end(body, 'latin1');
    return;
  }
  response._header = response.chunkedEncoding
    ? `${head}${body.length.toString(16)}\r\n${body}\r\n`
    : head + body;
  response.end();
}

/** Never a clean end: where only the close marks the end of the answer, a reset tells that it is not the end. */
export function breakOff(response: ServerResponse, httpVersion: string): void {
  const { socket } = response.req;
  if (httpVersion === '1.0' && !('encrypted' in socket)) socket.resetAndDestroy();
  response.destroy();
}
