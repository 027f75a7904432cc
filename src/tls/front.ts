import { createServer, type Server, type Socket } from 'node:net';
import type { Peers } from './caller.ts';
import { clientHelloReader } from './client-hello.ts';
import { readProxyHeader } from './proxy-protocol.ts';

/** What the first bytes of a connection told, before anything else read it. */
export interface Opening {
  /** It began with a PROXY header. */
  readonly proxied: boolean;
  /** The source that the PROXY header names, if any. */
  readonly source: string | undefined;
  /** From the ClientHello; undefined also when it named nobody or could not be read. */
  readonly serverName: string | undefined;
}

export interface FrontOptions {
  readonly proxyProtocol: Peers;
  /** What comes is TLS, to be taken over by a TLS server. */
  readonly tls: boolean;
  /** Look at the ClientHello. */
  readonly peekTls: boolean;
  readonly seconds: number;
  readonly onOpened: (socket: Socket, opening: Opening) => void;
  readonly onRejected: (peer: string, why: string) => void;
}

/**
 * Stands before the TLS servers where somebody must look at a connection first. It reads no more than it must,
 * puts the bytes back, and hands the socket on; it holds a connection for a limited time and a limited size.
 */
export function createFront(options: FrontOptions): Server {
  return createServer({ noDelay: true, pauseOnConnect: false }, (socket) => open(socket, options));
}

function open(socket: Socket, options: FrontOptions): void {
  const peer = socket.remoteAddress ?? '';
  const proxied = options.proxyProtocol.includes(peer);
  let expectsHeader = proxied;
  let source: string | undefined;
  let header: Buffer = Buffer.alloc(0);
  /** What came after it. */
  const waiting: Buffer[] = [];
  const readHello = clientHelloReader();

  const leave = (): void => {
    clearTimeout(timer);
    socket.off('data', onData).off('close', onClose);
  };
  const reject = (why: string): void => {
    leave();
    socket.destroy();
    options.onRejected(peer, why);
  };
  const handOn = (serverName: string | undefined): void => {
    leave();
    socket.pause();
    const bytes = Buffer.concat(waiting);
    if (bytes.length > 0) socket.unshift(bytes);
    options.onOpened(socket, { proxied, source, serverName });
    // Plain HTTP reads the socket as a stream. A TLS server takes the waiting bytes and then the handle itself.
    if (!options.tls) socket.resume();
  };
  const onData = (part: Buffer): void => {
    let bytes = part;
    if (expectsHeader) {
      header = Buffer.concat([header, part]);
      const read = readProxyHeader(header);
      if (read.kind === 'incomplete') return;
      if (read.kind === 'unreadable') return reject('no PROXY header from a peer that must send one');
      expectsHeader = false;
      source = read.source;
      bytes = header.subarray(read.length);
    }
    waiting.push(bytes);
    if (!options.peekTls) return handOn(undefined);
    const hello = readHello(bytes);
    if (hello.kind === 'incomplete') return;
    handOn(hello.kind === 'read' ? hello.serverName : undefined);
  };
  const onClose = (): void => leave();
  const timer = setTimeout(() => reject('nothing usable in time'), options.seconds * 1_000);

  socket.on('error', () => socket.destroy());
  if (!expectsHeader && !options.peekTls) return handOn(undefined);
  socket.on('data', onData).on('close', onClose);
}
