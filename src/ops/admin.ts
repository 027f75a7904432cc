import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { sendJson } from '../http/answer.ts';
import { EXPOSITION_TYPE } from '../observability/exposition.ts';

/** One thing readiness depends on: resolves, or throws what is wrong. */
export interface Check {
  readonly name: string;
  check(): Promise<void>;
}

export interface AdminOptions {
  readonly host: string;
  readonly port: number;
  readonly checks: readonly Check[];
  /** The figures of all processes, in the Prometheus text format. */
  readonly metrics?: (found: readonly Finding[]) => Promise<string>;
}

/** What came of a check. */
export interface Finding {
  readonly name: string;
  readonly status: 'ok' | 'failed';
  readonly problem?: string;
}

export interface AdminListener {
  readonly port: number;
  close(): Promise<void>;
}

/** Probes answer without a certificate or token: kubelets have neither. Aliases are what neighbours' users are used to. */
const LIVE = new Set(['/livez', '/healthz', '/ping', '/health/alive']);
const READY = new Set(['/readyz', '/ready', '/health/ready']);
const METRICS = '/metrics';

/** The admin listener, apart from the public one: what is here cannot be reached through the public port. */
export async function openAdmin({ host, port, checks, metrics }: AdminOptions): Promise<AdminListener> {
  const server = createServer({
    headersTimeout: 5_000,
    requestTimeout: 10_000,
    connectionsCheckingInterval: 1_000,
  });
  server.maxConnections = 256;
  const scrape = metrics && shared(async () => answerWith(await metrics(await readiness(checks))));
  server.on('request', (request, response) => {
    const [path = '', query = ''] = (request.url ?? '').split('?', 2);
    if (request.method !== 'GET' && request.method !== 'HEAD')
      return sendJson(response, {
        status: 405,
        body: { error: 'method_not_allowed' },
        headers: { allow: 'GET, HEAD' },
      });
    if (LIVE.has(path)) return sendJson(response, { status: 200, body: { status: 'alive' } });
    if (READY.has(path))
      return void readiness(checks).then((found) => {
        const ready = found.every(({ problem }) => problem === undefined);
        const detail = query.split('&').includes('verbose') || !ready;
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
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
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

/** Whoever asks while it is being found out gets the same answer: many who ask cost no more than one. */
function shared(find: () => Promise<Answered>): () => Promise<Answered> {
  let running: Promise<Answered> | undefined;
  return () => {
    running ??= find()
      .catch(
        (): Answered => (response) => sendJson(response, { status: 500, body: { error: 'server_error' } }),
      )
      .finally(() => {
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
