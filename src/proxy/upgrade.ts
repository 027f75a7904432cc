import { type ClientRequest, IncomingMessage } from 'node:http';
import { Agent } from 'node:https';
import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { ProxyServer } from 'http-proxy-3';
import type { ProxyRefusal } from './refuse.ts';
import type { Target, Targets } from './targets.ts';
import { openTunnel, type Tunnel } from './tunnel.ts';
import type { UpstreamMaterial } from './upstream-files.ts';
import type { UpstreamSettings } from './upstream-settings.ts';
import { acceptFor } from './websocket-frames.ts';

/**
 * Carries WebSockets to an upstream through http-proxy-3's `ws()`. The only file that knows that package.
 *
 * The package opens the connection, writes the 101 and joins the two sides. It never sees the client's request, but
 * one made here; it never answers a client, except by that 101; and what it leaves open has an end here.
 */
export interface UpgradeJob {
  readonly socket: Duplex;
  /** What came right after the client's head: it waits for the upstream's 101. */
  readonly head: Buffer;
  /** Path and query, as they go on the wire. */
  readonly path: string;
  readonly headers: readonly string[];
  readonly answerHeaders: (rawHeaders: readonly string[], status: number) => string[];
  readonly opened: (tunnel: Tunnel) => void;
  /** The upstream answered something else than 101: an ordinary answer, to be passed on. */
  readonly declined: (answer: IncomingMessage) => void;
  /** No WebSocket, and nothing was sent to the client. Called at most once. */
  readonly failed: (refusal: ProxyRefusal, cause: unknown) => void;
  /** It broke after it had been opened. */
  readonly broken: (cause: unknown) => void;
}

/** A handshake that was sent to the upstream. */
export interface PendingUpgrade {
  /** Gives it up, unless it was answered before. */
  cancel(refusal: ProxyRefusal, cause: Error): void;
}

export interface Tunnels {
  /** Undefined when it was refused at once. */
  carry(job: UpgradeJob): PendingUpgrade | undefined;
  /** Ends all that are open. */
  close(): void;
}

const WEBSOCKETS = 1_000;
const SILENCE_SECONDS = 300;

export function openTunnels(
  settings: UpstreamSettings,
  targets: Targets,
  material: UpstreamMaterial,
): Tunnels {
  const { timeouts, websockets = WEBSOCKETS, serverName } = settings;
  const ends = targets.all.map((target) => ({ target, address: addressOf(target, material), running: 0 }));
  // The package has no setting for the name to be proved; an agent has.
  const agent = serverName === undefined ? undefined : new Agent({ servername: serverName });
  const open = new Set<Tunnel>();
  let made: ProxyServer | undefined;

  const carry = (job: UpgradeJob): PendingUpgrade | undefined => {
    const { socket } = job;
    const key = onlyField(job.headers, 'sec-websocket-key');
    const unfit = misfit(key, onlyField(job.headers, 'sec-websocket-version'));
    if (unfit !== undefined) {
      job.failed(unfit, undefined);
      return undefined;
    }
    const end = ends[targets.choose().place];
    if (end === undefined || end.running >= websockets) {
      job.failed({ reason: 'overloaded', retryAfter: 1 }, undefined);
      return undefined;
    }

    let settled = false;
    const settle = (): boolean => {
      if (settled) return false;
      settled = true;
      clearTimeout(patience);
      return true;
    };
    const fail = (refusal: ProxyRefusal, cause: unknown): void => {
      if (settle()) job.failed(refusal, cause);
      else job.broken(cause);
    };
    end.running += 1;
    end.target.pending += 1;
    socket.once('close', () => {
      end.running -= 1;
      end.target.pending -= 1;
      if (settle()) sent?.destroy();
    });
    let sent: ClientRequest | undefined;
    const patience = setTimeout(() => {
      fail({ reason: 'upstream_too_slow' }, new Error('no answer to the handshake'));
      sent?.destroy();
    }, timeouts.headers * 1_000);

    const theirs = begin(job, end.address, (error) => fail(refusalFor(error), error));
    if (theirs instanceof Error) {
      fail(refusalFor(theirs), theirs);
      return undefined;
    }
    sent = theirs;
    // What it does with an error or an ordinary answer is write to the client's connection itself: that is ours to do.
    sent.removeAllListeners('error').on('error', (error) => {
      if (!settled) targets.failed(end.target);
      fail(refusalFor(error), error);
    });
    sent.removeAllListeners('response').on('response', (answer) => {
      targets.answered(end.target);
      answer.setTimeout(timeouts.idle * 1_000, () => answer.destroy(new Error('the answer stalled')));
      if (settle()) job.declined(answer);
      else answer.destroy();
    });
    const join = sent.listeners('upgrade');
    sent.removeAllListeners('upgrade').on('upgrade', (answer, far: Socket, farHead) => {
      if (!accepts(answer, key)) {
        far.destroy();
        return fail({ reason: 'upstream_failed' }, new Error('not an answer to this handshake'));
      }
      targets.answered(end.target);
      if (!settle() || socket.destroyed) return void far.destroy();
      answer.headers = fieldsOf([
        ...job.answerHeaders(answer.rawHeaders, 101),
        'Connection',
        'Upgrade',
        'Upgrade',
        'websocket',
      ]);
      const tunnel = openTunnel(socket as Socket, far, {
        silenceSeconds: timeouts.websocket ?? SILENCE_SECONDS,
        closed: () => open.delete(tunnel),
      });
      open.add(tunnel);
      for (const listener of join) listener.call(sent, answer, far, farHead);
      tunnel.joined();
      job.opened(tunnel);
    });
    return {
      cancel(refusal, cause) {
        if (!settle()) return;
        job.failed(refusal, cause);
        theirs
          .removeAllListeners('error')
          .on('error', () => {})
          .destroy();
      },
    };
  };

  /** Everything up to the first byte, which is sent later: nothing can have come back when this returns. */
  const begin = (
    job: UpgradeJob,
    target: ReturnType<typeof addressOf>,
    onError: (error: Error) => void,
  ): ClientRequest | Error => {
    const request = new IncomingMessage(new Socket());
    request.method = 'GET';
    request.httpVersion = '1.1';
    request.httpVersionMajor = 1;
    request.httpVersionMinor = 1;
    request.url = '/';
    request.headers = fieldsOf([...job.headers, 'Connection', 'Upgrade', 'Upgrade', 'websocket']);
    let sent: ClientRequest | undefined;
    const note = (made: ClientRequest): void => {
      // To the letter: the package would read it as a URL and write it anew.
      made.path = job.path;
      sent = made;
    };
    const proxy = (made ??= loadProxy(timeouts.connect));
    proxy.once('proxyReqWs', note);
    try {
      proxy.ws(request, job.socket, job.head, { target, ...(agent !== undefined && { agent }) }, onError);
      return sent ?? new Error('no request was made');
    } catch (error) {
      return error as Error;
    } finally {
      proxy.off('proxyReqWs', note);
    }
  };

  return {
    carry,
    close: () => open.forEach((tunnel) => tunnel.end(1001, 'going away')),
  };
}

