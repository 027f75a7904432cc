import { createHash, randomBytes } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { listenTcp } from './tcp-server.ts';

/** WebSocket frames (RFC 6455), implemented independently of the product. */
export interface Frame {
  readonly opcode: number;
  readonly payload: Buffer;
  readonly masked: boolean;
}

export const TEXT = 1;
export const CLOSE = 8;

export function encodeFrame(opcode: number, payload: string | Buffer, masked: boolean): Buffer {
  const body = Buffer.from(payload);
  const [short, size] = body.length < 126 ? [body.length, 0] : body.length < 65_536 ? [126, 2] : [127, 8];
  const length = Buffer.alloc(1 + size, short);
  if (size === 2) length.writeUInt16BE(body.length, 1);
  if (size === 8) length.writeBigUInt64BE(BigInt(body.length), 1);
  length[0] = (length[0] ?? 0) | (masked ? 128 : 0);
  const key = randomBytes(4);
  const sent = masked ? body.map((byte, index) => byte ^ (key[index % 4] ?? 0)) : body;
  return Buffer.concat([Buffer.from([128 | opcode]), length, ...(masked ? [key] : []), sent]);
}

/** Calls `onFrame` for each complete frame of a byte stream. */
export function createFrameDecoder(onFrame: (frame: Frame) => void): (part: Buffer) => void {
  let buffered = Buffer.alloc(0);
  return (part) => {
    buffered = Buffer.concat([buffered, part]);
    for (let read = readFrame(buffered); read !== undefined; read = readFrame(buffered)) {
      buffered = buffered.subarray(read.length);
      onFrame(read.frame);
    }
  };
}

function readFrame(bytes: Buffer): { readonly frame: Frame; readonly length: number } | undefined {
  if (bytes.length < 2) return undefined;
  const [first = 0, second = 0] = bytes;
  const masked = second >= 128;
  const short = second & 127;
  const lengthBytes = short === 126 ? 2 : short === 127 ? 8 : 0;
  const start = 2 + lengthBytes + (masked ? 4 : 0);
  if (bytes.length < start) return undefined;
  const size = lengthBytes === 0 ? short : Number.parseInt(bytes.subarray(2, 2 + lengthBytes).toString('hex'), 16);
  if (bytes.length < start + size) return undefined;
  const key = bytes.subarray(start - 4, start);
  const payload = Buffer.from(bytes.subarray(start, start + size));
  if (masked) payload.forEach((byte, index) => (payload[index] = byte ^ (key[index % 4] ?? 0)));
  return { frame: { opcode: first & 15, payload, masked }, length: start + size };
}

export interface CloseFrame {
  readonly code: number;
  readonly reason: string;
  readonly masked: boolean;
}

const parseCloseFrame = ({ payload, masked }: Frame): CloseFrame => ({
  code: payload.length < 2 ? 1005 : payload.readUInt16BE(),
  reason: payload.subarray(2).toString(),
  masked,
});

export interface WebSocketUpstream {
  readonly port: number;
  readonly handshakes: { readonly url: string; readonly rawHeaders: readonly string[] }[];
  readonly messages: string[];
  readonly closes: CloseFrame[];
  open(): number;
  /** Writes to every open WebSocket. */
  write(bytes: Buffer): void;
  close(): Promise<void>;
}

export interface WebSocketUpstreamOptions {
  readonly listenOn?: string;
  readonly tls?: { readonly cert: string; readonly key: string };
  /** Replaces the handshake response. */
  readonly respond?: (request: IncomingMessage, socket: Socket) => void;
  /** Keeps its side open after the peer has closed its own. */
  readonly ignoresEnd?: true;
}

/** A WebSocket server that echoes and records all messages. */
export async function startWebSocketUpstream(options: WebSocketUpstreamOptions = {}): Promise<WebSocketUpstream> {
  const { listenOn, tls, respond = acceptUpgrade } = options;
  const handshakes: WebSocketUpstream['handshakes'] = [];
  const messages: string[] = [];
  const closes: CloseFrame[] = [];
  const server = tls === undefined ? createServer() : createTlsServer(tls);
  const upgradedSockets = new Set<Socket>();
  server.on('upgrade', (request: IncomingMessage, stream, head: Buffer) => {
    const socket = stream as Socket;
    handshakes.push({ url: request.url ?? '', rawHeaders: request.rawHeaders });
    socket.on('error', () => {});
    respond(request, socket);
    upgradedSockets.add(socket);
    socket.on('close', () => upgradedSockets.delete(socket));
    const read = createFrameDecoder((frame) => {
      if (frame.opcode === CLOSE) {
        closes.push(parseCloseFrame(frame));
        socket.end(encodeFrame(CLOSE, frame.payload, false));
        return;
      }
      messages.push(frame.payload.toString());
      socket.write(encodeFrame(TEXT, `echo ${frame.payload.toString()}`, false));
    });
    if (head.length > 0) read(head);
    socket.on('data', read);
    if (options.ignoresEnd !== true) socket.on('end', () => socket.end());
  });
  const { port, sockets, close } = await listenTcp(server, listenOn);
  return {
    port,
    handshakes,
    messages,
    closes,
    open: () => sockets.size,
    write: (bytes) => upgradedSockets.forEach((socket) => socket.write(bytes)),
    close,
  };
}

