import type { Socket } from 'node:net';
import type { CallNote, DoneCall } from '../../http/call.ts';
import { errorFields } from '../../observability/logger.ts';
import { clientAddress, NO_PEERS, requestId } from '../../tls/caller.ts';
import { endWith } from '../../tls/client-error.ts';
import type { Session, TakenConnection } from '../../tls/first-reader.ts';
import { type AwaitedPart, probeHalfClosed } from '../../tls/half-close.ts';
import { KEEP_ALIVE_SECONDS, STALLED_SECONDS } from '../../tls/listener-options.ts';
import { type Admission, type AdmissionQuestion, admit } from '../admission.ts';
import { networkKey } from '../client-pace.ts';
import type { BareUpstream } from '../leg/bare-upstream.ts';
import type { Due } from '../leg/deadlines.ts';
import { type ProxyRefusal, reasonOf, refusalAnswer } from '../refuse.ts';
import type { Admitted } from '../way-out.ts';
import { earlyText } from './answer-text.ts';
import { FastExchange } from './exchange.ts';
import type { FastGeneration } from './generation.ts';
import { type HandOver, HEAD_END, isFramedAsUsual, isHopeless, readRequestLine } from './grammar.ts';
import type { LaneOffice } from './lane.ts';
import type { ReadFields } from './repeated-fields.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/**
 * - `idle`: between two requests; what is held is the beginning of the next one.
 * - `judging`: a token is being read; nothing was taken of the request yet.
 * - `busy`: a request is with its upstream, or its answer on its way.
 * - `flushing`: the last of an answer is on its way to a slow client.
 * - `lingering`: the last answer was given; what still comes is not looked at.
 */
type State = 'idle' | 'judging' | 'busy' | 'flushing' | 'lingering' | 'gone';

/** How long and in how many reads a head may come before the full lane waits for the rest of it. */
const HEAD_MS = 400;
const HEAD_READS = 8;
const LINGER_MS = 2_000;
const LINGER_BYTES = 1_048_576;

/** One client's connection in the fast lane: reads heads, asks for a judgement, and keeps requests in their order. */
export class FastConnection implements Session, DoneCall, Due {
  /** When what is awaited is late, by `performance.now()`. */
  deadline: number;
  before: Due | undefined = undefined;
  after: Due | undefined = undefined;
  readonly office: LaneOffice;
  readonly socket: Socket;
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  readonly certificate: () => Buffer | undefined;
  /** Of the request that is being worked on. */
  id = '';
  clientAddress = '';
  notes: Mutable<CallNote> = {};
  readonly request = { method: '', url: '', rawHeaders: [] as string[] };
  fields!: ReadFields;
  generation!: FastGeneration;
  readonly #taken: TakenConnection;
  readonly #exchange: FastExchange;
  readonly #question: Mutable<AdmissionQuestion>;
  #state: State = 'idle';
  #serving = false;
  #held: Buffer | undefined;
  #reads = 0;
  #headEnd = 0;
  #paused = false;
  #requests = 0;
  #arrivedAt = 0;
  #status = 0;
  /** The status line of the response is written, or about to be. */
  #begun = false;
  /** The client has ended its side of the connection. */
  #inputOver = false;
  /** No more requests after this one: the client said so, or we did. */
  #close = false;
  #draining: 'no' | 'soon' | 'now' = 'no';
  #discarded = 0;
  #trustedBy: FastGeneration | undefined;
  #trusted = false;
  #endProbe: (() => void) | undefined;
  #networkOf: string | undefined;
  #network = '';

  constructor(office: LaneOffice, taken: TakenConnection) {
    this.office = office;
    this.#taken = taken;
    this.socket = taken.socket;
    this.peer = taken.peer;
    this.sourceUnknown = taken.sourceUnknown;
    this.encrypted = taken.encrypted;
    this.certificate = taken.certificate;
    this.#exchange = new FastExchange(this);
    this.#question = {
      method: '',
      url: '',
      host: '',
      credentials: { kind: 'none' },
      certificate: () => this.generation.certificateOf(this),
      now: 0,
    };
    this.deadline = performance.now() + office.limits.headerTimeout * 1_000;
    office.deadlines.add(this);
    this.socket.on('data', this.#onData).on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd).on('close', this.#onClose);
  }

  isBusy(): boolean {
    return this.#state !== 'idle' || this.#held !== undefined;
  }

  drain(now: boolean): void {
    this.#draining = now ? 'now' : 'soon';
  }

  /** Is the answer that is being written the last one? Asked once, when its head is written. */
  isLast(): boolean {
    this.#close ||= this.#draining !== 'no';
    return this.#close;
  }

