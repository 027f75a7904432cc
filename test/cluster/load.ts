import { type ClientHttp2Session, connect as connectHttp2, constants } from 'node:http2';
import { Agent, request as httpsRequest } from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';
import { until } from '../support/until.ts';
import { HOST } from './client.ts';
import { COUNTS } from './counts.ts';

/**
 * Requests at a steady rate, from clients of three kinds: kept-alive connections, a new connection for each request, and
 * HTTP/2. Nothing is retried. Each failure is recorded with its time and kind.
 */
export interface Load {
  sent(): number;
  /** Waits until this number of requests was sent in total. */
  reach(count: number): Promise<void>;
  /** Waits for this number of further requests. */
  more(count: number): Promise<void>;
  /** So far. */
  report(): LoadReport;
  /** Ends the load; waits for the responses. */
  stop(): Promise<LoadReport>;
}

export type ClientKind = 'kept-alive' | 'new connections' | 'HTTP/2';

export interface LoadReport {
  readonly sent: number;
  readonly succeeded: number;
  /** Requests without a successful response, by kind. */
  readonly failures: Readonly<Record<string, number>>;
  /** Seconds since the start, of the first failures. */
  readonly firstFailures: readonly string[];
  /** Of the requests, by kind of client. */
  readonly sentBy: Readonly<Record<ClientKind, number>>;
  readonly seconds: number;
}

export interface LoadOptions {
  readonly address: string;
  readonly port?: number;
  readonly ca: string;
  readonly token: string;
  readonly path?: string;
  /** Requests per second of all clients together. */
  readonly rate?: number;
  /** Clients of each kind. */
  readonly clients?: Readonly<Partial<Record<ClientKind, number>>>;
}

const DEADLINE_MS = 30_000;
const DEFAULT_CLIENTS = { 'kept-alive': 12, 'new connections': 4, 'HTTP/2': 4 } as const;

export function startLoad(options: LoadOptions): Load {
  const { rate = COUNTS.rate, clients = DEFAULT_CLIENTS } = options;
  const begun = performance.now();
  const stopped = new AbortController();
  const failures: Record<string, number> = {};
  const firstFailures: string[] = [];
  const sentBy: Record<ClientKind, number> = { 'kept-alive': 0, 'new connections': 0, 'HTTP/2': 0 };
  const total = (): number => Object.values(sentBy).reduce((sum, count) => sum + count, 0);
  let succeeded = 0;

  const kinds = (Object.entries(clients) as [ClientKind, number][]).flatMap(([kind, count]) =>
    Array.from({ length: count }, () => kind),
  );
  const pauseMs = (kinds.length / rate) * 1_000;

  const runClient = async (kind: ClientKind, index: number): Promise<void> => {
    const client = CLIENTS[kind](options);
    // The clients of a kind do not send at the same moment.
    let next = performance.now() + (index / kinds.length) * pauseMs;
    while (!stopped.signal.aborted) {
      await sleep(Math.max(0, next - performance.now()));
      // After a slow response the pace resumes; requests that were due are not sent in a burst.
      next = Math.max(next + pauseMs, performance.now());
      if (stopped.signal.aborted) break;
      sentBy[kind] += 1;
      const problem = await client.send();
      if (problem === undefined) {
        succeeded += 1;
        continue;
      }
      const name = `${kind}: ${problem}`;
      failures[name] = (failures[name] ?? 0) + 1;
      if (firstFailures.length < 20)
        firstFailures.push(`${((performance.now() - begun) / 1_000).toFixed(1)} s ${name}`);
    }
    client.close();
  };
  const report = (): LoadReport => ({
    sent: total(),
    succeeded,
    failures: { ...failures },
    firstFailures: [...firstFailures],
    sentBy: { ...sentBy },
    seconds: Math.round((performance.now() - begun) / 1_000),
  });
  const running = kinds.map(runClient);
  const reach: Load['reach'] = async (count) => {
    // Ten times the expected time, on a busy machine.
    const seconds = 60 + ((count - total()) / rate) * 10;
    await until(`${count} requests were sent`, () => total() >= count, seconds);
  };
  return {
    sent: total,
    reach,
    more: (count) => reach(total() + count),
    report,
    async stop() {
      stopped.abort();
      await Promise.all(running);
      return report();
    },
  };
}

export const countFailures = ({ failures }: LoadReport): number =>
  Object.values(failures).reduce((sum, count) => sum + count, 0);

