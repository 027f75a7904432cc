import { createServer, type Socket } from 'node:net';
import { listenTcp } from './tcp-server.ts';

/** A request as the upstream received it, read by a parser that is independent of the product. */
export interface RecordedRequest {
  readonly method: string;
  readonly target: string;
  /** Lower-case names, in order. */
  readonly headers: readonly (readonly [string, string])[];
  readonly body: string;
  readonly trailers: readonly string[];
  readonly connection: number;
}

export interface RecordedStream {
  /** All bytes since the last reset. */
  readonly bytes: string;
  /** Bytes after the last complete request. */
  readonly unfinished: string;
  readonly closed: boolean;
}

export type Responder = (socket: Socket, request: RecordedRequest) => void;

export interface RecordingUpstream {
  readonly port: number;
  readonly url: string;
  readonly requests: RecordedRequest[];
  /** All bytes of all connections. */
  bytes(): string;
  /** The bytes of each connection. */
  connectionStreams(): readonly RecordedStream[];
  connectionCount(): number;
  openConnections(): number;
  /** Writes to every open connection. */
  writeToAll(text: string): void;
  /** Sets the responder for future requests. */
  respondWith(reply: Responder): void;
  reset(): void;
  close(): Promise<void>;
}

export const respondOk: Responder = (socket, { method, target }) => {
  const body = `${method} ${target}`;
  socket.write(
    `HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ${body.length}\r\n\r\n${method === 'HEAD' ? '' : body}`,
  );
};

/** Raw TCP: records every byte, parses requests strictly, and responds to each with well-formed HTTP. */
export async function startRecordingUpstream(listenOn: number | string = 0): Promise<RecordingUpstream> {
  const requests: RecordedRequest[] = [];
  const streams = new Map<Socket, { bytes: string; unfinished: string; closed: boolean }>();
  let received = '';
  let connections = 0;
  let reply = respondOk;
  const server = createServer((socket) => {
    connections += 1;
    const connection = connections;
    const stream = { bytes: '', unfinished: '', closed: false };
    streams.set(socket, stream);
    socket.setEncoding('latin1');
    socket.on('close', () => {
      stream.closed = true;
    });
    socket.on('data', (text: string) => {
      received += text;
      stream.bytes += text;
      stream.unfinished += text;
      for (
        let read = readRequest(stream.unfinished, connection);
        read !== undefined;
        read = readRequest(stream.unfinished, connection)
      ) {
        stream.unfinished = stream.unfinished.slice(read.length);
        requests.push(read.request);
        reply(socket, read.request);
      }
    });
  });
  const { port, sockets, close } = await listenTcp(server, listenOn);
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    requests,
    bytes: () => received,
    connectionStreams: () => [...streams.values()],
    connectionCount: () => connections,
    openConnections: () => sockets.size,
    writeToAll: (text) => sockets.forEach((socket) => socket.write(text, 'latin1')),
    respondWith: (next) => {
      reply = next;
    },
    reset() {
      requests.length = 0;
      received = '';
      for (const [socket, stream] of streams) {
        stream.bytes = '';
        if (socket.destroyed) streams.delete(socket);
      }
      connections = 0;
      reply = respondOk;
    },
    close,
  };
}

/** The values of a header; the name is lower case. */
export const headerValues = (request: RecordedRequest | undefined, name: string): string[] =>
  (request?.headers ?? []).filter(([given]) => given === name).map(([, value]) => value);

function readRequest(
  bytes: string,
  connection: number,
): { readonly request: RecordedRequest; readonly length: number } | undefined {
  const headEnd = bytes.indexOf('\r\n\r\n');
  if (headEnd < 0) return undefined;
  const [line = '', ...fields] = bytes.slice(0, headEnd).split('\r\n');
  const [method = '', target = ''] = line.split(' ');
  const headers = fields.map((field): [string, string] => {
    const colon = field.indexOf(':');
    return [field.slice(0, colon).toLowerCase(), field.slice(colon + 1).trim()];
  });
  const headerValue = (name: string): string | undefined => headers.find(([given]) => given === name)?.[1];
  const start = headEnd + 4;
  if (headerValue('transfer-encoding') === 'chunked') {
    const read = readChunks(bytes, start);
    if (read === undefined) return undefined;
    const { body, trailers, end } = read;
    return { request: { method, target, headers, body, trailers, connection }, length: end };
  }
  const end = start + Number(headerValue('content-length') ?? 0);
  if (bytes.length < end) return undefined;
  const body = bytes.slice(start, end);
  return { request: { method, target, headers, body, trailers: [], connection }, length: end };
}

function readChunks(
  bytes: string,
  start: number,
): { readonly body: string; readonly trailers: readonly string[]; readonly end: number } | undefined {
  let body = '';
  let at = start;
  while (true) {
    const lineEnd = bytes.indexOf('\r\n', at);
    if (lineEnd < 0) return undefined;
    const size = Number.parseInt(bytes.slice(at, lineEnd), 16);
    if (Number.isNaN(size)) throw new Error('the upstream got a chunk without a size');
    at = lineEnd + 2;
    if (size === 0) {
      const end = bytes.startsWith('\r\n', at) ? at : bytes.indexOf('\r\n\r\n', at) + 2;
      if (end < at) return undefined;
      return { body, trailers: bytes.slice(at, end).split('\r\n').filter(Boolean), end: end + 2 };
    }
    if (bytes.length < at + size + 2) return undefined;
    body += bytes.slice(at, at + size);
    at += size + 2;
  }
}
