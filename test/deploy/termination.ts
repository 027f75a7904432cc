import type { ServerResponse } from 'node:http';
import { connect as connectTcp } from 'node:net';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import { beginRequest, type Reply } from '../support/https-client.ts';
import { connect, createServeFolder, type ServeFolder, startServe } from '../support/serve-process.ts';
import { until } from '../support/until.ts';

/** The results of the clients during one termination. */
export interface TerminationResult {
  readonly exitCode: number | null;
  readonly sent: number;
  /** Failed requests. */
  readonly failures: readonly string[];
}

export interface TerminationFolder extends ServeFolder {
  /** Requests to which the API has not responded yet. */
  readonly inFlight: () => number;
  /** Responds to the pending requests for `/slow`. */
  readonly respond: () => void;
}

/** Creates a folder with an API that responds to `/slow` only when the test calls `respond`. */
export async function createTerminationFolder(preStop: string): Promise<TerminationFolder> {
  let underWay = 0;
  const slow: ServerResponse[] = [];
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      routes: [{ path: '/**', public: true }],
      shutdown: { preStop, drain: '30s' },
      log: { level: 'info', access: { enabled: false } },
    }),
    (incoming, response) => {
      underWay += 1;
      response.on('close', () => {
        underWay -= 1;
      });
      incoming.resume().on('end', () => {
        if (incoming.url === '/slow') slow.push(response);
        else response.end('ok');
      });
    },
  );
  const respond = (): void => slow.splice(0).forEach((response) => response.end('ok'));
  return { ...folder, inFlight: () => underWay, respond };
}

/** The pre-stop time ends when the test calls `expireTimers`. */
export const PRE_STOP_SECONDS = 45;
/** Number of requests within the pre-stop time, on open and on new connections each. */
const LATE = 20;

/**
 * Terminates a process like a pod behind a load balancer: requests are running when SIGTERM arrives, and clients continue to
 * send requests within the pre-stop time, on open and on new connections.
 */
export async function terminateOnce(folder: TerminationFolder): Promise<TerminationResult> {
  const server = await startServe(folder, {
    set: ['listen.workers=1'],
    ...holdTimers(PRE_STOP_SECONDS * 1_000),
  });
  const failures: string[] = [];
  let requestCount = 0;
  const record = async (what: string, reply: Promise<Pick<Reply, 'status' | 'text'>>): Promise<void> => {
    requestCount += 1;
    try {
      const { status, text } = await reply;
      if (status !== 200 || text !== 'ok') failures.push(`${what}: ${status} ${text}`);
    } catch (error) {
      failures.push(`${what}: ${(error as Error).message}`);
    }
  };
  const kept = connect(folder, server.port);
  const other = connect(folder, server.port);
  try {
    await record('before', kept.request({ path: '/health' }));
    const running = record('in flight', other.request({ path: '/slow' }));
    const upload = send(folder, server.port, '/upload');
    upload.begin('first half, ');
    const uploaded = record('upload', upload.answer);
    await until('both requests have reached the API', () => folder.inFlight() >= 2);
    server.signal('SIGTERM');
    await until('the process is draining', () => server.log.some(({ event }) => event === 'draining'));
    for (let count = 0; count < LATE; count += 1) {
      const fresh = send(folder, server.port, '/health');
      fresh.finish('');
      await Promise.all([
        record('late, kept connection', kept.request({ path: '/health' })),
        record('late, new connection', fresh.answer),
      ]);
    }
    expireTimers(server);
    await until('the listener is closed', () => isRefused(server.port));
    folder.respond();
    upload.finish('second half');
    await Promise.all([running, uploaded]);
    const { code } = await server.ended;
    return { exitCode: code, sent: requestCount, failures };
  } finally {
    kept.close();
    other.close();
  }
}

const isRefused = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connectTcp(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(false);
    }).on('error', () => resolve(true));
  });

/** Sends a request on a new connection; the caller sends the body in parts. */
export function send(folder: ServeFolder, port: number, path: string) {
  const { sent, reply } = beginRequest({
    port,
    path,
    method: 'POST',
    ca: folder.ca.pem,
    headers: { 'content-type': 'text/plain', 'transfer-encoding': 'chunked' },
  });
  let connected = Number.POSITIVE_INFINITY;
  sent.once('socket', (socket) =>
    socket.once('connect', () => {
      connected = performance.now();
    }),
  );
  return {
    answer: reply.then(({ status, text }) => ({ status, text })),
    connected: () => connected,
    begin: (text: string) => void sent.write(text),
    finish: (text: string) => void sent.end(text),
  };
}
