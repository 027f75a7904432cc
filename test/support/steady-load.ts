import { type ClientHttp2Session, connect as connectHttp2, constants } from 'node:http2';
import { setTimeout as sleep } from 'node:timers/promises';
import { createHttpsClient } from './https-client.ts';
import { until } from './until.ts';

/**
 * Clients that send requests continuously over HTTP/1.1 and HTTP/2 and record every failed request. They retry only what
 * RFC 9113 §6.8 allows: requests that the server has certainly not processed.
 */
export interface SteadyLoad {
  readonly failures: readonly string[];
  completed(): number;
  /** Waits for `count` more responses. */
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
  /** Pause between two requests of a client. Without it, the clients take the CPU that starting processes need. */
  readonly pauseMs?: number;
  /** A new connection for each request of the HTTP/1.1 clients. */
  readonly newConnections?: boolean;
  /** Describes the problem of a response; undefined if there is none. */
  readonly check?: (response: { readonly status: number; readonly body: string }) => string | undefined;
}

const checkOk: NonNullable<LoadOptions['check']> = ({ status, body }) =>
  status === 200 ? undefined : `status ${status}: ${body.slice(0, 200)}`;

export function startSteadyLoad(options: LoadOptions): SteadyLoad {
  const { port, ca, path, token, http1 = 6, http2 = 2, newConnections = false, pauseMs, check = checkOk } = options;
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
      const opened = connectHttp2(`https://localhost:${port}`, { ca });
      opened.on('error', (error) => failures.push(`HTTP/2 connection: ${error.message}`));
      opened.on('goaway', () => opened.close());
      session = opened;
      return opened;
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
            status === 0 && (stream.rstCode === constants.NGHTTP2_REFUSED_STREAM || /GOAWAY/.test(error.message));
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

  const running = [...Array.from({ length: http1 }, http1Client), ...Array.from({ length: http2 }, http2Client)];
  return {
    failures,
    completed: () => completed,
    async waitForMore(count, seconds = 30) {
      const wanted = completed + count;
      await until(`${count} more responses`, () => completed >= wanted, seconds);
    },
    async stop() {
      stopped.abort();
      await Promise.all(running);
    },
  };
}
