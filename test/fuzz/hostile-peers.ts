import { connect as connectTcp, createServer, type Socket } from 'node:net';
import { listenTcp } from '../support/tcp-server.ts';
import { type BrokenResponse, breakHttpResponse } from './broken-responses.ts';

/** What one place has sent. */
export interface Peer {
  readonly name: string;
  readonly port: number;
  /** Damaged responses that were sent. */
  readonly broken: () => number;
  /** The last of them, oldest first. */
  readonly last: () => readonly Buffer[];
  readonly close: () => Promise<void>;
}

interface PeerOptions {
  readonly name: string;
  readonly below: (limit: number) => number;
  /** One of this many responses stays valid, so that later steps are reached. 1: all; 0: none. */
  readonly validOneOf: number;
}

export interface HttpRequest {
  readonly path: string;
  readonly head: string;
  readonly body: Buffer;
}

/** How long a connection stays open on which nothing follows. */
const KEEP_MS = 2_500;
const KEPT_RESPONSES = 8;

interface Breaker extends Pick<Peer, 'broken' | 'last'> {
  readonly send: (socket: Socket, valid: Buffer, breakIt: BreakResponse) => void;
}

type BreakResponse = (valid: Buffer, below: PeerOptions['below']) => BrokenResponse;

function createBreaker({ validOneOf, below }: PeerOptions): Breaker {
  let count = 0;
  const last: Buffer[] = [];
  return {
    send(socket: Socket, valid: Buffer, breakIt: (valid: Buffer, below: PeerOptions['below']) => BrokenResponse): void {
      if (!socket.writable) return;
      if (validOneOf > 0 && below(validOneOf) === 0) return void socket.write(valid);
      const { bytes, end } = breakIt(valid, below);
      count += 1;
      last.push(bytes);
      if (last.length > KEPT_RESPONSES) last.shift();
      if (end === 'close') return void socket.end(bytes);
      socket.write(bytes);
      if (end === 'reset') setImmediate(() => socket.resetAndDestroy());
      else setTimeout(() => socket.destroy(), KEEP_MS).unref();
    },
    broken: () => count,
    last: () => last,
  };
}

/** An HTTP server that damages what `respond` returns: the bytes of a valid response. */
export async function startHttpPeer(
  options: PeerOptions,
  respond: (request: HttpRequest) => Buffer | Promise<Buffer>,
): Promise<Peer> {
  const { send, broken, last } = createBreaker(options);
  const server = createServer({ noDelay: true }, (socket) => {
    let received = Buffer.alloc(0);
    socket.on('data', (part: Buffer) => {
      received = Buffer.concat([received, part]);
      for (;;) {
        const headEnd = received.indexOf('\r\n\r\n');
        if (headEnd < 0) return;
        const head = received.toString('latin1', 0, headEnd);
        const length = Number(/^content-length: *(\d+)/im.exec(head)?.[1] ?? 0);
        if (received.length < headEnd + 4 + length) return;
        const body = received.subarray(headEnd + 4, headEnd + 4 + length);
        received = received.subarray(headEnd + 4 + length);
        const path = head.split(' ', 2)[1] ?? '/';
        void Promise.resolve(respond({ path, head, body })).then((valid) => send(socket, valid, breakHttpResponse));
      }
    });
  });
  const { port, close } = await listenTcp(server);
  return { name: options.name, port, broken, last, close };
}

/** A relay to a real server that damages some of its responses. */
export async function startRelayPeer(
  options: PeerOptions & { readonly to: number },
  breakIt: (valid: Buffer, below: PeerOptions['below']) => BrokenResponse,
): Promise<Peer> {
  const { send, broken, last } = createBreaker(options);
  const server = createServer((client) => {
    const real = connectTcp(options.to, '127.0.0.1').on('error', () => client.destroy());
    client.on('data', (part) => void real.write(part)).once('close', () => real.destroy());
    real.on('data', (part: Buffer) => send(client, part, breakIt)).once('close', () => client.destroy());
  });
  const { port, close } = await listenTcp(server);
  return { name: options.name, port, broken, last, close };
}

/** The bytes of a complete response. */
export function httpResponse(body: string | Buffer, type = 'application/json', status = '200 OK'): Buffer {
  const bytes = Buffer.from(body as string);
  const head = `HTTP/1.1 ${status}\r\nContent-Type: ${type}\r\nContent-Length: ${bytes.length}\r\n\r\n`;
  return Buffer.concat([Buffer.from(head), bytes]);
}
