import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Dispatcher } from 'undici';
import type { Tally } from '../http/call.ts';
import { BodyPace, bufferFor, type PaceTerms, ReadAhead, STREAM_WAIT } from './client-pace.ts';
import type { AnswerHead } from './leg/answer-head.ts';
import { ANSWER_LATE, CONNECT_LATE } from './leg/upstream-socket.ts';
import type { StreamEnd } from './live-streams.ts';
import type { Patience, Waiting } from './patience.ts';
import { discardRest, type ProxyRefusal } from './refuse.ts';
import { BodyFault, RequestBody } from './request-body.ts';
import { EXPECTS_BODY } from './request-head.ts';
import { Slot, type SlotHolder, type Slots } from './slots.ts';
import type { Target, Targets } from './targets.ts';
import { type Connection, type Pool, wasUsedBefore } from './upstream-pool.ts';
import type { UpstreamSettings } from './upstream-settings.ts';

export interface ForwardJob {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: string;
  /** Path and query, as they go on the wire. */
  readonly path: string;
  readonly headers: string[];
  readonly hasBody: boolean;
  /** As the client named it; a body without one is as long as it is. */
  readonly bodyLength: number | undefined;
  readonly maxBodyBytes: number;
  /** The client for whom it uses a connection: an identity, or a network. */
  readonly shareKey: string;
  /** `head`: where they were read, and where what was made of them is kept. */
  answerHeaders(rawHeaders: readonly string[], status: number, head?: AnswerHead): string[];
  /** Why a request that has waited may not be forwarded any more: its token has ended meanwhile. */
  tokenFault(): StreamEnd | undefined;
  /** The upstream gave no answer: tell the client, and the log. Called at most once, before anything was sent. */
  failed(refusal: ProxyRefusal, cause: unknown): void;
  /** The exchange broke after its answer had begun. */
  broken(cause: unknown): void;
  /** It is asked once more, since nothing of it had been answered. */
  repeated(cause: unknown): void;
}

/** A request under way, and how far it has come. */
export interface Carried extends Tally {
  /** Ends it for both sides, in a way that neither can take for the proper end. */
  cut(why: StreamEnd): void;
}

/** The connections to one target. */
export interface PoolLine {
  readonly slots: Slots;
  readonly pool: () => Pool;
  /** Connections that are used once: what is asked again must not meet another one that has been closed meanwhile. */
  readonly fresh: () => Pool;
}

export interface Lines {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly pace: PaceTerms;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  readonly lineOf: (target: Target) => PoolLine;
  /** For a turn, and for the connection it is about. */
  readonly turns: Patience;
}

/** RFC 9110 §9.2.2, without those that come with a body: a body is read once. */
export const REPEATABLE: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE']);

/**
 * It came behind another request of its connection, the body of which is read a moment later: it must not overtake it
 * (RFC 9112 §9.3.2).
 */
export const isPipelined = ({ request, response }: ForwardJob): boolean =>
  response.socket === null && request.httpVersion !== '2';

/** One request and its answer: what happens to either side is told to the other. */
export class Exchange implements Dispatcher.DispatchHandler, Carried, SlotHolder, Waiting {
  place: Waiting['place'];
  readonly #lines: Lines;
  readonly #job: ForwardJob;
  readonly #timeouts: UpstreamSettings['timeouts'];
  readonly #slot = new Slot(this);
  readonly #readAhead = new ReadAhead();
  readonly #pace = new BodyPace();
  #line!: PoolLine;
  #pool: Pool | undefined;
  #connection: Connection | undefined;
  #controller: Dispatcher.DispatchController | undefined;
  #body: RequestBody | undefined;
  #patience: NodeJS.Timeout | undefined;
  /** `given`: the HTTP client has it, but no connection for it yet, and cannot be stopped before it has one. */
  #stage: 'buffering' | 'waiting' | 'given' | 'begun' | 'left' = 'waiting';
  #repeated = false;
  /** It was not forwarded as soon as it was admitted. */
  #waited = false;
  /** Something of the answer has come, if only its first byte. */
  #heard = false;
  #bodySentAt = 0;
  readonly #begunAt = performance.now();
  upstreamSeconds: number | undefined;
  bytesOut = 0;
  #answering = false;
  /** The client has not read what was written. */
  #stalled = false;
  #drains = false;
  /** The answer came to its proper end. */
  #ended = false;
  #over = false;

  constructor(lines: Lines, job: ForwardJob) {
    this.#lines = lines;
    this.#job = job;
    this.#timeouts = lines.timeouts;
  }

