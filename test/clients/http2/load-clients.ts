import { readFileSync } from 'node:fs';
import { type ClientHttp2Session, connect } from 'node:http2';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type * as undici from 'undici';
import { spawnChild } from '../../support/child-process.ts';
import { until } from '../../support/until.ts';
import { installPythonTools } from '../python.ts';

/** Clients that send requests all the time, and never repeat one. */
export interface LoadClient {
  readonly name: string;
  readonly failures: readonly string[];
  readonly completed: () => number;
  readonly stop: () => Promise<unknown>;
}

export interface LoadTarget {
  readonly url: string;
  readonly caFile: string;
}

interface Load {
  readonly name: string;
  /** Requests at a time, on one connection. */
  readonly concurrency: number;
  /** Between a response and the next request. Without it, the next request is sent on receipt of the response. */
  readonly pauseMs?: number;
}

/** Sends a request; returns the status and the body. */
type Send = () => Promise<string>;

function startLoad({ name, concurrency, pauseMs }: Load, send: Send, close: () => unknown): LoadClient {
  const failures: string[] = [];
  let completed = 0;
  const stopped = new AbortController();
  const run = async (): Promise<void> => {
    while (!stopped.signal.aborted) {
      try {
        const result = await send();
        if (result === '200 ok') completed += 1;
        else failures.push(result);
      } catch (error) {
        failures.push((error as Error).message);
        await sleep(10);
      }
      if (pauseMs !== undefined) await sleep(pauseMs);
    }
  };
  const running = Promise.all(Array.from({ length: concurrency }, run));
  return {
    name,
    failures,
    completed: () => completed,
    async stop() {
      stopped.abort();
      await running;
      await close();
    },
  };
}

export function startNodeHttp2({ url, caFile }: LoadTarget, load: Load): LoadClient {
  const ca = readFileSync(caFile);
  const { origin, pathname } = new URL(url);
  let session: ClientHttp2Session | undefined;
  const open = (): ClientHttp2Session => {
    if (session !== undefined && !session.closed && !session.destroyed) return session;
    session = connect(origin, { ca });
    return session.on('error', () => {});
  };
  const send: Send = () =>
    new Promise((resolve, reject) => {
      const stream = open().request({ ':path': pathname }).setEncoding('utf8');
      let text = '';
      let status = 0;
      stream.on('response', (fields) => {
        status = Number(fields[':status']);
      });
      stream.on('data', (part: string) => {
        text += part;
      });
      stream.on('error', reject).on('close', () => resolve(`${status} ${text}`));
      stream.end();
    });
  return startLoad(load, send, () => session?.close());
}

/** Any version of undici. */
export function startUndici(
  { Agent, request }: Pick<typeof undici, 'Agent' | 'request'>,
  { url, caFile }: LoadTarget,
  load: Load,
): LoadClient {
  const ca = readFileSync(caFile, 'utf8');
  const dispatcher = new Agent({ allowH2: true, connections: 1, connect: { ca } });
  const send: Send = async () => {
    const { statusCode, body } = await request(url, { dispatcher });
    return `${statusCode} ${await body.text()}`;
  };
  return startLoad(load, send, () => dispatcher.destroy());
}

const HTTPX = fileURLToPath(new URL('./httpx_load.py', import.meta.url));

/** `concurrency: 0`: the synchronous client. */
export async function startHttpx(
  { url, caFile }: LoadTarget,
  { name, concurrency, pauseMs = 0 }: Load,
): Promise<LoadClient> {
  const failures: string[] = [];
  let completed = 0;
  const child = spawnChild([join(await installPythonTools(), 'python'), HTTPX], {
    env: {
      ...process.env,
      GATEHOUSE_URL: url,
      CA_FILE: caFile,
      CONCURRENCY: String(concurrency),
      PAUSE_SECONDS: String(pauseMs / 1_000),
    },
    onLine(line) {
      if (line === 'ok') completed += 1;
      else failures.push(line);
    },
  });
  return {
    name,
    failures,
    completed: () => completed,
    async stop() {
      child.process.stdin.end();
      await child.ended;
    },
  };
}

/** Waits until each client has received `count` more responses. */
export async function waitForMore(clients: readonly LoadClient[], count: number): Promise<void> {
  const wanted = clients.map(({ completed }) => completed() + count);
  await until(`each client has ${count} more responses`, () =>
    clients.every(({ completed }, index) => completed() >= (wanted[index] ?? 0)),
  );
}
