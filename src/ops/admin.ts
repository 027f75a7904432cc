import { constants } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer, Server as SecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type Answer, sendJson } from '../http/answer.ts';
import { EXPOSITION_TYPE } from '../observability/exposition.ts';
import { firstReports } from '../observability/first-reports.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { adminCaller } from './admin-caller.ts';
import { limitConnections } from './admin-connections.ts';
import { hostCheck } from './admin-host.ts';
import type { AdminRequest } from './administration.ts';

/** One thing readiness depends on: resolves, or throws what is wrong. */
export interface Check {
  readonly name: string;
  check(): Promise<void>;
}

export interface AdminOptions {
  readonly host: string;
  readonly port: number;
  readonly checks: readonly Check[];
  /** Left out: plain HTTP. */
  readonly tls?: AdminTls | undefined;
  /** Names under which metrics and the administration may be requested, beside `localhost` and IP addresses. */
  readonly hostNames?: readonly string[];
  /** Holds the token that opens the administration. */
  readonly tokenFile: string;
  /** Looks at grants and ends them; undefined while the store has not been reached yet. */
  readonly administer?: ((asked: AdminRequest) => Promise<Answer>) | undefined;
  /** The figures of all processes, in the Prometheus text format. */
  readonly metrics?: (found: readonly Finding[]) => Promise<string>;
  readonly log?: Pick<Logger, 'error' | 'warn'>;
}

/** What came of a check. */
export interface Finding {
  readonly name: string;
  readonly status: 'ok' | 'failed';
  readonly problem?: string;
}

/** PEM. Whoever shows a certificate of `clientCa` may administer; probes need none. */
export interface AdminTls {
  readonly certificate: string;
  readonly key: string;
  readonly clientCa?: string | undefined;
}

export interface AdminListener {
  readonly port: number;
  /** For certificates that were renewed. Throws, and stays as it was, when they cannot be used. */
  setTls(tls: AdminTls): void;
  close(): Promise<void>;
}

/** Probes answer without a certificate or token: kubelets have neither. Aliases are what neighbours' users are used to. */
const LIVE = new Set(['/livez', '/healthz', '/ping', '/health/alive']);
const READY = new Set(['/readyz', '/ready', '/health/ready']);
const METRICS = '/metrics';
const MOST_CONNECTIONS = 256;
/** RFC 1035 §2.3.4: a name of 253 characters; with a colon and a port. */
const MOST_HOST = 259;
const STALLED_MS = 120_000;
const ADMIN = '/admin/v1';

