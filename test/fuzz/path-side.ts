import { connect, type Socket } from 'node:net';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { type ProxyHarness, RULES, rule, startProxyHarness } from '../support/proxy-harness.ts';
import {
  type RecordedRequest,
  type RecordingUpstream,
  startRecordingUpstream,
} from '../support/recording-upstream.ts';
import type { PathCase } from './path-cases.ts';

/** One of two gateways that differ in the path alone, with an upstream of its own and a client that keeps its connection. */
export interface PathSide {
  readonly proxy: ProxyHarness;
  readonly upstream: RecordingUpstream;
  /** What was sent on the connection that is open, from its first byte on. */
  readonly history: PathCase[];
  /** How often each last request was sent. */
  readonly requestCounts: Map<string, number>;
  send(one: PathCase, polls: number): Promise<Outcome>;
  /** The next case gets a connection of its own. */
  drop(): void;
  close(): Promise<void>;
}

export interface Outcome {
  /** Each request the upstream got, without what is drawn anew for each. */
  readonly seen: readonly string[];
  readonly statuses: string;
  /** The last answer said that it is the last. */
  readonly announcedClose: boolean;
  /** How the end was known: everything was answered, the gateway closed, or nothing came any more. */
  readonly ending: 'completed' | 'closed' | 'silent';
}

/** A connection is not kept for ever: a difference is looked for again with all that was sent on it. */
const MOST_ON_ONE = 40;

export async function openPathSide(proxyPath: 'fast' | 'full'): Promise<PathSide> {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    proxyPath,
    publicUrl: 'https://localhost:8443',
    // Weaker than the others, and in other spellings of their paths.
    rules: [...RULES, rule('/*/1', 'public')],
    // A machine that is busy with other things for a second is no fault of the upstream.
    upstreamSettings: { timeouts: { connect: 60, headers: 60, idle: 60 } },
  });
  const history: PathCase[] = [];
  const request = new Map<string, number>();
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
    requestCounts: request,
    drop,
    async send(one, polls) {
      if (history.length >= MOST_ON_ONE || client?.socket.destroyed === true) drop();
      client ??= openClient(proxy.port);
      history.push(one);
      if (one.last !== '') request.set(one.last, (request.get(one.last) ?? 0) + 1);
      const before = upstream.requests.length;
      const fallbacksBefore = countFallbacks(proxy);
      const { text, ending } = await client.send(one, () => upstream.bytes().length, polls);
      // What was on its way when the connection ended still arrives.
      if (ending !== 'completed') await eventLoopTurns(4);
      const seen = upstream.requests.slice(before).map(plain);
      // A connection that was handed over never comes back to the fast path.
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

const READ_INTO = Buffer.alloc(65_536);

interface Client {
  readonly socket: Socket;
  /** Silent: neither client nor upstream has received a byte for this many polls of the event loop. */
  send(
    one: PathCase,
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
  // All of them read into one buffer, and each takes out what is its own at once.
  const onread = { buffer: READ_INTO, callback: onRead };
  const socket = connect({ port, host: '127.0.0.1', noDelay: true, onread });
  socket.on('error', () => {}).on('close', () => finish('closed'));
  return {
    socket,
    send: (one, upstreamBytes, polls) =>
      new Promise((resolve) => {
        text = '';
        isDone = one.methods === undefined ? endsWithLast(one) : hasResponses(one.methods);
        let isOver = false;
        finish = (ending) => {
          isOver = true;
          finish = () => {};
          isDone = () => false;
          resolve({ text, ending });
        };
        const waitForSilence = async (): Promise<void> => {
          for (let still = 0, last = -1; still < polls; still += 1) {
            const moved = socket.bytesRead + upstreamBytes();
            if (moved !== last) still = 0;
            last = moved;
            await eventLoopTurns(1);
            if (isOver) return;
          }
          finish('silent');
        };
        const ends = [...one.cuts, one.bytes.length];
        const write = (piece: number): void => {
          const end = ends[piece];
          if (socket.destroyed) return;
          if (end === undefined) return void waitForSilence();
          const from = piece === 0 ? 0 : (ends[piece - 1] ?? 0);
          socket.write(one.bytes.subarray(from, end), () => setImmediate(write, piece + 1));
        };
        write(0);
      }),
  };
}

/** The upstream tells what it was asked for. */
const endsWithLast = ({ last }: PathCase): ((text: string) => boolean) => {
  const end = `\r\n\r\nGET ${last}`;
  return (text) => text.endsWith(end) && !announcesClose(text);
};

/** As many whole answers as there were requests, none of which ends the connection. */
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
      if (CLOSES.test(head) || !(end <= text.length)) return false;
      at = end;
      count += 1;
    }
    return at === text.length;
  };
}

const CLOSES = /\r\nconnection: close\r\n/i;
const announcesClose = (text: string): boolean => {
  const start = text.lastIndexOf('HTTP/1.1 ');
  return start >= 0 && CLOSES.test(text.slice(start));
};

const statuses = (text: string): string => (text.match(/HTTP\/1\.1 \d{3}/g) ?? []).join();

const FRESH = new Set(['x-request-id', 'traceparent']);

function plain({ method, target, headers, body, trailers }: RecordedRequest): string {
  const fields = headers
    .map(([name, value]) => (FRESH.has(name) ? name : name === 'host' ? 'host' : `${name}: ${value}`))
    .sort();
  return JSON.stringify([method, target, fields, body, trailers]);
}
