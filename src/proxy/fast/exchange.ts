import type { Bearer } from '../../domain/bearer.ts';
import type { Tally } from '../../http/call.ts';
import { flat } from '../../observability/flat-text.ts';
import { errorFields } from '../../observability/logger.ts';
import { BodyBuffer, BodyPace, ReadAhead } from '../client-pace.ts';
import { GrantEnded, REPEATABLE, refusalFor } from '../exchange.ts';
import type { AnswerHead } from '../leg/answer-head.ts';
import { type Asking, askSoon } from '../leg/ask-soon.ts';
import type { BareUpstream } from '../leg/bare-upstream.ts';
import {
  ANSWER_LATE,
  type Asker,
  CONNECT_LATE,
  LostAnswer,
  type UpstreamSocket,
} from '../leg/upstream-socket.ts';
import type { LiveStream, StreamEnd } from '../live-streams.ts';
import type { ProxyRefusal } from '../refuse.ts';
import { Slot, type SlotHolder, type Slots } from '../slots.ts';
import type { Target } from '../targets.ts';
import { type Admitted, bearerOf, wirePath } from '../way-out.ts';
import { answerStart, dateField, fieldText, tail } from './answer-text.ts';
import type { FastConnection } from './connection.ts';

/**
 * - `buffering`: a part of the body must arrive before a connection is used for it.
 * - `waiting`: for a connection slot.
 * - `connecting`, `sending` the body, `asked`: the upstream has it.
 * - `answering`: the answer has begun.
 */
type Stage = 'none' | 'buffering' | 'waiting' | 'connecting' | 'sending' | 'asked' | 'answering';

const LAST_CHUNK = '0\r\n\r\n';
const NOTHING = Buffer.alloc(0);

/** The requests of one connection, one after another, on their way to an upstream and back. */
export class FastExchange implements Asker, Asking, SlotHolder, LiveStream, Tally {
  bearer: Bearer | undefined;
  readonly upgraded = false;
  bytesIn = 0;
  bytesOut = 0;
  upstreamSeconds: number | undefined;
  readonly #connection: FastConnection;
  #stage: Stage = 'none';
  #admitted!: Admitted;
  #upstream!: BareUpstream;
  #slots!: Slots;
  readonly #slot = new Slot(this);
  #socket: UpstreamSocket | undefined;
  #repeated = false;
  /** It was not forwarded as soon as it was admitted. */
  #waited = false;
  #hasTurn = false;
  #queued = false;
  #path = '';
  #fields = '';
  #body: Buffer | undefined;
  #buffer: BodyBuffer | undefined;
  #pace: BodyPace | undefined;
  readonly #readAhead = new ReadAhead();
  /** Bytes of the body that the client has not sent yet. */
  #left = 0;
  #startedAt = 0;
  /** The head of the answer, until it is written together with what follows it. */
  #answerHead = '';
  #chunked = false;
  #corked = false;
  /** The client has not taken what it was given. */
  #stalled = false;
  #unlist: (() => void) | undefined;

  constructor(connection: FastConnection) {
    this.#connection = connection;
  }

  /** More of the body is to come from the client. */
  get wantsBody(): boolean {
    return this.#left > 0;
  }

  get waitsForClient(): boolean {
    return !this.#connection.isPaused;
  }

  get unread(): number {
    return this.#connection.socket.writableLength;
  }

  /** The body of the response is being sent in chunks. */
  get isChunked(): boolean {
    return this.#stage === 'answering' && this.#chunked;
  }

  start(admitted: Admitted, upstream: BareUpstream, body: Buffer | undefined, left: number): void {
    const { generation, fields, id, peer, encrypted, notes } = this.#connection;
    const { rule, target, caller } = admitted;
    this.#admitted = admitted;
    this.#upstream = upstream;
    this.#repeated = false;
    this.#waited = false;
    this.#body = body;
    this.#left = left;
    this.bytesIn = body?.length ?? 0;
    this.bytesOut = 0;
    this.upstreamSeconds = undefined;
    this.#startedAt = performance.now();
    this.#path = wirePath(rule, target);
    const { text, trace } = fields.written.write(generation.headers, fields, {
      requestId: id,
      peer,
      encrypted,
      trustedPeer: this.#connection.isTrusted(),
      host: fields.host,
      forwardAuthorization: rule.forwardAuthorization,
      caller,
      trace: undefined,
    });
    notes.trace = trace;
    this.#fields = text + fieldText(generation.out.assertion(admitted));
    this.bearer = generation.endStreams === 'none' ? undefined : bearerOf(admitted);
    if (generation.endStreams === 'all') this.#watch();
    if (left > 0) this.#bufferBody();
    else this.#enter(upstream.targets.choose());
  }