  /** False when it was refused at once. */
  start(): boolean {
    const { request, response, hasBody, maxBodyBytes } = this.#job;
    response.on('close', () => {
      this.#readAhead.end();
      this.#clientLeft();
    });
    if (hasBody) this.#bufferBody(new RequestBody(request, maxBodyBytes));
    else if (isPipelined(this.#job))
      setImmediate(() => {
        if (!this.#over) this.#enter(this.#lines.targets.choose());
      });
    else this.#enter(this.#lines.targets.choose());
    return !this.#over;
  }

  /** How long the body takes to arrive is up to the client. */
  #bufferBody(body: RequestBody): void {
    const { method, bodyLength, shareKey } = this.#job;
    const isStream = bodyLength === undefined && EXPECTS_BODY.has(method);
    this.#body = body;
    this.#waited = true;
    this.#stage = 'buffering';
    this.#pace.start(this.#lines.pace);
    const enough = (fault?: BodyFault): void => {
      if (this.#stage !== 'buffering' || this.#over) return;
      clearTimeout(this.#patience);
      if (fault === undefined) return this.#enter(this.#lines.targets.choose());
      this.#finish();
      this.#job.failed(refusalFor(fault), fault);
    };
    if (isStream) this.#patience = setTimeout(() => body.endBuffering(), STREAM_WAIT);
    else this.#waitForBody();
    const { bodyBuffer } = this.#lines;
    body.buffer(bufferFor(method, bodyBuffer, shareKey), bodyLength, enough, (bytes) => {
      this.#pace.moved(bytes);
      if (this.#stage !== 'buffering') this.#slot.moved(bytes);
    });
  }

  /** Each part that arrives or is sent moves the deadline; the timer looks at it when it fires. */
  #waitForBody(): void {
    const now = performance.now();
    const idle = this.#timeouts.idle * 1_000;
    const isClient = this.#stage === 'buffering' || this.waitsForClient;
    // While the upstream takes nothing, the client's time does not run.
    if (!isClient) this.#pace.resumed();
    const deadline = isClient ? this.#pace.deadline : this.#bodySentAt + idle;
    if (deadline <= now) return this.#bodyStalled();
    clearTimeout(this.#patience);
    this.#patience = setTimeout(() => this.#waitForBody(), Math.min(deadline - now, idle) + 1);
  }

  get waitsForClient(): boolean {
    // Until there is a connection, nothing waits for the client.
    return this.#stage === 'begun' && this.#body?.waitsForClient === true;
  }

  onEvicted(): void {
    const fault = new BodyFault('client_too_slow');
    if (this.#answering && !this.#over) {
      this.#finish();
      this.#job.broken(fault);
      this.#job.response.destroy();
    }
    this.#controller?.abort(fault);
  }

  get unread(): number {
    return this.#job.response.writableLength;
  }

  get bytesIn(): number {
    return this.#body?.bytes ?? 0;
  }

  cut(why: StreamEnd): void {
    if (this.#over) return;
    const ended = new GrantEnded(why);
    if (this.#controller !== undefined) {
      this.#controller.abort(ended);
      return;
    }
    this.#finish();
    this.#job.failed(refusalFor(ended), ended);
  }

  #enter(target: Target): void {
    this.#line = this.#lines.lineOf(target);
    this.#stage = 'waiting';
    this.#lines.turns.begin(this);
    const isUpload = this.#body !== undefined && !this.#body.hasArrived;
    const isAccepted = this.#slot.enter(this.#line.slots, this.#job.shareKey, isUpload);
    this.#waited = true;
    if (isAccepted) return;
    this.#finish();
    this.#job.failed({ reason: 'overloaded', retryAfter: 1 }, undefined);
  }

  onSlot(): void {
    const ended = this.#waited ? this.#job.tokenFault() : undefined;
    if (ended !== undefined) return this.cut(ended);
    const { method, path, headers } = this.#job;
    this.#stage = 'given';
    this.#pool = this.#repeated ? this.#line.fresh() : this.#line.pool();
    this.#connection = this.#pool.take();
    const body = this.#body ?? null;
    // RFC 9110 §9.3.1: where nobody expects a body, a server may take it for the next request. There is none after it.
    const isLast = body !== null && !EXPECTS_BODY.has(method);
    // `blocking` is about others that wait for the same connection: there are none.
    this.#connection.client.dispatch(
      { method, path, headers, body, blocking: false, ...(isLast && { reset: true }) },
      this,
    );
  }

  #leave(): void {
    if (this.#stage === 'left') return;
    this.#stage = 'left';
    if (this.#connection !== undefined) this.#pool?.giveBack(this.#connection, this.#ended);
    this.#slot.leave();
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    this.#stage = 'begun';
    this.#lines.turns.end(this);
    this.#connection?.sieve.expect();
    // It may have waited for a connection longer than its client did.
    if (this.#over) controller.abort(new BodyFault('client_gone'));
    else if (this.#body !== undefined) {
      this.#bodySentAt = performance.now();
      this.#pace.resumed();
      this.#waitForBody();
    }
  }

  onBodySent(): void {
    this.#bodySentAt = performance.now();
  }

  onRequestSent(): void {
    this.#slot.uploaded();
    // undici's own timer may have run out unheard while the body was being sent.
    if (this.#body !== undefined && !this.#answering)
      this.#wait(this.#timeouts.headers, () => this.#headersLate());
  }

  onResponseStarted(): void {
    this.#heard = true;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    if (this.#over) return;
    // Steps on the way (1xx) were taken out before.
    if (status < 200) return controller.abort(new Error('a step where none is expected'));
    const given = textOf(controller.rawHeaders);
    if (!isCodedAsUsual(given)) return controller.abort(new Error('a transfer coding that is not served'));
    this.#answering = true;
    this.upstreamSeconds = (performance.now() - this.#begunAt) / 1_000;
    this.#lines.targets.answered(this.#line.slots.target);
    if (this.#patience !== undefined) clearTimeout(this.#patience);
    const { response } = this.#job;
    response.writeHead(status, this.#job.answerHeaders(given, status));
    // What came together is sent together; a head whose body is still to come does not wait for it.
    process.nextTick(flushHead, response);
  }

  onResponseData(controller: Dispatcher.DispatchController, part: Buffer): void {
    if (this.#over) return;
    this.bytesOut += part.length;
    const { response } = this.#job;
    if (response.write(part)) return;
    if (!this.#drains) {
      this.#drains = true;
      response.on('drain', () => this.#clientReads());
    }
    const unread = response.writableLength;
    if (this.#readAhead.allows(unread, this.#job.shareKey)) return;
    controller.pause();
    this.#stalled = true;
    this.#slot.stalled();
    this.#waitForReader();
  }

  #waitForReader(): void {
    this.#wait(this.#timeouts.idle, () => {
      if (this.#readAhead.hasRead(this.#job.response.writableLength)) this.#waitForReader();
      else this.onEvicted();
    });
  }

  onResponseEnd(): void {
    if (this.#over) return;
    this.#ended = true;
    this.#finish();
    const { request, response } = this.#job;
    response.end();
    // The upstream answered without hearing the client out.
    if (!request.complete)
      discardRest(request, (arrived) => {
        if (!arrived) request.destroy();
      });
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, error: Error): void {
    // Before its turn nothing was sent: there was no connection to send it on.
    const neverBegan = this.#stage === 'given';
    // From here on the HTTP client does not hold it any more.
    this.#stage = this.#stage === 'left' ? 'left' : 'begun';
    if (this.#over) return this.#leave();
    const { request, response } = this.#job;
    if (!this.#answering) {
      const heard = this.#heard || this.#connection?.sieve.heard === true;
      const isIdleClose = !heard && !neverBegan && isLost(error) && wasUsedBefore(error);
      if (!isIdleClose && isTargetFault(error)) this.#lines.targets.failed(this.#line.slots.target);
      if (this.#mayRepeat(isIdleClose, neverBegan && isTargetFault(error))) return this.#repeat(error);
    }
    this.#finish();
    if (!this.#answering) {
      this.#job.failed(refusalFor(error), error);
      return;
    }
    this.#job.broken(error);
    // Never a clean end: where only the close marks the end of the answer, a reset tells that it is not the end.
    const { socket } = request;
    if (request.httpVersion === '1.0' && !('encrypted' in socket)) socket.resetAndDestroy();
    response.destroy();
  }

  #clientLeft(): void {
    if (this.#over) return;
    this.#finish();
    this.#controller?.abort(new BodyFault('client_gone'));
    this.#job.broken(new BodyFault('client_gone'));
  }

  #clientReads(): void {
    this.#readAhead.end();
    if (this.#over || !this.#stalled) return;
    this.#stalled = false;
    this.#slot.flowing();
    clearTimeout(this.#patience);
    this.#controller?.resume();
  }

  /** Its turn, or a connection for it, did not come in time. */
  late(): void {
    this.#finish();
    this.#job.failed({ reason: 'overloaded', retryAfter: 1 }, undefined);
  }

  #bodyStalled(): void {
    const isClient = this.#stage === 'buffering' || this.waitsForClient;
    const fault = new BodyFault(isClient ? 'client_too_slow' : 'upstream_too_slow');
    if (this.#controller !== undefined) {
      this.#controller.abort(fault);
      return;
    }
    this.#finish();
    this.#job.failed(refusalFor(fault), fault);
  }

  #headersLate(): void {
    this.#controller?.abort(new BodyFault('upstream_too_slow'));
  }

  #wait(seconds: number, late: () => void): void {
    clearTimeout(this.#patience);
    this.#patience = setTimeout(late, seconds * 1_000);
  }

  /** RFC 9110 §9.2.2, RFC 9112 §9.3.1: a connection may be closed for being idle just when we use it again. */
  #mayRepeat(isIdleClose: boolean, unreached: boolean): boolean {
    const { method, hasBody } = this.#job;
    if (this.#repeated || hasBody || !REPEATABLE.has(method)) return false;
    return isIdleClose || (unreached && this.#lines.targets.hasOther(this.#line.slots.target));
  }

  #repeat(cause: Error): void {
    this.#leave();
    this.#repeated = true;
    this.#controller = undefined;
    this.#connection = undefined;
    this.#job.repeated(cause);
    this.#enter(this.#lines.targets.another(this.#line.slots.target));
  }

  #finish(): void {
    this.#over = true;
    // What was given away and has not begun leaves when it begins: until then it keeps others from their turn.
    if (this.#stage !== 'given') this.#leave();
    this.#lines.turns.end(this);
    if (this.#patience !== undefined) clearTimeout(this.#patience);
    this.#body?.destroy();
  }
}

function flushHead(response: ServerResponse): void {
  if (!response.writableEnded && !response.destroyed) response.flushHeaders();
}

/**
 * Names and values as text. They lie one behind the other in what was read from the connection, so nearly always one
 * conversion is enough for all of them.
 */
function textOf(raw: Dispatcher.DispatchController['rawHeaders']): string[] {
  if (!Array.isArray(raw)) return [];
  const [first, last] = [raw[0], raw.at(-1)];
  if (!Buffer.isBuffer(first) || !Buffer.isBuffer(last)) return raw.map(plainText);
  const from = first.byteOffset;
  const length = last.byteOffset + last.length - from;
  // Otherwise they came in several pieces.
  if (first.buffer !== last.buffer || length < 0 || length > MOST_AT_ONCE) return raw.map(plainText);
  const block = Buffer.from(first.buffer, from, length).toString('latin1');
  const list: string[] = [];
  for (const part of raw) {
    const at = typeof part === 'string' ? -1 : part.byteOffset - from;
    if (typeof part === 'string' || part.buffer !== first.buffer || at < 0 || at + part.length > length)
      return raw.map(plainText);
    list.push(block.slice(at, at + part.length));
  }
  return list;
}

/** RFC 9112 §7: `chunked` alone, once. Any other coding would be left on a body that no longer says so. */
function isCodedAsUsual(rawHeaders: readonly string[]): boolean {
  let codings = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string;
    if (name.length !== 17 || name.toLowerCase() !== 'transfer-encoding') continue;
    codings += 1;
    if (codings > 1 || rawHeaders[at + 1]?.trim().toLowerCase() !== 'chunked') return false;
  }
  return true;
}

const MOST_AT_ONCE = 4_096;
const plainText = (part: Buffer | string): string =>
  typeof part === 'string' ? part : part.toString('latin1');

const LATE = new Set<string>([
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
  CONNECT_LATE,
  ANSWER_LATE,
]);

const BODY_FAULTS = {
  too_large: { reason: 'body_too_large' },
  client_gone: { reason: 'malformed', detail: 'the body broke off' },
  client_too_slow: { reason: 'client_too_slow' },
  no_memory: { reason: 'overloaded', retryAfter: 1 },
  upstream_too_slow: { reason: 'upstream_too_slow' },
} as const satisfies Record<BodyFault['kind'], ProxyRefusal>;

const LOST = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE']);

const codeOf = (error: Error): string => {
  const { code } = error as { readonly code?: unknown };
  return typeof code === 'string' ? code : '';
};

/** The connection ended, and not by our doing. */
const isLost = (error: Error): boolean => LOST.has(codeOf(error));

/** Something that makes one think less of the target. A slow answer does not: one slow path is no sick target. */
const isTargetFault = (error: Error): boolean =>
  !(error instanceof BodyFault || error instanceof GrantEnded) && !NOT_ITS_FAULT.has(codeOf(error));

const NOT_ITS_FAULT = new Set([
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_INVALID_ARG',
  'UND_ERR_DESTROYED',
  'UND_ERR_CLOSED',
]);

/** The token a request began with no longer counts. */
export class GrantEnded extends Error {
  readonly why: StreamEnd;

  constructor(why: StreamEnd) {
    super(`token_${why}`);
    this.why = why;
  }
}

export function refusalFor(error: Error): ProxyRefusal {
  if (error instanceof GrantEnded) {
    const { why } = error;
    return why === 'unknown' || why === 'going_away'
      ? { reason: 'unavailable', retryAfter: 1 }
      : { reason: 'token_invalid', why };
  }
  if (error instanceof BodyFault) return BODY_FAULTS[error.kind];
  const code = codeOf(error);
  if (LATE.has(code)) return { reason: 'upstream_too_slow' };
  // The client library looks at header values once more and is stricter than node's parser about DEL.
  if (code === 'UND_ERR_INVALID_ARG') return { reason: 'malformed', detail: 'a header field' };
  return { reason: 'upstream_failed' };
}
