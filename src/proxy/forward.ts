import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Dispatcher } from 'undici';
import type { StreamEnd } from './live-streams.ts';
import { discardRest, type ProxyRefusal } from './refuse.ts';
import { BodyFault, RequestBody } from './request-body.ts';
import { Pool } from './upstream-pool.ts';

/**
 * Carries one request to an upstream and its answer back, both streamed. The only file that knows the HTTP client.
 *
 * It promises: a request is framed anew from what was read; redirects are not followed; an answer that breaks off
 * breaks off for the client too; whoever leaves early ends the other side. Nothing is sent twice.
 */
export interface UpstreamSettings {
  /** `http://host:port`, `https://host:port` or `unix:/path`. */
  readonly targets: readonly string[];
  /** Seconds. */
  readonly timeouts: {
    readonly connect: number;
    readonly headers: number;
    readonly idle: number;
    readonly websocket?: number;
  };
  readonly connections: number;
  readonly websockets?: number;
  readonly ca?: string;
  readonly certificate?: string;
  readonly key?: string;
}

export interface ForwardJob {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: string;
  /** Path and query, as they go on the wire. */
  readonly path: string;
  readonly headers: string[];
  readonly hasBody: boolean;
  readonly maxBodyBytes: number;
  readonly answerHeaders: (rawHeaders: readonly string[], status: number) => string[];
  /** The upstream gave no answer: tell the client, and the log. Called at most once, before anything was sent. */
  readonly failed: (refusal: ProxyRefusal, cause: unknown) => void;
  /** The exchange broke after its answer had begun. */
  readonly broken: (cause: unknown) => void;
}

/** A request under way. */
export interface Carried {
  /** Ends it for both sides, in a way that neither can take for the proper end. */
  cut(why: StreamEnd): void;
}

export interface Upstream {
  /** Undefined when it was refused at once. */
  forward(job: ForwardJob): Carried | undefined;
  /** Lets what runs end, within this time. */
  close(withinSeconds: number): Promise<void>;
}

/** How many requests may wait for a connection, beyond those that have one. */
const WAITING = 512;

export function openUpstream(settings: UpstreamSettings): Upstream {
  const lines = settings.targets.map((target) => openTarget(target, settings));
  let turn = 0;
  return {
    forward(job) {
      const line = lines[turn++ % lines.length];
      if (line === undefined || line.running >= settings.connections + WAITING) {
        job.failed({ reason: 'overloaded', retryAfter: 1 }, undefined);
        return undefined;
      }
      const exchange = new Exchange(line, job, settings.timeouts);
      exchange.start();
      return exchange;
    },
    async close(withinSeconds) {
      const pools = lines.map(({ pool }) => pool);
      const cut = setTimeout(() => {
        for (const pool of pools) void pool.destroy();
      }, withinSeconds * 1_000);
      try {
        await Promise.allSettled(pools.map((pool) => pool.close()));
      } finally {
        clearTimeout(cut);
      }
    },
  };
}

interface Line {
  readonly pool: Pool;
  running: number;
}

function openTarget(target: string, settings: UpstreamSettings): Line {
  const { timeouts, ca, certificate, key } = settings;
  const socketPath = target.startsWith('unix:') ? target.slice('unix:'.length) : undefined;
  const pool = new Pool(socketPath === undefined ? new URL(target).origin : 'http://localhost', {
    connections: settings.connections,
    pipelining: 1,
    allowH2: false,
    headersTimeout: timeouts.headers * 1_000,
    bodyTimeout: timeouts.idle * 1_000,
    ...(socketPath !== undefined && { socketPath }),
    connect: {
      timeout: timeouts.connect * 1_000,
      ...(ca !== undefined && { ca: readFileSync(ca) }),
      ...(certificate !== undefined && { cert: readFileSync(certificate) }),
      ...(key !== undefined && { key: readFileSync(key) }),
    },
  });
  return { pool, running: 0 };
}

/** One request and its answer: what happens to either side is told to the other. */
class Exchange implements Dispatcher.DispatchHandler, Carried {
  readonly #line: Line;
  readonly #job: ForwardJob;
  readonly #timeouts: UpstreamSettings['timeouts'];
  #controller: Dispatcher.DispatchController | undefined;
  #body: RequestBody | undefined;
  #patience: NodeJS.Timeout | undefined;
  /** The HTTP client has not begun with it: it waits for a connection, and has a place in the queue until its turn. */
  #queued = true;
  #answering = false;
  #over = false;

  constructor(line: Line, job: ForwardJob, timeouts: UpstreamSettings['timeouts']) {
    this.#line = line;
    this.#job = job;
    this.#timeouts = timeouts;
  }