/** Loaded with the first WebSocket: it costs 20 ms and 3 MB, and most houses carry none. */
function loadProxy(connectSeconds: number): ProxyServer {
  const { ProxyServer: Proxy } = createRequire(import.meta.url)('http-proxy-3') as {
    readonly ProxyServer: typeof ProxyServer;
  };
  const proxy = new Proxy({ connectTimeout: connectSeconds * 1_000, prependPath: false, ignorePath: true });
  // Without a listener of its own it throws. What it tells is told to each job as well.
  proxy.on('error', () => {});
  return proxy;
}

function addressOf({ url }: Target, { ca, certificate, key }: UpstreamMaterial) {
  if (url.startsWith('unix:'))
    return {
      protocol: 'http:',
      host: 'localhost',
      hostname: 'localhost',
      port: 80,
      socketPath: url.slice(5),
    };
  const { protocol, hostname, port } = new URL(url);
  return {
    protocol,
    host: hostname,
    hostname,
    port: port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port),
    ...(ca !== undefined && { ca }),
    ...(certificate !== undefined && { cert: certificate }),
    ...(key !== undefined && { key }),
  };
}

/** RFC 6455 §4.2.1, what of it an upstream could overlook. */
function misfit(key: string | undefined, version: string | undefined): ProxyRefusal | undefined {
  if (key === undefined || !/^[A-Za-z0-9+/]{22}==$/.test(key))
    return { reason: 'malformed', detail: 'no clear Sec-WebSocket-Key' };
  return version === '13' ? undefined : { reason: 'websocket_version' };
}

/** RFC 6455 §4.1: without the right answer to the key it is no WebSocket, and what follows could be anything. */
const accepts = ({ statusCode, headers }: IncomingMessage, key = ''): boolean =>
  statusCode === 101 &&
  headers.upgrade?.toLowerCase() === 'websocket' &&
  headers['sec-websocket-accept'] === acceptFor(key);

function onlyField(list: readonly string[], wanted: string): string | undefined {
  const found = list.filter((_, at) => at % 2 === 1 && list[at - 1]?.toLowerCase() === wanted);
  return found.length === 1 ? found[0] : undefined;
}

/** As node's HTTP client takes them: a field that stands twice becomes a list. Without a prototype, so that no name is special. */
function fieldsOf(list: readonly string[]): NodeJS.Dict<string | string[]> {
  const fields = Object.create(null) as Record<string, string | string[]>;
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] ?? '';
    const value = list[at + 1] ?? '';
    const before = fields[name.toLowerCase()];
    fields[name.toLowerCase()] = before === undefined ? value : [before, value].flat();
  }
  return fields;
}

const LATE = new Set(['ECONNECT_TIMEOUT', 'ETIMEDOUT']);

function refusalFor(error: Error): ProxyRefusal {
  const { code } = error as NodeJS.ErrnoException;
  if (LATE.has(code ?? '')) return { reason: 'upstream_too_slow' };
  if (code === 'ERR_INVALID_CHAR') return { reason: 'malformed', detail: 'a header field' };
  return { reason: 'upstream_failed' };
}