  /** The body did not arrive with the head: how long the rest takes is up to the client. */
  #bufferBody(): void {
    this.#pace ??= new BodyPace();
    this.#pace.start(this.#upstream.pace);
    this.#stage = 'buffering';
    this.#waited = true;
    this.#buffer = new BodyBuffer(
      this.#connection.request.method,
      this.#upstream.bodyBuffer,
      this.#shareKey(),
    );
    const first = this.#body ?? NOTHING;
    this.#body = undefined;
    this.#addToBuffer(first);
    if (this.#stage === 'buffering') this.#connection.resume();
  }

  #addToBuffer(part: Buffer): void {
    const state = this.#buffer?.add(part);
    if (state === 'full') return this.#refuse({ reason: 'overloaded', retryAfter: 1 });
    if (this.#left === 0 || state === 'enough') {
      this.#body = this.#buffer?.take();
      this.#enter(this.#upstream.targets.choose());
    } else this.#waitForBody(part.length);
  }

  onSlot(): void {
    const ended = this.#waited ? this.#tokenFault() : undefined;
    if (ended !== undefined) return this.end(ended);
    this.#hasTurn = true;
    if (this.#queued) return;
    this.#queued = true;
    askSoon(this);
  }

  /** After all that had come before was read: a connection that is not in step any more is gone by now. */
  ask(): void {
    this.#queued = false;
    try {
      this.#ask();
    } catch (error) {
      this.#connection.onFault(error);
    }
  }

  onFault(error: unknown): void {
    this.#connection.onFault(error);
  }

  #ask(): void {
    // It has left, or will be told in a moment that it has.
    if (!this.#hasTurn || this.#connection.socket.destroyed) return;
    this.#hasTurn = false;
    const { method } = this.#connection.request;
    const sockets = this.#upstream.socketsOf(this.#slots.target);
    const { address } = sockets;
    const toHead = method === 'HEAD';
    const opening = toHead || this.#repeated ? address.openingOnce : address.opening;
    const socket = sockets.take(this.#repeated);
    this.#socket = socket;
    const head = `${method} ${this.#path}${opening}${this.#fields}\r\n`;
    const takesMore = socket.ask(this, toHead, head, this.#body, this.#left === 0);
    this.#body = undefined;
    if (takesMore) this.#freeBuffer();
    if (!socket.connected) {
      this.#stage = 'connecting';
      this.#wait(this.#upstream.timeouts.connect);
      if (this.#left > 0) this.#connection.pause();
    } else this.#send(takesMore);
  }

  /** A part of the body; what is behind it is returned. */
  takeBody(part: Buffer): Buffer | undefined {
    const own = part.length > this.#left ? part.subarray(0, this.#left) : part;
    this.#left -= own.length;
    this.bytesIn += own.length;
    if (this.#stage === 'buffering') this.#addToBuffer(own);
    else {
      const takesMore = this.#socket?.write(own, this.#left === 0) ?? false;
      this.#slot.moved(own.length);
      if (this.#stage === 'sending') this.#send(takesMore, own.length);
      else if (!takesMore) this.#connection.pause();
      if (this.#left === 0) this.#slot.uploaded();
    }
    return own === part ? undefined : part.subarray(own.length);
  }

  onConnected(): void {
    if (this.#stage === 'connecting') this.#send(true);
  }

  onDrain(): void {
    this.#freeBuffer();
    if (this.#stage === 'sending') this.#send(true);
    else if (this.#left > 0) this.#connection.resume();
  }

  #send(takesMore: boolean, bytes = 0): void {
    if (this.#left === 0) {
      this.#stage = 'asked';
      return this.#wait(this.#upstream.timeouts.headers);
    }
    this.#stage = 'sending';
    if (takesMore) {
      if (this.#connection.isPaused) this.#pace?.resumed();
      this.#connection.resume();
      this.#waitForBody(bytes);
    } else {
      this.#connection.pause();
      this.#wait(this.#upstream.timeouts.idle);
    }
  }

  #waitForBody(bytes: number): void {
    const pace = this.#pace;
    if (pace === undefined) return;
    if (bytes > 0) pace.moved(bytes);
    this.#connection.deadline = pace.deadline;
  }

  onHead(head: AnswerHead): void {
    const { generation, id, request } = this.#connection;
    const { status, framing } = head;
    this.#stage = 'answering';
    this.upstreamSeconds = (performance.now() - this.#startedAt) / 1_000;
    this.#upstream.targets.answered(this.#slots.target);
    if (this.bearer !== undefined && generation.endStreams !== 'all' && head.events) this.#watch();
    // It answered without hearing the client out: nobody knows whether the rest will come.
    if (this.#left > 0) this.#connection.closeAfterThis();
    this.#chunked = (framing === 'chunked' || framing === 'close') && request.method !== 'HEAD';
    this.#connection.begin(status);
    this.#answerHead =
      answerStart(status) +
      id +
      this.#fieldsFor(head) +
      (head.dated ? '' : dateField()) +
      (this.#chunked ? 'Transfer-Encoding: chunked\r\n' : '') +
      tail(this.#connection.isLast());
  }

  /** What the header rules leave of an answer's fields, behind the id; the same for the same head, unless it leads elsewhere. */
  #fieldsFor(head: AnswerHead): string {
    const { generation, fields, id } = this.#connection;
    const { headers } = generation;
    if (head.writtenBy === headers) return head.written;
    const location = head.leads ? generation.out.locationFor(this.#admitted, fields.host) : undefined;
    const [, given, ...list] = headers.forClient(head.rawHeaders, head.status, id, location);
    if (given !== id) throw new Error('the header rules begin with the id');
    const text = flat(`\r\n${fieldText(list)}`);
    if (!head.leads) {
      head.writtenBy = headers;
      head.written = text;
    }
    return text;
  }

  onData(bytes: Buffer, from: number, end: number): boolean {
    const { socket } = this.#connection;
    const size = end - from;
    this.bytesOut += size;
    const before = this.#chunked ? `${this.#answerHead}${size.toString(16)}\r\n` : this.#answerHead;
    const after = this.#chunked ? 2 : 0;
    this.#answerHead = '';
    // The buffer is not ours; head and body leave as one.
    const length = before.length + size + after;
    const loan = this.#connection.office.buffers.borrow(length);
    const out = loan === undefined ? Buffer.allocUnsafe(length) : loan.bytes;
    out.write(before, 0, 'latin1');
    bytes.copy(out, before.length, from, end);
    if (this.#chunked) {
      out.write('\r\n', before.length + size, 'latin1');
      this.#cork();
    }
    if (loan === undefined ? socket.write(out) : socket.write(out.subarray(0, length), loan.written))
      return true;
    if (this.#readAhead.allows(socket.writableLength, this.#shareKey())) return true;
    this.#stalled = true;
    this.#slot.stalled();
    return false;
  }

  onRead(): void {
    if (this.#stage !== 'answering') return;
    if (this.#answerHead !== '') {
      this.#connection.socket.write(this.#answerHead, 'latin1');
      this.#answerHead = '';
    }
    this.#uncork();
    // A client that reads nothing keeps a connection from others.
    this.#wait(this.#upstream.timeouts.idle);
  }

  onWhole(kept: boolean): void {
    const { socket } = this.#connection;
    this.#socket = undefined;
    this.#left = 0;
    this.#leave(kept);
    const rest = this.#chunked ? this.#answerHead + LAST_CHUNK : this.#answerHead;
    this.#answerHead = '';
    if (rest !== '') socket.write(rest, 'latin1');
    this.#uncork();
    this.#connection.answered(!socket.writableNeedDrain);
  }

  onLost(cause: LostAnswer): void {
    this.#socket = undefined;
    if (this.#stage === 'answering') return this.#broken(cause);
    if (!cause.idleClose) this.#upstream.targets.failed(this.#slots.target);
    if (this.#mayRepeat(cause)) return this.#repeat(cause);
    this.#fail({ reason: cause.code === CONNECT_LATE ? 'upstream_too_slow' : 'upstream_failed' }, cause);
  }

  /** The client takes more of the answer. */
  clientReads(): void {
    this.#readAhead.end();
    if (!this.#stalled) return;
    this.#stalled = false;
    this.#slot.flowing();
    this.#wait(this.#upstream.timeouts.idle);
    this.#socket?.resume();
  }

  /** The client has left. */
  abandon(reason = 'client_left'): void {
    this.#connection.notes.reason = reason;
    this.#letGo();
  }

  /** Nothing waits for the client any more, or the client has left. */
  flushed(): void {
    this.#readAhead.end();
  }

  onEvicted(): void {
    if (this.#stage !== 'answering') return this.#refuse({ reason: 'client_too_slow' });
    this.abandon('client_too_slow');
    this.#connection.breakOff();
  }

  end(why: StreamEnd): void {
    const ended = new GrantEnded(why);
    const { notes, generation, id } = this.#connection;
    if (this.#stage !== 'answering') return this.#refuse(refusalFor(ended));
    const { rule, caller } = this.#admitted;
    notes.reason = `ended: ${why === 'going_away' ? why : `token_${why}`}`;
    generation.log.info('stream_ended', {
      request_id: id,
      rule: rule.name,
      grant: caller?.bearer.grantId,
      why,
    });
    this.#letGo();
    this.#connection.breakOff();
  }

  late(): void {
    switch (this.#stage) {
      case 'waiting':
        return this.#refuse({ reason: 'overloaded', retryAfter: 1 });
      case 'connecting':
        this.#socket?.drop();
        return this.onLost(new LostAnswer('no connection in time', CONNECT_LATE, { unreached: true }));
      case 'buffering':
        return this.#refuse({ reason: 'client_too_slow' });
      case 'sending':
        if (this.waitsForClient) return this.#refuse({ reason: 'client_too_slow' });
        return this.#fail({ reason: 'upstream_too_slow' }, new LostAnswer('takes no body', ANSWER_LATE));
      case 'asked':
        return this.#fail({ reason: 'upstream_too_slow' }, new LostAnswer('no answer in time', ANSWER_LATE));
      case 'answering':
        if (!this.#stalled) return this.#broken(new LostAnswer('no more in time', ANSWER_LATE));
        if (this.#readAhead.hasRead(this.#connection.socket.writableLength))
          return this.#wait(this.#upstream.timeouts.idle);
        this.abandon('client_too_slow');
        return this.#connection.breakOff();
      case 'none':
    }
  }

  /** The client for whom it uses a connection: an identity, or a network. */
  #shareKey(): string {
    return this.#admitted.caller?.bearer.identity ?? this.#connection.network();
  }

  #tokenFault(): StreamEnd | undefined {
    const bearer = bearerOf(this.#admitted);
    return bearer && this.#connection.generation.streams.faultOf(bearer);
  }

  #freeBuffer(): void {
    this.#buffer?.free();
    this.#buffer = undefined;
  }

  #enter(target: Target): void {
    this.#slots = this.#upstream.slotsOf(target);
    this.#stage = 'waiting';
    this.#wait(this.#upstream.timeouts.headers);
    if (this.#left > 0) this.#connection.pause();
    const isAccepted = this.#slot.enter(this.#slots, this.#shareKey(), this.#left > 0);
    this.#waited = true;
    if (!isAccepted) this.#refuse({ reason: 'overloaded', retryAfter: 1 });
  }

  /** RFC 9110 §9.2.2, RFC 9112 §9.3.1: a connection may be closed for being idle just when we use it again. */
  #mayRepeat({ idleClose, unreached }: LostAnswer): boolean {
    const { request, fields } = this.#connection;
    if (this.#repeated || fields.framing !== 'none' || !REPEATABLE.has(request.method)) return false;
    return idleClose || (unreached && this.#upstream.targets.hasOther(this.#slots.target));
  }

  #repeat(cause: LostAnswer): void {
    this.#slot.leave();
    this.#repeated = true;
    this.#report('upstream_asked_again', cause);
    this.#enter(this.#upstream.targets.another(this.#slots.target));
  }

  /** The upstream gave no answer. */
  #fail(refusal: ProxyRefusal, cause: LostAnswer): void {
    this.#report('upstream_failed', cause);
    this.#refuse(refusal);
  }

  #refuse(refusal: ProxyRefusal): void {
    const unheard = this.#left > 0;
    this.#letGo();
    if (unheard) this.#connection.closeAfterThis();
    this.#connection.refuse(refusal);
  }

  #broken(cause: LostAnswer): void {
    this.#connection.notes.reason = 'upstream_broke_off';
    this.#report('upstream_broke_off', cause);
    this.#letGo();
    this.#connection.breakOff();
  }

  #report(event: string, cause: LostAnswer): void {
    const { generation, id } = this.#connection;
    const upstream = this.#admitted.rule.upstream;
    generation.log.warn(event, { request_id: id, upstream, ...errorFields(cause), stack: undefined });
  }

  #watch(): void {
    this.#unlist = this.#connection.generation.streams.add(this);
  }

  #wait(seconds: number): void {
    this.#connection.deadline = this.#connection.office.deadlines.in(seconds);
  }

  #letGo(): void {
    this.#socket?.drop();
    this.#socket = undefined;
    this.#left = 0;
    this.#leave();
  }

  /** `later`: its place in the line becomes free together with its connection. */
  #leave(later = false): void {
    if (this.#stage === 'none') return;
    this.#stage = 'none';
    this.#hasTurn = false;
    this.#stalled = false;
    this.#body = undefined;
    this.#freeBuffer();
    this.#unlist?.();
    this.#unlist = undefined;
    this.#slot.leave(later);
  }

  #cork(): void {
    if (this.#corked) return;
    this.#corked = true;
    this.#connection.socket.cork();
  }

  #uncork(): void {
    if (!this.#corked) return;
    this.#corked = false;
    this.#connection.socket.uncork();
  }
}