  start(): void {
    const { request, response, method, path, headers, hasBody, maxBodyBytes } = this.#job;
    this.#line.running += 1;
    response.on('close', this.#clientLeft).on('drain', this.#clientReads);
    if (hasBody) this.#body = new RequestBody(request, maxBodyBytes);
    this.#line.pool.dispatch({ method, path, headers, body: this.#body ?? null }, this);
    if (this.#queued && !this.#over) this.#wait(this.#timeouts.headers, this.#turnLate);
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

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    this.#leaveQueue();
    // It may have waited for a connection longer than its client did.
    if (this.#over) controller.abort(new BodyFault('client_gone'));
    else if (this.#body !== undefined) this.#wait(this.#timeouts.idle, this.#bodyStalled);
    else clearTimeout(this.#patience);
  }

  onBodySent(): void {
    if (this.#body !== undefined && !this.#answering) this.#patience?.refresh();
  }

  onRequestSent(): void {
    // undici's own timer may have run out unheard while the body was being sent.
    if (this.#body !== undefined && !this.#answering) this.#wait(this.#timeouts.headers, this.#headersLate);
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    // 100 to 199 are steps on the way and end here.
    if (status < 200 || this.#over) return;
    this.#answering = true;
    clearTimeout(this.#patience);
    const { response, answerHeaders } = this.#job;
    response.writeHead(status, answerHeaders(textOf(controller.rawHeaders), status));
    // What came together is sent together; a head whose body is still to come does not wait for it.
    process.nextTick(flushHead, response);
  }

  onResponseData(controller: Dispatcher.DispatchController, part: Buffer): void {
    if (this.#over || this.#job.response.write(part)) return;
    controller.pause();
    // A client that takes nothing keeps a connection from everybody else.
    this.#wait(this.#timeouts.idle, this.#clientStalled);
  }

  onResponseEnd(): void {
    if (this.#over) return;
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
    this.#leaveQueue();
    if (this.#over) return;
    this.#finish();
    const { request, response, failed, broken } = this.#job;
    if (!this.#answering) {
      failed(refusalFor(error), error);
      return;
    }
    broken(error);
    // Never a clean end: where only the close marks the end of the answer, a reset tells that it is not the end.
    const { socket } = request;
    if (request.httpVersion === '1.0' && !('encrypted' in socket)) socket.resetAndDestroy();
    response.destroy();
  }

  readonly #clientLeft = (): void => {
    if (this.#over) return;
    this.#finish();
    this.#controller?.abort(new BodyFault('client_gone'));
    this.#job.broken(new BodyFault('client_gone'));
  };

  readonly #clientReads = (): void => {
    clearTimeout(this.#patience);
    this.#controller?.resume();
  };

  readonly #clientStalled = (): void => {
    this.#job.response.destroy();
  };

  readonly #turnLate = (): void => {
    this.#finish();
    this.#job.failed({ reason: 'overloaded', retryAfter: 1 }, undefined);
  };

  readonly #bodyStalled = (): void => {
    const kind = this.#body?.waitsForClient === true ? 'client_too_slow' : 'upstream_too_slow';
    this.#controller?.abort(new BodyFault(kind));
  };

  readonly #headersLate = (): void => this.#controller?.abort(new BodyFault('upstream_too_slow'));

  #wait(seconds: number, late: () => void): void {
    clearTimeout(this.#patience);
    this.#patience = setTimeout(late, seconds * 1_000);
  }

  /** Whoever left while waiting still fills the queue; only now is there room for another. */
  #leaveQueue(): void {
    if (!this.#queued) return;
    this.#queued = false;
    if (this.#over) this.#line.running -= 1;
  }

  #finish(): void {
    this.#over = true;
    if (!this.#queued) this.#line.running -= 1;
    clearTimeout(this.#patience);
    this.#job.response.off('close', this.#clientLeft).off('drain', this.#clientReads);
    this.#body?.destroy();
  }
}

function flushHead(response: ServerResponse): void {
  if (!response.writableEnded && !response.destroyed) response.flushHeaders();
}

function textOf(raw: Dispatcher.DispatchController['rawHeaders']): string[] {
  if (!Array.isArray(raw)) return [];
  return raw.map((part) => (typeof part === 'string' ? part : part.toString('latin1')));
}

const LATE = new Set(['UND_ERR_CONNECT_TIMEOUT', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT']);

const BODY_FAULTS = {
  too_large: { reason: 'body_too_large' },
  client_gone: { reason: 'malformed', detail: 'the body broke off' },
  client_too_slow: { reason: 'client_too_slow' },
  upstream_too_slow: { reason: 'upstream_too_slow' },
} as const satisfies Record<BodyFault['kind'], ProxyRefusal>;

/** The token a request began with no longer counts. */
export class GrantEnded extends Error {
  readonly why: StreamEnd;

  constructor(why: StreamEnd) {
    super(`token_${why}`);
    this.why = why;
  }
}

function refusalFor(error: Error): ProxyRefusal {
  if (error instanceof GrantEnded) {
    const { why } = error;
    return why === 'unknown' || why === 'going_away'
      ? { reason: 'unavailable', retryAfter: 1 }
      : { reason: 'token_invalid', why };
  }
  if (error instanceof BodyFault) return BODY_FAULTS[error.kind];
  const { code } = error as { readonly code?: unknown };
  if (typeof code === 'string' && LATE.has(code)) return { reason: 'upstream_too_slow' };
  // The client library looks at header values once more and is stricter than node's parser about DEL.
  if (code === 'UND_ERR_INVALID_ARG') return { reason: 'malformed', detail: 'a header field' };
  return { reason: 'upstream_failed' };
}
