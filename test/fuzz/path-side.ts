import { connect, type Socket } from 'node:net';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { type ProxyHarness, RULES, rule, startProxyHarness } from '../support/proxy-harness.ts';
import {
  type RecordedRequest,
  type RecordingUpstream,
  startRecordingUpstream,
} from '../support/recording-upstream.ts';
import type { PathCase } from './path-cases.ts';

/** One of two gateways that differ only in the path, with its own upstream and a client that reuses its connection. */
export interface PathSide {
  readonly proxy: ProxyHarness;
  readonly upstream: RecordingUpstream;
  /** The cases sent on the open connection. */
  readonly history: PathCase[];
  /** How often each final request was sent. */
  readonly requestCounts: Map<string, number>;
  send(pathCase: PathCase, polls: number): Promise<Outcome>;
  /** Closes the connection; the next case gets a new one. */
  drop(): void;
  close(): Promise<void>;
}

export interface Outcome {
  /** The requests that the upstream received, without values that are random per request. */
  readonly seen: readonly string[];
  readonly statuses: string;
  /** Whether the last response had `Connection: close`. */
  readonly announcedClose: boolean;
  /** All responses arrived, the gateway closed the connection, or no more bytes arrived. */
  readonly ending: 'completed' | 'closed' | 'silent';
}

/** Limits the cases per connection, since a difference is rechecked with everything that was sent on it. */
const MAX_CASES_PER_CONNECTION = 40;

export async function openPathSide(proxyPath: 'fast' | 'full'): Promise<PathSide> {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    proxyPath,
    publicUrl: 'https://localhost:8443',
    // A weaker rule that matches other spellings of protected paths.
    rules: [...RULES, rule('/*/1', 'public')],
    // Long timeouts, so that a busy machine does not look like an upstream failure.
    upstreamSettings: { timeouts: { connect: 60, headers: 60, idle: 60 } },
  });
  const history: PathCase[] = [];
  const requestCounts = new Map<string, number>();
  let client: Client | undefined;
  const drop = (): void => {
    client?.socket.destroy();
    client = undefined;
    history.length = 0;
  };
  return {
    proxy,
    upstream,
    history,
    requestCounts,
    drop,
    async send(pathCase, polls) {
      if (history.length >= MAX_CASES_PER_CONNECTION || client?.socket.destroyed === true) drop();
      client ??= openClient(proxy.port);
      history.push(pathCase);
      if (pathCase.last !== '') requestCounts.set(pathCase.last, (requestCounts.get(pathCase.last) ?? 0) + 1);
      const before = upstream.requests.length;
      const fallbacksBefore = countFallbacks(proxy);
      const { text, ending } = await client.send(pathCase, () => upstream.bytes().length, polls);
      // Bytes in transit when the connection ended still arrive.
      if (ending !== 'completed') await eventLoopTurns(4);
      const seen = upstream.requests.slice(before).map(normalize);
      // A connection that fell back never returns to the fast path.
      if (ending !== 'completed' || countFallbacks(proxy) > fallbacksBefore) drop();
      return { seen, statuses: statuses(text), announcedClose: announcesClose(text), ending };
    },
    async close() {
      drop();
      await proxy.close();
      await upstream.close();
    },
  };
}

export const countFallbacks = ({ fastPath }: ProxyHarness): number => {
  let sum = 0;
  for (const count of Object.values(fastPath?.counts.fallbacks ?? {})) sum += count;
  return sum;
};

const READ_BUFFER = Buffer.alloc(65_536);

interface Client {
  readonly socket: Socket;
  /** Silent: neither client nor upstream has received a byte for this many polls of the event loop. */
  send(
    pathCase: PathCase,
    upstreamBytes: () => number,
    polls: number,
  ): Promise<{ text: string; ending: Outcome['ending'] }>;
}

function openClient(port: number): Client {
  let text = '';
  let isDone: (text: string) => boolean = () => false;
  let finish: (ending: Outcome['ending']) => void = () => {};
  const onRead = (length: number, bytes: Uint8Array): boolean => {
    text += Buffer.from(bytes.buffer, bytes.byteOffset, length).toString('latin1');
    if (isDone(text)) finish('completed');
    return true;
  };
  // All clients share one read buffer and copy their bytes out immediately.
  const onread = { buffer: READ_BUFFER, callback: onRead };
  const socket = connect({ port, host: '127.0.0.1', noDelay: true, onread });
  socket.on('error', () => {}).on('close', () => finish('closed'));
  return {
    socket,
    send: (pathCase, upstreamBytes, polls) =>
      new Promise((resolve) => {
        text = '';
        isDone = pathCase.methods === undefined ? endsWithLast(pathCase) : hasResponses(pathCase.methods);
        let isFinished = false;
        finish = (ending) => {
          isFinished = true;
          finish = () => {};
          isDone = () => false;
          resolve({ text, ending });
        };
        const waitForSilence = async (): Promise<void> => {
          for (let unchanged = 0, last = -1; unchanged < polls; unchanged += 1) {
            const transferred = socket.bytesRead + upstreamBytes();
            if (transferred !== last) unchanged = 0;
            last = transferred;
            await eventLoopTurns(1);
            if (isFinished) return;
          }
          finish('silent');
        };
        const ends = [...pathCase.cuts, pathCase.bytes.length];
        const write = (piece: number): void => {
          const end = ends[piece];
          if (socket.destroyed) return;
          if (end === undefined) return void waitForSilence();
          const from = piece === 0 ? 0 : (ends[piece - 1] ?? 0);
          socket.write(pathCase.bytes.subarray(from, end), () => setImmediate(write, piece + 1));
        };
        write(0);
      }),
  };
}

/** The upstream echoes the request line. */
const endsWithLast = ({ last }: PathCase): ((text: string) => boolean) => {
  const end = `\r\n\r\nGET ${last}`;
  return (text) => text.endsWith(end) && !announcesClose(text);
};

/** Whether there is a complete response for each request, none of which closes the connection. */
function hasResponses(methods: readonly string[]): (text: string) => boolean {
  let at = 0;
  let count = 0;
  return (text) => {
    while (count < methods.length) {
      const headEnd = text.indexOf('\r\n\r\n', at);
      if (headEnd < 0) return false;
      const head = text.slice(at, headEnd + 2);
      const length = methods[count] === 'HEAD' ? '0' : /\r\ncontent-length: *(\d+)\r/i.exec(head)?.[1];
      const end = headEnd + 4 + Number(length);
      if (CONNECTION_CLOSE.test(head) || !(end <= text.length)) return false;
      at = end;
      count += 1;
    }
    return at === text.length;
  };
}

const CONNECTION_CLOSE = /\r\nconnection: close\r\n/i;
const announcesClose = (text: string): boolean => {
  const start = text.lastIndexOf('HTTP/1.1 ');
  return start >= 0 && CONNECTION_CLOSE.test(text.slice(start));
};

const statuses = (text: string): string => (text.match(/HTTP\/1\.1 \d{3}/g) ?? []).join();

const RANDOM_FIELDS = new Set(['x-request-id', 'traceparent']);

/** A request without values that are random or differ between upstreams. */
export function normalize({ method, target, headers, body, trailers }: RecordedRequest): string {
  const fields = headers
    .map(([name, value]) => (RANDOM_FIELDS.has(name) ? name : name === 'host' ? 'host' : `${name}: ${value}`))
    .sort();
  return JSON.stringify([method, target, fields, body, trailers]);
}
