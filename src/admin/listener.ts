import { constants } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { createServer as createSecureServer, Server as SecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { JsonResponse } from '../http/json-response.ts';
import { createJsonReply, type Reply } from '../http/reply.ts';
import { singleFlight, withTimeout } from '../lib/promises.ts';
import { SERVER_TLS_POLICY } from '../lib/tls-policy.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { EXPOSITION_CONTENT_TYPE } from '../observability/metric-registry.ts';
import { createReportLimiter, throttleReports } from '../observability/report-limiter.ts';
import { Fault } from '../ports/fault.ts';
import { type AdminCredentials, authenticateAdmin } from './authenticate.ts';
import { limitConnections } from './connection-limit.ts';
import { type AdminRequest, createErrorResponse, readSelection } from './grants-api.ts';
import { createHostCheck } from './host-check.ts';
import { type AdminMessage, readMessage, sendReply } from './node-request.ts';

export interface ReadinessCheck {
  readonly name: string;
  /** Rejects with the problem, if there is one. */
  check(): Promise<void>;
}

export interface CheckResult {
  readonly name: string;
  readonly status: 'ok' | 'failed';
  readonly problem?: string;
}

/** Serves the paths at and below `/console`. The host has been checked. */
export type HandleConsole = (request: AdminMessage, runChecks: () => Promise<readonly CheckResult[]>) => Promise<Reply>;

interface AdminListenerOptions extends AdminCredentials {
  readonly host: string;
  readonly port: number;
  readonly checks: readonly ReadinessCheck[];
  /** Without it, the listener uses plain HTTP. */
  readonly tls?: AdminTls | undefined;
  /** Accepted host names, in addition to `localhost` and IP addresses. */
  readonly hostNames?: readonly string[];
  readonly handleAdminRequest?: ((request: AdminRequest) => Promise<JsonResponse>) | undefined;
  /** Metrics of all processes, in the Prometheus text format. */
  readonly metrics?: (results: readonly CheckResult[]) => Promise<string>;
  /** Without it, there is no console. */
  readonly handleConsole?: HandleConsole | undefined;
  readonly log?: Pick<Logger, 'error' | 'warn'>;
}

/** The files are PEM. A client certificate issued by `clientCa` authenticates to the admin API; probes need none. */
export interface AdminTls {
  readonly certificate: string;
  readonly key: string;
  readonly clientCa?: string | undefined;
}

/** Probes need neither certificate nor token: kubelets have none. The aliases are those of other gateways. */
const LIVENESS_PATHS = new Set(['/livez', '/healthz', '/ping', '/health/alive']);
const READINESS_PATHS = new Set(['/readyz', '/ready', '/health/ready']);
const METRICS_PATH = '/metrics';
const ADMIN_PATH = '/admin/v1';
const CONSOLE_PATH = '/console';
const MAX_CONNECTIONS = 256;
const IDLE_TIMEOUT_MS = 120_000;

export type AdminListener = Awaited<ReturnType<typeof openAdminListener>>;

/** Serves probes, metrics, the admin API and the console. None of it is reachable through the public listener. */
export async function openAdminListener(options: AdminListenerOptions) {
  const { host, port, tls } = options;
  let { certificate, clientCa } = tls ?? {};
  const server = createAdminServer(tls);
  const connections = limitConnections(server, MAX_CONNECTIONS);
  const isAllowedHost = createHostCheck([host, ...(options.hostNames ?? [])], () => certificate);
  server.on('request', createRequestHandler(options, isAllowedHost));
  server.listen(port, host);
  await once(server, 'listening');
  server.on('error', () => {});
  return {
    port: (server.address() as AddressInfo).port,
    /** Uses renewed certificates. Throws, and keeps the old ones, when they cannot be used. */
    setTls(next: AdminTls): void {
      if (!(server instanceof SecureServer)) return;
      // `requestCert` is set at start: without a clientCa, Node would accept certificates of every public CA.
      if ((next.clientCa === undefined) !== (clientCa === undefined))
        throw new Error('adding or removing admin.tls.clientCa needs a restart');
      server.setSecureContext(createTlsOptions(next));
      certificate = next.certificate;
      // Certificates are verified in the handshake: those of a removed CA must not authenticate further requests.
      if (next.clientCa !== clientCa) connections.closeAuthenticated();
      clientCa = next.clientCa;
    },
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function createAdminServer(tls: AdminTls | undefined): Server | SecureServer {
  const timeouts = { headersTimeout: 5_000, requestTimeout: 10_000, connectionsCheckingInterval: 1_000 };
  const server =
    tls === undefined
      ? createServer(timeouts)
      : createSecureServer({
          ...timeouts,
          ...createTlsOptions(tls),
          handshakeTimeout: 5_000,
          // Probes have no certificate; the admin API checks `authorized`.
          requestCert: tls.clientCa !== undefined,
          rejectUnauthorized: false,
        });
  // A second bound: connections that are closing still count.
  server.maxConnections = 4 * MAX_CONNECTIONS;
  // Closes connections of clients that do not read their response.
  server.setTimeout(IDLE_TIMEOUT_MS);
  return server;
}

const createTlsOptions = ({ certificate, key, clientCa }: AdminTls) => ({
  cert: certificate,
  key,
  ...SERVER_TLS_POLICY,
  // A resumed session would keep `authorized` of its first handshake, even after the certificate has expired.
  secureOptions: SERVER_TLS_POLICY.secureOptions | constants.SSL_OP_NO_TICKET,
  ...(clientCa !== undefined && { ca: clientCa }),
});

function createRequestHandler(
  options: AdminListenerOptions,
  isAllowedHost: (request: AdminMessage) => boolean,
): RequestListener {
  const { checks, metrics, log, handleAdminRequest, handleConsole } = options;
  const runners = checks.map((one) => ({ name: one.name, run: singleFlight(() => runCheck(one)) }));
  const getCheckResults = (excluded: readonly string[] = []): Promise<CheckResult[]> =>
    Promise.all(runners.filter(({ name }) => !excluded.includes(name)).map(({ run }) => run()));
  const scrape =
    metrics &&
    singleFlight(async () => {
      try {
        return createMetricsReply(await metrics(await getCheckResults()));
      } catch (error) {
        log?.error('metrics_failed', errorFields(error));
        return createErrorReply(500, 'server_error');
      }
    });
  const reportExposedToken = createExposedTokenReporter(log);
  const reportHost = createHostReporter(log);

  const checkReadiness = async (request: AdminMessage): Promise<Reply> => {
    const { query } = request;
    // As in Kubernetes' own components.
    const excluded = query.getAll('exclude');
    // Excluded checks are not run: a store that does not respond must not delay the probe.
    const results = await getCheckResults(excluded);
    const isReady = results.every(({ problem }) => problem === undefined);
    const isVerbose = (query.get('verbose') === '' || !isReady) && isAllowedHost(request) && !isFromBrowser(request);
    return createJsonReply({
      status: isReady ? 200 : 503,
      body: { status: isReady ? 'ready' : 'not ready', ...(isVerbose && { checks: results }) },
    });
  };

  /** Authenticates first: unauthenticated clients get the same response for every path. */
  const handleAdminPath = async (request: AdminMessage): Promise<Reply> => {
    const { method, path, query, peer: from } = request;
    try {
      const identity = authenticateAdmin(request, options, reportExposedToken);
      if (identity === undefined) return UNAUTHENTICATED;
      if (identity.role === 'viewer' && method !== 'GET' && method !== 'HEAD') return READ_ONLY;
      if (handleAdminRequest === undefined) return STORE_NOT_READY;
      const adminRequest = { method, path: path.slice(ADMIN_PATH.length), query, by: identity.name, from };
      return createJsonReply(
        await handleAdminRequest({ ...adminRequest, readSelection: () => readSelection(request) }),
      );
    } catch (error) {
      if (error instanceof Fault) return STORE_NOT_READY;
      // Without path and body: they may identify users.
      log?.error('admin_request_failed', { method, ...errorFields(error) });
      return createErrorReply(500, 'server_error', 'Internal error.');
    }
  };

  const respond = async (request: AdminMessage): Promise<Reply> => {
    const { method, path } = request;
    const isAdminPath = isAtOrBelow(ADMIN_PATH, path);
    const isConsolePath = handleConsole !== undefined && isAtOrBelow(CONSOLE_PATH, path);
    if (isAdminPath || isConsolePath || path === METRICS_PATH) {
      if (!isAllowedHost(request)) {
        reportHost(request);
        return MISDIRECTED;
      }
      if (isConsolePath) return handleConsole(request, () => getCheckResults());
      if (isFromBrowser(request)) return FROM_BROWSER;
    }
    if (isAdminPath) return handleAdminPath(request);
    if (method !== 'GET' && method !== 'HEAD') return METHOD_NOT_ALLOWED;
    if (LIVENESS_PATHS.has(path)) return ALIVE;
    if (READINESS_PATHS.has(path)) return checkReadiness(request);
    if (path === METRICS_PATH && scrape !== undefined) return scrape();
    return createErrorReply(404, 'not_found');
  };

  return (message, response) => {
    respond(readMessage(message))
      .then((reply) => sendReply(response, reply))
      .catch((error: unknown) => {
        log?.error('admin_request_failed', errorFields(error));
        response.destroy();
      });
  };
}

const createErrorReply = (...error: Parameters<typeof createErrorResponse>): Reply =>
  createJsonReply(createErrorResponse(...error));

const ALIVE = createJsonReply({ status: 200, body: { status: 'alive' } });
const METHOD_NOT_ALLOWED = createErrorReply(405, 'method_not_allowed', undefined, { allow: 'GET, HEAD' });
/** RFC 9110 §15.5.20. */
const MISDIRECTED = createErrorReply(
  421,
  'misdirected_request',
  'The admin listener does not serve this host name; use an IP address, or add the name to admin.hostNames and restart gatehouse.',
);
const FROM_BROWSER = createErrorReply(403, 'access_denied', 'Requests from web pages are not accepted.');
const UNAUTHENTICATED = createErrorReply(
  401,
  'invalid_token',
  'Send the admin token as Authorization: Bearer, or a client certificate issued by admin.tls.clientCa.',
  { 'www-authenticate': 'Bearer realm="gatehouse administration"' },
);
const READ_ONLY = createErrorReply(403, 'access_denied', 'This credential may view grants, not revoke them.');
const STORE_NOT_READY = createErrorReply(503, 'temporarily_unavailable', 'The store has not been reached yet.', {
  'retry-after': '1',
});

const createMetricsReply = (body: string): Reply => ({
  status: 200,
  headers: {
    'content-type': EXPOSITION_CONTENT_TYPE,
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
  },
  body,
});

const isAtOrBelow = (base: string, path: string): boolean => path === base || path.startsWith(`${base}/`);

/** Reports are throttled, because any client can cause them. */
export function createExposedTokenReporter(log: AdminListenerOptions['log']): (file: string) => void {
  const report = throttleReports((_count, file: string) =>
    log?.error('admin_token_refused', { file, problem: 'other users can read it; run chmod 600' }),
  );
  return (file) => report(1, file);
}

/**
 * Was this sent by a web page? A browser may hold an operator's certificate and present it for any page. The console
 * has paths and checks of its own, so no page has a reason to call the others.
 */
const isFromBrowser = ({ headers: { origin, 'sec-fetch-site': site } }: AdminMessage): boolean =>
  origin !== undefined || (site !== undefined && site !== 'none');

/** RFC 1035 §2.3.4: a name of 253 characters; plus a colon and a port. */
const MAX_HOST_LENGTH = 259;

function createHostReporter(log: AdminListenerOptions['log']): (request: AdminMessage) => void {
  const limitReports = createReportLimiter();
  return ({ headers, peer }) => {
    const host = (headers['host'] ?? '').toLowerCase().slice(0, MAX_HOST_LENGTH);
    const report = log && limitReports(host);
    if (report === undefined) return;
    log?.warn('admin_host_refused', { host, peer, setting: 'admin.hostNames', ...report });
  };
}

const CHECK_TIMEOUT_MS = 2_000;

async function runCheck(readinessCheck: ReadinessCheck): Promise<CheckResult> {
  const { name } = readinessCheck;
  try {
    await withTimeout(readinessCheck.check(), CHECK_TIMEOUT_MS, () => {
      throw new Error('timed out');
    });
    return { name, status: 'ok' };
  } catch (error) {
    return { name, status: 'failed', problem: (error as Error).message };
  }
}
