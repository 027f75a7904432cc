import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { createEventWaiter } from './until.ts';

export interface RawResponse {
  readonly status: number;
  readonly head: string;
  readonly body: string;
}

export interface RawClient {
  readonly socket: Socket;
  send(text: string): void;
  /** Everything received so far. */
  text(): string;
  /** Waits until the received text satisfies `condition` or the peer closes; throws after `ms`. */
  until(condition: (text: string) => boolean, ms?: number): Promise<string>;
  closed(ms?: number): Promise<string>;
  /** How the peer closed the connection; undefined while it is open. */
  closeKind(): 'end' | 'reset' | undefined;
  destroy(): void;
}

export const connectRaw = (port: number): Promise<RawClient> => wrapSocket(connect(port, '127.0.0.1'), 'connect');

/** The same over TLS, with the server name of the test certificates. */
export const connectRawTls = (port: number, ca: string, protocols = ['http/1.1']): Promise<RawClient> =>
  wrapSocket(
    connectTls({ host: '127.0.0.1', port, ca, servername: 'localhost', ALPNProtocols: protocols }),
    'secureConnect',
  );

async function wrapSocket(socket: Socket, ready: 'connect' | 'secureConnect'): Promise<RawClient> {
  let received = '';
  let closeKind: 'end' | 'reset' | undefined;
  const { wake, until } = createEventWaiter(() => `received: ${JSON.stringify(received.slice(0, 400))}`);
  socket.setEncoding('latin1');
  socket.on('data', (part: string) => {
    received += part;
    wake();
  });
  socket.on('error', () => {
    closeKind ??= 'reset';
  });
  socket.on('end', () => {
    closeKind ??= 'end';
  });
  socket.on('close', () => {
    closeKind ??= 'end';
    wake();
  });
  await new Promise<void>((resolve, reject) => {
    socket.once(ready, resolve).once('error', reject);
  });
  const untilText: RawClient['until'] = async (condition, ms) => {
    await until(() => condition(received) || closeKind !== undefined, ms);
    return received;
  };
  return {
    socket,
    send: (text) => void socket.write(text, 'latin1'),
    text: () => received,
    until: untilText,
    closed: (ms) => untilText(() => false, ms),
    closeKind: () => closeKind,
    destroy: () => socket.destroy(),
  };
}

/** Whether the text holds a complete response (by Content-Length, last chunk, or without a body). */
export function isCompleteResponse(text: string, toHead = false): boolean {
  const end = text.indexOf('\r\n\r\n');
  if (end < 0) return false;
  const head = text.slice(0, end).toLowerCase();
  if (toHead || / (?:1\d\d|204|304) /.test(head.slice(0, 14))) return true;
  const length = /\r\ncontent-length: *(\d+)/.exec(head)?.[1];
  if (length !== undefined) return text.length >= end + 4 + Number(length);
  return head.includes('transfer-encoding: chunked') && text.endsWith('0\r\n\r\n');
}

export function parseRawResponse(text: string): RawResponse {
  const end = text.indexOf('\r\n\r\n');
  const head = end < 0 ? text : text.slice(0, end);
  return { status: Number(head.split(' ')[1]), head, body: end < 0 ? '' : text.slice(end + 4) };
}

/** Sends one message on a new connection and reads one response. */
export async function rawRequest(port: number, message: string): Promise<RawResponse> {
  const client = await connectRaw(port);
  try {
    client.send(message);
    return parseRawResponse(await client.until((text) => isCompleteResponse(text, message.startsWith('HEAD'))));
  } finally {
    client.destroy();
  }
}
