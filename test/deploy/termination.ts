import type { ServerResponse } from 'node:http';
import { connect as connectTcp } from 'node:net';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import { beginRequest, type Reply } from '../support/https-client.ts';
import { connect, createServeFolder, type ServeFolder, startServe } from '../support/serve-process.ts';
import { until } from '../support/until.ts';

/** What clients saw of one termination. */
export interface TerminationResult {
  readonly exitCode: number | null;
  readonly sent: number;
  /** Requests without a good response. */
  readonly failures: readonly string[];
}

export interface TerminationFolder extends ServeFolder {
  /** Requests the API has begun and not answered yet. */
  readonly inFlight: () => number;
  /** Lets the API respond to the requests for `/slow` that it holds. */
  readonly respond: () => void;
}

/** An API that responds to `/slow` only when the test says so. */
export async function terminationFolder(preStop: string): Promise<TerminationFolder> {
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

/** It ends when the test says so. */
export const PRE_STOP_SECONDS = 45;
/** Requests on each of two kinds of connections within the pre-stop time. */
const LATE = 20;

/**
 * What a kubelet and a load balancer do to a pod that is to end: requests are running, SIGTERM comes, and clients that do
 * not know of it yet continue for less than the pre-stop time, on open connections and on new ones.
 */
export async function terminateOnce(folder: TerminationFolder): Promise<TerminationResult> {
  const server = await startServe(folder, {
    set: ['listen.workers=1'],
    ...holdTimers(PRE_STOP_SECONDS * 1_000),
  });
  const failures: string[] = [];
  let requestCount = 0;
  const note = async (what: string, reply: Promise<Pick<Reply, 'status' | 'text'>>): Promise<void> => {
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
    await note('before', kept.request({ path: '/health' }));
    const running = note('in flight', other.request({ path: '/slow' }));
    const upload = send(folder, server.port, '/upload');
    upload.begin('first half, ');
    const uploaded = note('upload', upload.answer);
    await until('both are under way', () => folder.inFlight() >= 2);
    server.signal('SIGTERM');
    await until('it drains', () => server.log.some(({ event }) => event === 'draining'));
    for (let count = 0; count < LATE; count += 1) {
      const fresh = send(folder, server.port, '/health');
      fresh.finish('');
      await Promise.all([
        note('late, kept connection', kept.request({ path: '/health' })),
        note('late, new connection', fresh.answer),
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

/** A request on a connection of its own, whose body is sent piece by piece. */
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
