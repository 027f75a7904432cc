import type { Socket } from 'node:net';
import type { PeerList } from './client-address.ts';
import { createClientHelloReader } from './client-hello.ts';
import { parseProxyHeader } from './proxy-protocol.ts';

/** What the first bytes of a connection contain. */
export interface PrereadResult {
  readonly hasProxyHeader: boolean;
  /** The source in the PROXY header, if it names one. */
  readonly source: string | undefined;
  /** From the ClientHello; undefined also if that is malformed. */
  readonly serverName: string | undefined;
}

interface PrereadOptions {
  readonly proxyProtocol: PeerList;
  readonly peekClientHello: boolean;
  readonly timeoutSeconds: number;
  readonly onReady: (socket: Socket, preread: PrereadResult) => void;
  readonly onRejected: (peer: string, reason: string) => void;
}

/** Reads the PROXY header and the server name of a paused connection within a time and size limit, and passes it on, paused. */
export function prereadConnection(socket: Socket, options: PrereadOptions): void {
  const peer = socket.remoteAddress ?? '';
  const hasProxyHeader = options.proxyProtocol.includes(peer);
  const readHello = options.peekClientHello ? createClientHelloReader() : undefined;
  let isHeaderRead = !hasProxyHeader;
  let header: Buffer = Buffer.alloc(0);
  let source: string | undefined;
  /** Everything after the PROXY header. */
  const buffered: Buffer[] = [];

  const detach = (): void => {
    clearTimeout(timer);
    socket.off('data', onData).off('close', detach);
  };
  const reject = (reason: string): void => {
    detach();
    socket.destroy();
    options.onRejected(peer, reason);
  };
  const handOff = (serverName: string | undefined): void => {
    detach();
    socket.pause();
    const bytes = Buffer.concat(buffered);
    if (bytes.length > 0) socket.unshift(bytes);
    options.onReady(socket, { hasProxyHeader, source, serverName });
  };
  const onData = (part: Buffer): void => {
    let bytes = part;
    if (!isHeaderRead) {
      header = Buffer.concat([header, part]);
      const parsed = parseProxyHeader(header);
      if (parsed.kind === 'incomplete') return;
      if (parsed.kind === 'malformed') return reject('missing or malformed PROXY header');
      isHeaderRead = true;
      source = parsed.source;
      bytes = header.subarray(parsed.length);
    }
    buffered.push(bytes);
    const hello = readHello?.(bytes);
    if (hello?.kind === 'incomplete') return;
    handOff(hello?.kind === 'parsed' ? hello.serverName : undefined);
  };
  let timer: NodeJS.Timeout | undefined;
  if (isHeaderRead && readHello === undefined) return handOff(undefined);
  timer = setTimeout(() => reject('timed out before the first bytes were complete'), options.timeoutSeconds * 1_000);
  socket.on('data', onData).on('close', detach).resume();
}