/** One line for the published figures. */
export function describeLoad(what: string, report: LoadReport): string {
  const failed = countFailures(report);
  const kinds = Object.entries(report.failures).map(([kind, count]) => `${count} × ${kind}`);
  const details = failed === 0 ? '' : ` (${kinds.join(', ')}; ${report.firstFailures.join(', ')})`;
  return `${what}: ${report.sent} requests in ${report.seconds} s, ${failed} failed${details}`;
}

interface LoadClient {
  /** Returns the problem, if any. */
  send(): Promise<string | undefined>;
  close(): void;
}

const CLIENTS: Readonly<Record<ClientKind, (options: LoadOptions) => LoadClient>> = {
  'kept-alive': (options) => createHttp1Client(options, true),
  'new connections': (options) => createHttp1Client(options, false),
  'HTTP/2': createHttp2Client,
};

function createHttp1Client(
  { address, port = 443, ca, token, path = '/files/a' }: LoadOptions,
  keepAlive: boolean,
): LoadClient {
  const agent = new Agent({ keepAlive, maxSockets: 1, ca });
  const headers = { host: HOST, authorization: `Bearer ${token}` };
  const send = (): Promise<string | undefined> =>
    new Promise((resolve) => {
      const request = httpsRequest({ host: address, port, servername: HOST, agent, path, headers });
      const deadline = setTimeout(() => request.destroy(new Error('no response in time')), DEADLINE_MS);
      const finish = (problem?: string): void => {
        clearTimeout(deadline);
        resolve(problem);
      };
      const describe = (error: NodeJS.ErrnoException): string =>
        `${error.code ?? error.message}${request.reusedSocket ? ' on a reused connection' : ''}`;
      request.on('error', (error) => finish(describe(error)));
      request.on('response', (response) => {
        response.on('error', (error) => finish(`body: ${describe(error)}`));
        response.on('end', () =>
          finish(response.statusCode === 200 && response.complete ? undefined : `status ${response.statusCode}`),
        );
        response.resume();
      });
      request.end();
    });
  return { send, close: () => agent.destroy() };
}

function createHttp2Client({ address, port = 443, ca, token, path = '/files/a' }: LoadOptions): LoadClient {
  let session: ClientHttp2Session | undefined;
  const open = (): ClientHttp2Session => {
    if (session !== undefined && !session.closed && !session.destroyed) return session;
    const opened = connectHttp2(`https://${HOST}:${port}`, {
      ca,
      servername: HOST,
      lookup: (_name, { all }, done) => (all === true ? done(null, [{ address, family: 4 }]) : done(null, address, 4)),
    });
    // The request reports it.
    opened.on('error', () => {});
    // After GOAWAY, a client opens a new connection (RFC 9113 §6.8).
    opened.on('goaway', () => opened.close());
    session = opened;
    return opened;
  };
  const send = (): Promise<string | undefined> =>
    new Promise((resolve) => {
      const stream = open().request({ ':path': path, authorization: `Bearer ${token}` });
      let status = 0;
      let failure: string | undefined;
      const deadline = setTimeout(() => {
        failure = 'no response in time';
        stream.close(constants.NGHTTP2_CANCEL);
      }, DEADLINE_MS);
      stream.on('response', (fields) => {
        status = Number(fields[':status']);
      });
      stream.on('error', (error: NodeJS.ErrnoException) => {
        failure ??= `${error.code ?? error.message} (reset ${stream.rstCode})`;
      });
      stream.on('close', () => {
        clearTimeout(deadline);
        if (failure === undefined && (status !== 200 || stream.rstCode !== 0))
          failure = `status ${status} (reset ${stream.rstCode})`;
        resolve(failure);
      });
      stream.resume();
      stream.end();
    });
  return { send, close: () => session?.close() };
}

/** The certificate that a listener presents. */
export async function readServerCertificate(address: string, port: number, ca: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = httpsRequest({
      host: address,
      port,
      servername: HOST,
      ca,
      agent: false,
      path: '/health',
    });
    request.on('error', reject);
    request.on('response', (response) => {
      const { serialNumber } = (response.socket as TLSSocket).getPeerCertificate();
      response.resume().on('end', () => resolve(serialNumber.toLowerCase()));
    });
    request.setTimeout(DEADLINE_MS, () => request.destroy(new Error('no response in time')));
    request.end();
  });
}