/** The admin listener, apart from the public one: what is here cannot be reached through the public port. */
export async function openAdmin(options: AdminOptions): Promise<AdminListener> {
  const { host, port, checks, metrics, tls, tokenFile, log } = options;
  let certificate = tls?.certificate;
  const isKnownHost = hostCheck([host, ...(options.hostNames ?? [])], () => certificate);
  const patience = { headersTimeout: 5_000, requestTimeout: 10_000, connectionsCheckingInterval: 1_000 };
  const server: Server | SecureServer =
    tls === undefined
      ? createServer(patience)
      : createSecureServer({
          ...patience,
          ...contextOf(tls),
          handshakeTimeout: 5_000,
          // Probes have no certificate: who has one of the CA is told apart by `authorized`.
          requestCert: tls.clientCa !== undefined,
          rejectUnauthorized: false,
        });
  limitConnections(server, MOST_CONNECTIONS);
  // A last resort: connections that are being closed still count.
  server.maxConnections = 4 * MOST_CONNECTIONS;
  // A client that does not read its response.
  server.setTimeout(STALLED_MS);
  const findings = shared(() => readiness(checks));
  const scrape =
    metrics &&
    shared(async (): Promise<Answered> => {
      try {
        return answerWith(await metrics(await findings()));
      } catch (error) {
        log?.error('metrics_failed', errorFields(error));
        return (response) => sendJson(response, { status: 500, body: { error: 'server_error' } });
      }
    });
  let reportedAt = Number.NEGATIVE_INFINITY;
  /** At most once a minute: any client can cause it. */
  const reportExposed = (): void => {
    if (performance.now() - reportedAt < 60_000) return;
    reportedAt = performance.now();
    log?.error('admin_token_refused', { file: tokenFile, problem: 'other users can read it; run chmod 600' });
  };
  const firstReport = firstReports();
  const reportHost = ({ headers: { host: name = '' }, socket }: IncomingMessage): void => {
    const named = name.toLowerCase().slice(0, MOST_HOST);
    const first = log && firstReport(named);
    if (first === undefined) return;
    log?.warn('admin_host_refused', {
      host: named,
      peer: socket.remoteAddress,
      setting: 'admin.hostNames',
      ...first,
    });
  };
  server.on('request', (request, response) => {
    const { path, query } = splitTarget(request.url ?? '');
    const isGuarded = path === METRICS || path === ADMIN || path.startsWith(`${ADMIN}/`);
    if (isGuarded && !isKnownHost(request)) {
      reportHost(request);
      return sendJson(response, MISDIRECTED);
    }
    if (isGuarded && isFromPage(request)) return sendJson(response, FROM_PAGE);
    if (path === ADMIN || path.startsWith(`${ADMIN}/`))
      return void administration(options, request, path, query, reportExposed).then((answer) =>
        sendJson(response, answer),
      );
    if (request.method !== 'GET' && request.method !== 'HEAD')
      return sendJson(response, {
        status: 405,
        body: { error: 'method_not_allowed' },
        headers: { allow: 'GET, HEAD' },
      });
    if (LIVE.has(path)) return sendJson(response, { status: 200, body: { status: 'alive' } });
    if (READY.has(path))
      return void findings().then((found) => {
        const ready = found.every(({ problem }) => problem === undefined);
        const detail =
          (query.split('&').includes('verbose') || !ready) && isKnownHost(request) && !isFromPage(request);
        sendJson(response, {
          status: ready ? 200 : 503,
          body: { status: ready ? 'ready' : 'not ready', ...(detail && { checks: found }) },
        });
      });
    if (path === METRICS && scrape !== undefined)
      return void scrape().then((answer) => answer(response, request.method === 'HEAD'));
    return sendJson(response, { status: 404, body: { error: 'not_found' } });
  });
  await listen(server, host, port);
  return {
    port: (server.address() as AddressInfo).port,
    setTls(next) {
      if (!(server instanceof SecureServer)) return;
      // Certificates are asked for since the start: without a CA of ours node would take those of every public one.
      if ((next.clientCa === undefined) !== (tls?.clientCa === undefined))
        throw new Error('whether certificates are asked for is settled at start');
      server.setSecureContext(contextOf(next));
      certificate = next.certificate;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

const contextOf = ({ certificate, key, clientCa }: AdminTls) => ({
  cert: certificate,
  key,
  minVersion: 'TLSv1.2' as const,
  // `authorized` is what the first handshake found, also on a resumed session, when the certificate has long run out.
  secureOptions: constants.SSL_OP_NO_TICKET,
  ...(clientCa !== undefined && { ca: clientCa }),
});

/**
 * Did a web page send this? A browser may hold an operator's certificate and shows it for every page that asks; there
 * are no pages of ours here, so none of them has any business.
 */
const isFromPage = ({ headers: { origin, 'sec-fetch-site': site } }: IncomingMessage): boolean =>
  origin !== undefined || (site !== undefined && site !== 'none');

/** The caller is judged before anything else is said: to strangers every address looks the same. */
async function administration(
  { tokenFile, administer, log }: AdminOptions,
  request: IncomingMessage,
  path: string,
  query: string,
  reportExposed: () => void,
): Promise<Answer> {
  try {
    const by = adminCaller(request, tokenFile, reportExposed);
    if (by === undefined) return NOBODY;
    if (administer === undefined) return NOT_YET;
    return await administer({
      method: request.method ?? '',
      path: path.slice(ADMIN.length),
      query: new URLSearchParams(query),
      request,
      by,
    });
  } catch (error) {
    if (error instanceof Fault) return NOT_YET;
    // Without the address and what was sent: neither tells more than the stack does, and they may name people.
    log?.error('administration_failed', { method: request.method, ...errorFields(error) });
    return { status: 500, body: { error: 'server_error', error_description: 'An error of ours.' } };
  }
}

/** RFC 9110 §15.5.20. */
const MISDIRECTED: Answer = {
  status: 421,
  body: {
    error: 'misdirected_request',
    error_description:
      'The admin listener does not serve this host name; use an IP address, or add the name to admin.hostNames and restart gatehouse.',
  },
};

const FROM_PAGE: Answer = {
  status: 403,
  body: { error: 'access_denied', error_description: 'Requests from web pages are not accepted.' },
};

const NOBODY: Answer = {
  status: 401,
  body: {
    error: 'invalid_token',
    error_description:
      'Send the admin token as Authorization: Bearer, or a certificate of admin.tls.clientCa.',
  },
  headers: { 'www-authenticate': 'Bearer realm="gatehouse administration"' },
};

const NOT_YET: Answer = {
  status: 503,
  body: { error: 'temporarily_unavailable', error_description: 'The store has not been reached yet.' },
  headers: { 'retry-after': '1' },
};

/** RFC 3986 §3.4: a query may contain question marks. */
function splitTarget(target: string): { readonly path: string; readonly query: string } {
  const at = target.indexOf('?');
  return at < 0 ? { path: target, query: '' } : { path: target.slice(0, at), query: target.slice(at + 1) };
}

const CHECK_SECONDS = 2;

async function readiness(checks: readonly Check[]): Promise<Finding[]> {
  return Promise.all(
    checks.map(async (one): Promise<Finding> => {
      const { name } = one;
      const late = Promise.withResolvers<never>();
      const timer = setTimeout(() => late.reject(new Error('did not answer in time')), CHECK_SECONDS * 1_000);
      try {
        await Promise.race([one.check(), late.promise]);
        return { name, status: 'ok' };
      } catch (error) {
        return { name, status: 'failed', problem: (error as Error).message };
      } finally {
        clearTimeout(timer);
      }
    }),
  );
}

type Answered = (response: ServerResponse, headOnly: boolean) => void;

const answerWith =
  (text: string): Answered =>
  (response, headOnly) =>
    void response
      .writeHead(200, {
        'content-type': EXPOSITION_TYPE,
        'content-length': Buffer.byteLength(text),
        'cache-control': 'no-store',
      })
      .end(headOnly ? '' : text);

/** Callers get the result that is being found out, if there is one: many of them cost no more than one. */
function shared<T>(find: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | undefined;
  return () => {
    running ??= find().finally(() => {
      running = undefined;
    });
    return running;
  };
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject).on('error', () => {});
      resolve();
    });
  });
}
