import { type ClientHttp2Session, connect as connectHttp2, constants } from 'node:http2';
import { setTimeout as sleep } from 'node:timers/promises';
import { createHttpsClient } from './https-client.ts';
import { until } from './until.ts';

/**
 * Clients that never stop asking, over HTTP/1.1 and HTTP/2, and take note of every request that was not answered well. They
 * do what RFC 9113 §6.8 asks of a client (what was surely not begun is asked again elsewhere) and nothing beyond.
 */
export interface SteadyLoad {
  readonly failures: readonly string[];
  completed(): number;
  /** Waits until so many more were answered. */
  waitForMore(count: number, seconds?: number): Promise<void>;
  stop(): Promise<void>;
}

export interface LoadOptions {
  readonly port: number;
  readonly ca: string;
  readonly path: string;
  readonly token?: string;
  readonly http1?: number;
  readonly http2?: number;
  /** Between two requests of a client. Without it they take the CPU from processes that start meanwhile. */
  readonly pauseMs?: number;
  /** A new connection for each request of the HTTP/1.1 clients. */
  readonly newConnections?: boolean;
  /** What is wrong with an answer; undefined when nothing is. */
  readonly check?: (response: { readonly status: number; readonly body: string }) => string | undefined;
}

const isOk: NonNullable<LoadOptions['check']> = ({ status, body }) =>
  status === 200 ? undefined : `status ${status}: ${body.slice(0, 200)}`;

export function startSteadyLoad(options: LoadOptions): SteadyLoad {
  const {
    port,
    ca,
    path,
    token,
    http1 = 6,
    http2 = 2,
    newConnections = false,
    pauseMs,
    check = isOk,
  } = options;
  const failures: string[] = [];
  let completed = 0;
  const stopped = new AbortController();
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const record = (response: { status: number; body: string }): void => {
    completed += 1;
    const problem = check(response);
    if (problem !== undefined) failures.push(problem);
  };

  const http1Client = async (): Promise<void> => {
    const client = createHttpsClient({ port, ca, keepAlive: !newConnections });
    while (!stopped.signal.aborted) {
      await client.request({ path, headers }).then(
        ({ status, text }) => record({ status, body: text }),
        (error: Error) => failures.push(`HTTP/1.1: ${error.message}`),
      );
      if (pauseMs !== undefined) await sleep(pauseMs);
    }
    client.close();
  };

  const http2Client = async (): Promise<void> => {
    let session: ClientHttp2Session | undefined;
    const open = (): ClientHttp2Session => {
      if (session !== undefined && !session.closed && !session.destroyed) return session;
      const made = connectHttp2(`https://localhost:${port}`, { ca });
      made.on('error', (error) => failures.push(`HTTP/2 connection: ${error.message}`));
      made.on('goaway', () => made.close());
      session = made;
      return made;
    };
    while (!stopped.signal.aborted) {
      await new Promise<void>((resolve) => {
        const stream = open().request({ ':path': path, ...headers });
        let body = '';
        let status = 0;
        stream.setEncoding('utf8');
        stream.on('response', (fields) => {
          status = Number(fields[':status']);
        });
        stream.on('data', (part: string) => {
          body += part;
        });
        stream.on('error', (error) => {
          const notStarted =
            status === 0 &&
            (stream.rstCode === constants.NGHTTP2_REFUSED_STREAM || /GOAWAY/.test(error.message));
          if (!notStarted) failures.push(`HTTP/2: ${error.message} (${stream.rstCode})`);
        });
        stream.on('close', () => {
          if (stream.rstCode === 0 && status !== 0) record({ status, body });
          resolve();
        });
        stream.end();
      });
      if (pauseMs !== undefined) await sleep(pauseMs);
    }
    session?.close();
  };

  const running = [
    ...Array.from({ length: http1 }, http1Client),
    ...Array.from({ length: http2 }, http2Client),
  ];
  return {
    failures,
    completed: () => completed,
    async waitForMore(count, seconds = 30) {
      const wanted = completed + count;
      await until(`${count} more answers`, () => completed >= wanted, seconds);
    },
    async stop() {
      stopped.abort();
      await Promise.all(running);
    },
  };
}
