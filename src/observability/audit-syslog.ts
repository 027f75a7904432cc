import { createSocket, type Socket as Datagrams } from 'node:dgram';
import { connect as connectPlain, isIPv6, type Socket } from 'node:net';
import { hostname } from 'node:os';
import { connect as connectTls } from 'node:tls';
import { kindOf } from './audit-events.ts';
import type { AuditRecord, AuditSink } from './audit-log.ts';
import { type Facility, syslogMessage } from './syslog-format.ts';

export interface SyslogOptions {
  /** `udp://host:port`, `tcp://host:port`, `tls://host:port` or `unix:/path`. */
  readonly url: string;
  readonly facility: Facility;
  readonly ca?: string | undefined;
  readonly certificate?: string | undefined;
  readonly key?: string | undefined;
  /** How long a receiver may take to take what it is given. */
  readonly patienceMs?: number;
}

const PATIENCE_MS = 5_000;
/** What was written to a connection that closes right after it was hardly read by anybody. */
const GRACE_MS = 100;
/** RFC 5426 §3.2; a longer one would not leave in one piece, or be cut by its receiver. */
const MOST_DATAGRAM = 60_000;

/** RFC 5424 messages, over UDP (RFC 5426), or a stream with their length in front (RFC 6587 §3.4.1, RFC 5425). */
export function openAuditSyslog(options: SyslogOptions): AuditSink {
  const terms = { facility: options.facility, host: hostname(), pid: process.pid };
  const message = ({ time, event, line }: AuditRecord): string =>
    syslogMessage(terms, { time, name: event, severity: kindOf(event).severity, line });
  return options.url.startsWith('udp:') ? overDatagrams(options, message) : overStream(options, message);
}

type Message = (record: AuditRecord) => string;

function overDatagrams({ url }: SyslogOptions, message: Message): AuditSink {
  const { host, port } = addressOf(url);
  let socket: Datagrams | undefined;
  const send = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      socket ??= createSocket(isIPv6(host) ? 'udp6' : 'udp4').on('error', () => {});
      socket
        .unref()
        .send(text.slice(0, MOST_DATAGRAM), port, host, (error) => (error ? reject(error) : resolve()));
    });
  return {
    batch: 100,
    async deliver(records) {
      for (const record of records) await send(message(record));
    },
    close: async () => {
      socket?.close();
      socket = undefined;
    },
  };
}

function overStream(options: SyslogOptions, message: Message): AuditSink {
  const { patienceMs: patience = PATIENCE_MS } = options;
  let open: Socket | undefined;
  const connection = async (): Promise<Socket> => {
    if (open?.writable === true) return open;
    open?.destroy();
    open = await connect(options);
    const mine = open;
    // Receivers say nothing; one that closes has gone.
    mine.resume().on('error', () => mine.destroy());
    mine.on('end', () => mine.destroy());
    return mine;
  };
  return {
    batch: 1_000,
    async deliver(records) {
      const socket = await connection();
      const text = records
        .map(message)
        .map((one) => `${Buffer.byteLength(one)} ${one}`)
        .join('');
      // Nobody confirms anything in this protocol; a connection that stays open is all there is to go by.
      await within(patience + GRACE_MS, socket, (done) =>
        socket.write(text, (error) => (error ? done(error) : setTimeout(done, GRACE_MS))),
      );
    },
    close: async () => {
      open?.destroySoon();
      open = undefined;
    },
  };
}

async function connect({ url, ca, certificate, key, patienceMs }: SyslogOptions): Promise<Socket> {
  const { host, port } = addressOf(url);
  const secure = url.startsWith('tls:');
  const socket = url.startsWith('unix:')
    ? connectPlain(url.slice('unix:'.length))
    : secure
      ? connectTls({
          host,
          port,
          ...(isName(host) && { servername: host }),
          rejectUnauthorized: true,
          ...(ca !== undefined && { ca }),
          ...(certificate !== undefined && { cert: certificate, key }),
        })
      : connectPlain(port, host);
  await within(patienceMs ?? PATIENCE_MS, socket, (done) =>
    socket.once(secure ? 'secureConnect' : 'connect', () => done()),
  );
  return socket;
}

/** Waits for one thing to happen to a socket, or for its end, or for the time to run out. */
function within(
  ms: number,
  socket: Socket,
  begin: (done: (error?: Error | null) => void) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (error?: Error | null): void => {
      clearTimeout(timer);
      socket.off('error', end).off('close', gone);
      if (error) {
        socket.on('error', () => {}).destroy();
        reject(error);
      } else resolve();
    };
    const gone = (): void => end(new Error('the connection was closed'));
    const timer = setTimeout(() => end(new Error('the receiver takes nothing')), ms);
    socket.on('error', end).on('close', gone);
    begin(end);
  });
}

const isName = (host: string): boolean => !isIPv6(host) && !/^[\d.]+$/.test(host);

function addressOf(url: string): { readonly host: string; readonly port: number } {
  const [, host = '', port = ''] = /^[a-z]+:\/\/(?:\[?([^\]]*?)\]?):(\d+)$/.exec(url) ?? [];
  return { host, port: Number(port) };
}