export const computeAccept = (key = ''): string =>
  createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');

export function acceptUpgrade({ headers }: IncomingMessage, socket: Socket): void {
  const [protocol] = headers['sec-websocket-protocol']?.split(',') ?? [];
  socket.write(
    [
      'HTTP/1.1 101 Switching Protocols',
      'Connection: Upgrade',
      'Upgrade: websocket',
      `Sec-WebSocket-Accept: ${computeAccept(headers['sec-websocket-key'])}`,
      ...(protocol === undefined ? [] : [`Sec-WebSocket-Protocol: ${protocol.trim()}`]),
      'X-Upstream: yes',
      '',
      '',
    ].join('\r\n'),
  );
}

export interface WebSocketClient {
  readonly socket: Socket;
  readonly key: string;
  /** Status of the handshake response. */
  readonly status: number;
  readonly head: string;
  /** The body of a response that rejects the handshake. */
  body(): string;
  readonly messages: string[];
  readonly closed: () => CloseFrame | undefined;
  /** Whether the TCP connection is closed. */
  readonly isClosed: () => boolean;
  send(text: string): void;
  destroy(): void;
}

export interface WebSocketRequest {
  readonly port: number;
  readonly path?: string;
  readonly token?: string;
  readonly headers?: readonly string[];
  /** Replaces the header fields of a valid handshake. */
  readonly handshake?: readonly string[];
  /** Sent together with the head. */
  readonly earlyData?: Buffer;
  /** Connects over TLS and trusts this CA. */
  readonly ca?: string;
}

/** Sends a handshake and waits for the head of the response. */
export async function openWebSocket(request: WebSocketRequest): Promise<WebSocketClient> {
  const { port, path = '/ws/1', token = 'A', headers = [], earlyData, ca } = request;
  const key = randomBytes(16).toString('base64');
  const handshake = request.handshake ?? [
    'Connection: Upgrade',
    'Upgrade: websocket',
    `Sec-WebSocket-Key: ${key}`,
    'Sec-WebSocket-Version: 13',
  ];
  const socket =
    ca === undefined
      ? connect(port, '127.0.0.1')
      : connectTls({ port, host: '127.0.0.1', servername: 'localhost', ca });
  let text = '';
  let headEnd = -1;
  let isOver = false;
  let closed: CloseFrame | undefined;
  const messages: string[] = [];
  const read = createFrameDecoder((frame) => {
    if (frame.opcode === CLOSE) closed = parseCloseFrame(frame);
    else messages.push(frame.payload.toString());
  });
  const headReceived = Promise.withResolvers<void>();
  socket.on('data', (part: Buffer) => {
    const before = text.length;
    text += part.toString('latin1');
    if (headEnd >= 0) {
      read(part);
      return;
    }
    headEnd = text.indexOf('\r\n\r\n');
    if (headEnd < 0) return;
    headReceived.resolve();
    read(part.subarray(headEnd + 4 - before));
  });
  socket.on('error', () => {});
  socket.on('close', () => {
    isOver = true;
    headReceived.resolve();
  });
  const fields = [`Host: localhost:${port}`, ...(token === '' ? [] : [`Authorization: Bearer ${token}`])];
  const head = [`GET ${path} HTTP/1.1`, ...fields, ...handshake, ...headers, '', ''].join('\r\n');
  socket.write(earlyData === undefined ? head : Buffer.concat([Buffer.from(head), earlyData]));
  await headReceived.promise;
  return {
    socket,
    key,
    status: Number(text.split(' ')[1]),
    head: text.slice(0, headEnd),
    body: () => text.slice(headEnd + 4),
    messages,
    closed: () => closed,
    isClosed: () => isOver,
    send: (message) => void socket.write(encodeFrame(TEXT, message, true)),
    destroy: () => socket.destroy(),
  };
}
