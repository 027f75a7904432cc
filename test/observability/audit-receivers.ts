import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer as createHttpServer, type IncomingHttpHeaders } from 'node:http';
import { createServer, type Socket } from 'node:net';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';
import { listenTcp } from '../support/tcp-server.ts';

/** A syslog message (RFC 5424 §6). */
export interface SyslogMessage {
  readonly priority: number;
  readonly version: number;
  readonly time: string;
  readonly host: string;
  readonly app: string;
  readonly process: string;
  readonly id: string;
  readonly data: string;
  readonly text: string;
}

/** PRINTUSASCII fields, nil or well-formed structured data, and the message. */
const RFC5424 =
  /^<(\d{1,3})>([1-9]\d{0,2}) (-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)) ([\x21-\x7e]{1,255}) ([\x21-\x7e]{1,48}) ([\x21-\x7e]{1,128}) ([\x21-\x7e]{1,32}) (-|(?:\[[^\]]*\])+)(?: ([\s\S]*))?$/;

function readSyslog(bytes: string): SyslogMessage {
  const found = RFC5424.exec(bytes);
  if (found === null) throw new Error(`not an RFC 5424 message: ${bytes}`);
  const [, priority, version, time = '', host = '', app = '', process = '', id = '', data = '', text = ''] =
    found;
  return { priority: Number(priority), version: Number(version), time, host, app, process, id, data, text };
}

export interface SyslogReceiver {
  readonly url: string;
  readonly messages: readonly SyslogMessage[];
  /** Closes all connections, like a receiver that is restarted. */
  readonly disconnect: () => void;
  readonly close: () => Promise<void>;
}

/** Octet counting (RFC 6587 §3.4.1): the length, a space, and that many octets. */
function createOctetCountingReader(onMessage: (text: string) => void): (part: Buffer) => void {
  let waiting = Buffer.alloc(0);
  return (part) => {
    waiting = Buffer.concat([waiting, part]);
    for (;;) {
      const space = waiting.indexOf(0x20);
      if (space < 0) return;
      const length = waiting.toString('latin1', 0, space);
      if (!/^[1-9]\d*$/.test(length)) throw new Error(`not a length: ${length}`);
      const end = space + 1 + Number(length);
      if (waiting.length < end) return;
      onMessage(waiting.toString('utf8', space + 1, end));
      waiting = waiting.subarray(end);
    }
  };
}

export async function startStreamReceiver(
  kind: 'tcp' | 'tls' | 'unix',
  at: { readonly path?: string; readonly port?: number; readonly tls?: TlsOptions } = {},
): Promise<SyslogReceiver> {
  const messages: SyslogMessage[] = [];
  const take = (socket: Socket): void => {
    socket.on(
      'data',
      createOctetCountingReader((text) => messages.push(readSyslog(text))),
    );
    socket.on('error', () => {});
  };
  const server = kind === 'tls' ? createTlsServer(at.tls ?? {}, take) : createServer(take);
  const { port, destroyConnections, close } = await listenTcp(server, at.path ?? at.port);
  const url = at.path === undefined ? `${kind}://127.0.0.1:${port}` : `unix:${at.path}`;
  return { url, messages, disconnect: destroyConnections, close };
}

export async function startDatagramReceiver(): Promise<SyslogReceiver> {
  const messages: SyslogMessage[] = [];
  const socket = createSocket('udp4', (bytes) => void messages.push(readSyslog(bytes.toString())));
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return {
    url: `udp://127.0.0.1:${socket.address().port}`,
    messages,
    disconnect: () => {},
    async close() {
      socket.close();
    },
  };
}

export interface Delivery {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

export interface HttpReceiver {
  readonly url: string;
  readonly deliveries: readonly Delivery[];
  /** The status of future responses. */
  respond(status: number): void;
  close(): Promise<void>;
}

export async function startHttpReceiver(): Promise<HttpReceiver> {
  const deliveries: Delivery[] = [];
  let status = 200;
  const server = createHttpServer((request, response) => {
    let body = '';
    request.setEncoding('utf8');
    request.on('data', (part: string) => {
      body += part;
    });
    request.on('end', () => {
      deliveries.push({ path: request.url ?? '', headers: request.headers, body });
      response.writeHead(status, status === 307 ? { location: 'http://127.0.0.1:1/' } : {}).end('{}');
    });
  });
  const { port, close } = await listenTcp(server);
  return {
    url: `http://127.0.0.1:${port}`,
    deliveries,
    respond(next) {
      status = next;
    },
    close,
  };
}