  /** The network of the client, by which requests without a token share connections. */
  network(): string {
    if (this.#networkOf !== this.clientAddress) {
      this.#networkOf = this.clientAddress;
      this.#network = networkKey(this.clientAddress);
    }
    return this.#network;
  }

  /** Is the other end a proxy that is listed in the configuration of this request? */
  isTrusted(): boolean {
    if (this.#trustedBy !== this.generation) {
      this.#trustedBy = this.generation;
      this.#trusted = !this.sourceUnknown && this.generation.trusts(this.peer);
    }
    return this.#trusted;
  }

  closeAfterThis(): void {
    this.#close = true;
  }

  get isPaused(): boolean {
    return this.#paused;
  }

  pause(): void {
    if (this.#paused) return;
    this.#paused = true;
    this.socket.pause();
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.socket.resume();
  }

  late(): void {
    if (this.#state === 'busy') this.#exchange.late();
    else if (this.#state === 'idle' && this.#held !== undefined) this.#handOver('head');
    else if (this.#state !== 'idle' || this.#requests > 0) this.socket.destroy();
    // Like everywhere: a connection on which nothing is asked for in time.
    else this.#end(() => endWith(this.socket, 408));
  }

  /** A mistake of ours ends this connection, and no other. */
  onFault(error: unknown): void {
    this.office.log.error('unexpected_error', { request_id: this.id, ...errorFields(error) });
    this.socket.destroy();
  }

  readonly #onData = (part: Buffer): void => {
    try {
      this.#read(part);
    } catch (error) {
      this.onFault(error);
    }
  };

  #read(part: Buffer): void {
    if (this.#state === 'busy' && this.#exchange.wantsBody) {
      const rest = this.#exchange.takeBody(part);
      if (rest === undefined) return;
      // The request may have been refused in between.
      if (this.#state === 'busy') this.#hold(rest);
      else this.#read(rest);
      return;
    }
    if (this.#state === 'lingering') {
      this.#discarded += part.length;
      if (this.#discarded > LINGER_BYTES) this.socket.destroy();
      return;
    }
    this.#held = this.#held === undefined ? part : Buffer.concat([this.#held, part]);
    if (this.#state !== 'idle') return this.pause();
    this.#reads += 1;
    this.#serve();
  }

  /** What came behind the request: one read of it, and then its turn is waited for. */
  #hold(rest: Buffer): void {
    this.#held = rest;
    this.pause();
  }

  readonly #onDrain = (): void => {
    try {
      this.#exchange.flushed();
      if (this.#state === 'flushing') this.#finish();
      else if (this.#state === 'busy') this.#exchange.clientReads();
    } catch (error) {
      this.onFault(error);
    }
  };

  readonly #onEnd = (): void => {
    try {
      this.#inputEnded();
    } catch (error) {
      this.onFault(error);
    }
  };

  /** The client sends nothing more, and may wait for its responses. */
  #inputEnded(): void {
    const { socket } = this;
    this.#inputOver = true;
    if (this.#state === 'idle') {
      if (this.#held === undefined) socket.end();
      // A request that will never be complete.
      else this.#handOver('head');
      return;
    }
    if (this.#held === undefined) this.#close = true;
    if (this.#state !== 'busy') return;
    if (!this.#exchange.wantsBody) return this.#probe();
    if (this.#begun) return void socket.destroy();
    this.#exchange.abandon();
    this.refuse({ reason: 'malformed', detail: 'the body broke off' });
  }

  /** For each request: one that waited behind others is probed as often as they were. */
  #probe(): void {
    this.#endProbe?.();
    this.#endProbe = probeHalfClosed(this.socket, this.#awaited);
  }

  readonly #awaited = (): AwaitedPart => {
    if (this.#state !== 'busy') return 'other';
    if (!this.#begun) return 'status-line';
    return this.#exchange.isChunked ? 'chunk' : 'other';
  };

  readonly #onClose = (): void => {
    this.office.deadlines.remove(this);
    this.#exchange.flushed();
    const state = this.#state;
    if (state === 'gone') return;
    this.#state = 'gone';
    if (state === 'busy') this.#exchange.abandon();
    if (state === 'busy' || state === 'flushing') this.#tell(true);
  };

  /** As many requests as are there and can be answered at once. */
  #serve(): void {
    if (this.#serving) return;
    this.#serving = true;
    while (this.#state === 'idle' && this.#held !== undefined && this.#serveNext(this.#held));
    this.#serving = false;
  }

  /** False: more of it must come first. */
  #serveNext(held: Buffer): boolean {
    const { limits, maxUrl } = this.office;
    const text = held.toString('latin1', 0, Math.min(held.length, limits.headers));
    const end = text.indexOf(HEAD_END);
    if (end < 0) return this.#waitForHead(text);
    const lineEnd = text.indexOf('\r\n');
    const line = readRequestLine(text.slice(0, lineEnd));
    if (line === undefined) return this.#pass('head');
    if (line.target.length > maxUrl) return this.#pass('size');
    const block = text.slice(lineEnd + 2, end + 2);
    const fields = this.office.memory.read(block);
    if (typeof fields === 'string') return this.#pass(fields);
    this.fields = fields;
    if (!isFramedAsUsual(line.method, fields)) return this.#pass('framing');
    const generation = this.office.current();
    if (generation === undefined) return this.#pass('off');
    if ((fields.contentLength ?? 0) > generation.maxBodyBytes) return this.#pass('size');
    if (generation.looksOurs(line.target)) return this.#pass('service');
    if (this.#taken.misdirects?.(fields.host) === true) return this.#pass('host');
    if (!generation.acceptsHost(fields.host, this.peer, this.socket)) return this.#pass('host');
    this.generation = generation;
    this.#headEnd = end + HEAD_END.length;
    this.request.method = line.method;
    this.request.url = line.target;
    this.request.rawHeaders = fields.rawHeaders as string[];
    // The full path refuses it.
    if (generation.isAmbiguous(this)) return this.#pass('refused');
    this.#judge();
    return true;
  }

  #waitForHead(begun: string): boolean {
    if (begun.length >= this.office.limits.headers) return this.#pass('size');
    if (this.#reads > HEAD_READS || this.#inputOver || isHopeless(begun)) return this.#pass('head');
    this.deadline = performance.now() + HEAD_MS;
    return false;
  }

  #judge(): void {
    const question = this.#question;
    question.method = this.request.method;
    question.url = this.request.url;
    question.host = this.fields.host;
    question.credentials = this.fields.credentials;
    question.now = this.office.now();
    let admission: Admission | Promise<Admission>;
    try {
      admission = admit(this.generation.desk, question);
    } catch {
      // The full lane meets the same fault and knows what to say.
      return this.#handOver('refused');
    }
    if (!(admission instanceof Promise)) return this.#proceed(admission);
    this.#state = 'judging';
    this.deadline = Number.POSITIVE_INFINITY;
    // Its configuration must not be closed meanwhile.
    const { generation } = this;
    generation.enter();
    void admission
      .then(
        (settled) => this.#settled(settled),
        () => this.#settled(undefined),
      )
      .finally(() => generation.leave());
  }

  #settled(admission: Admission | undefined): void {
    // The client may have left while its token was being read.
    if (this.#state !== 'judging') return;
    this.#state = 'idle';
    try {
      if (admission === undefined) return this.#handOver('refused');
      this.#proceed(admission);
      this.#serve();
    } catch (error) {
      this.onFault(error);
    }
  }

  #proceed(admission: Admission): void {
    const held = this.#held as Buffer;
    const bodyEnd = this.#headEnd + (this.fields.contentLength ?? 0);
    if (admission.kind !== 'admitted') {
      // Pages of other origins must be able to read why.
      if (admission.kind === 'refused' && admission.rule?.cors !== undefined) return this.#handOver('rule');
      if (admission.kind === 'refused' && isAnsweredHere(admission.refusal) && held.length >= bodyEnd)
        this.#turnAway(admission, bodyEnd);
      else this.#handOver('refused');
      return;
    }
    const { rule, wouldRefuse } = admission;
    if (rule.cors !== undefined || wouldRefuse !== undefined) return this.#handOver('rule');
    const upstream = this.generation.bareOf(rule);
    if (upstream === undefined) return this.#handOver('upstream');
    if (this.#inputOver && held.length < bodyEnd) return this.#handOver('framing');
    this.#carry(admission, upstream, held, bodyEnd);
  }

  #carry(admitted: Admitted, upstream: BareUpstream, held: Buffer, bodyEnd: number): void {
    const { caller, rule } = admitted;
    const have = Math.min(held.length, bodyEnd);
    const body = have > this.#headEnd ? held.subarray(this.#headEnd, have) : undefined;
    const left = bodyEnd - have;
    this.#take(bodyEnd);
    if (this.#held === undefined) this.resume();
    this.notes =
      caller === undefined
        ? { rule: rule.name, upstream: rule.upstream, decision: 'forwarded', carried: this.#exchange }
        : {
            rule: rule.name,
            upstream: rule.upstream,
            identity: caller.bearer.identity,
            clientId: caller.bearer.clientId,
            grantId: caller.bearer.grantId,
            decision: 'forwarded',
            carried: this.#exchange,
          };
    this.office.onBegin?.(this);
    this.#exchange.start(admitted, upstream, body, left);
  }

  /** From here on the request is ours to answer. */
  #take(bodyEnd: number): void {
    const held = this.#held as Buffer;
    const trustedProxies = this.sourceUnknown ? NO_PEERS : this.generation.trustedProxies;
    const { rawHeaders } = this.request;
    this.#held = held.length > bodyEnd ? held.subarray(bodyEnd) : undefined;
    this.#reads = 0;
    this.#requests += 1;
    this.#state = 'busy';
    this.#close = this.fields.close || (this.#inputOver && this.#held === undefined);
    // As node has it for a client that leaves before it was answered.
    this.#status = 200;
    this.#begun = false;
    this.#arrivedAt = this.#question.now;
    this.id = requestId(this.peer, rawHeaders, trustedProxies);
    this.clientAddress = clientAddress(this.peer, rawHeaders, trustedProxies);
    this.generation.enter();
    if (this.#inputOver) this.#probe();
  }

  #turnAway(admission: Admission & { readonly kind: 'refused' }, bodyEnd: number): void {
    const { refusal, rule, caller, tried } = admission;
    this.#take(bodyEnd);
    this.notes = {
      ...(rule !== undefined && { rule: rule.name, upstream: rule.upstream }),
      ...(caller !== undefined && {
        identity: caller.bearer.identity,
        clientId: caller.bearer.clientId,
        grantId: caller.bearer.grantId,
      }),
    };
    this.office.onBegin?.(this);
    this.refuse(refusal, tried === undefined ? undefined : `no_rule (${tried})`);
  }

  /** Answers in the name of the gateway, before anything was answered in the name of the upstream. */
  refuse(refusal: ProxyRefusal, why = reasonOf(refusal)): void {
    this.notes.decision = 'refused';
    this.notes.reason = why;
    const answer = refusalAnswer(refusal, { realm: this.generation.realm, requestId: this.id });
    if (answer.close) this.#close = true;
    this.begin(answer.status);
    this.answered(this.socket.write(earlyText(answer, this.request.method === 'HEAD', this.isLast())));
  }

  begin(status: number): void {
    this.#status = status;
    this.#begun = true;
  }

  /** The answer is written; `taken`: and nothing of it waits for the client. */
  answered(taken: boolean): void {
    if (taken) return this.#finish();
    this.#state = 'flushing';
    this.deadline = performance.now() + STALLED_SECONDS * 1_000;
  }

  /** The answer cannot be finished: the client must not take what it has for the whole. */
  breakOff(): void {
    this.#state = 'gone';
    this.#tell(true);
    this.socket.destroy();
  }

  #finish(): void {
    this.#tell(false);
    if (this.#close || this.#draining === 'now') return this.#end(() => this.socket.end());
    this.#state = 'idle';
    this.deadline = this.office.deadlines.in(KEEP_ALIVE_SECONDS);
    if (this.#held === undefined) return this.resume();
    if (this.#serving) return;
    this.resume();
    this.#serve();
  }

  #tell(aborted: boolean): void {
    const { generation, office } = this;
    office.onDone(this, { status: this.#status, seconds: office.now() - this.#arrivedAt, aborted });
    generation.leave();
  }

  /** RFC 9112 §9.6: what the client still sends is taken, so that no reset takes our answer with it. */
  #end(say: () => void): void {
    this.#state = 'lingering';
    this.#held = undefined;
    this.deadline = performance.now() + LINGER_MS;
    say();
    this.resume();
  }

  #pass(reason: HandOver): boolean {
    this.#handOver(reason);
    return false;
  }

  /** Every byte of what is not answered yet goes back, and nobody here looks at the connection again. */
  #handOver(reason: HandOver): void {
    const { socket } = this;
    this.#state = 'gone';
    this.#endProbe?.();
    this.office.deadlines.remove(this);
    socket.off('data', this.#onData).off('drain', this.#onDrain);
    socket.off('end', this.#onEnd).off('close', this.#onClose);
    this.office.handedOver(socket, reason);
    const held = this.#held;
    this.#held = undefined;
    if (this.#inputOver) {
      // Nothing can be put back into a stream that has ended.
      this.#taken.handOver();
      if (held !== undefined) socket.emit('data', held);
      socket.emit('end');
      return;
    }
    socket.pause();
    if (held !== undefined) socket.unshift(held);
    this.#taken.handOver();
    socket.resume();
  }
}

/** Those that are told often and leave the connection as it is. */
const ANSWERED_HERE: ReadonlySet<ProxyRefusal['reason']> = new Set([
  'token_missing',
  'token_invalid',
  'no_rule',
  'client_not_admitted',
  'scope_unmet',
]);
const isAnsweredHere = ({ reason }: ProxyRefusal): boolean => ANSWERED_HERE.has(reason);
