import { createSocket, type Socket as Datagrams } from 'node:dgram';
import { connect as connectPlain, isIPv6, type Socket } from 'node:net';
import { hostname } from 'node:os';
import { connect as connectTls } from 'node:tls';
import { AUDIT_EVENTS } from './audit-events.ts';
import type { AuditRecord, AuditSink } from './audit-log.ts';
import { formatSyslogMessage } from './syslog-format.ts';

interface SyslogOptions {
  /** `udp://host:port`, `tcp://host:port`, `tls://host:port` or `unix:/path`. */
  readonly url: string;
  readonly ca?: string | undefined;
  readonly certificate?: string | undefined;
  readonly key?: string | undefined;
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 5_000;
/** Data written just before the receiver closes the connection is probably lost. */
const GRACE_MS = 100;
/** RFC 5426 §3.2: longer datagrams are fragmented, or truncated by the receiver. */
const MAX_DATAGRAM = 60_000;

/** RFC 5424 messages over UDP (RFC 5426), or over a stream with octet counting (RFC 6587 §3.4.1, RFC 5425). */
export function openAuditSyslog(options: SyslogOptions): AuditSink {
  const header = { host: hostname(), pid: process.pid };
  const format = ({ time, event, line }: AuditRecord): string =>
    formatSyslogMessage(header, { time, name: event, severity: AUDIT_EVENTS[event].severity, line });
  return options.url.startsWith('udp:')
    ? createDatagramSink(options, format)
    : createStreamSink(options, format);
}

type FormatMessage = (record: AuditRecord) => string;

function createDatagramSink({ url }: SyslogOptions, format: FormatMessage): AuditSink {
  const { host, port } = parseAddress(url);
  let socket: Datagrams | undefined;
  const send = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      socket ??= createSocket(isIPv6(host) ? 'udp6' : 'udp4').on('error', () => {});
      socket
        .unref()
        .send(text.slice(0, MAX_DATAGRAM), port, host, (error) => (error ? reject(error) : resolve()));
    });
  return {
    batchSize: 100,
    async deliver(records) {
      for (const record of records) await send(format(record));
    },
    close: async () => {
      socket?.close();
      socket = undefined;
    },
  };
}

function createStreamSink(options: SyslogOptions, format: FormatMessage): AuditSink {
  const { timeoutMs = TIMEOUT_MS } = options;
  let current: Socket | undefined;
  const getConnection = async (): Promise<Socket> => {
    if (current?.writable === true) return current;
    current?.destroy();
    current = await connect(options);
    const socket = current;
    // Receivers send no data; the end of the stream means that the receiver has closed it.
    socket.resume().on('error', () => socket.destroy());
    socket.on('end', () => socket.destroy());
    return socket;
  };
  return {
    batchSize: 1_000,
    async deliver(records) {
      const socket = await getConnection();
      const text = records
        .map(format)
        .map((message) => `${Buffer.byteLength(message)} ${message}`)
        .join('');
      // The protocol has no acknowledgements: a connection that stays open is the only sign of success.
      await waitForSocket(timeoutMs + GRACE_MS, socket, (done) =>
        socket.write(text, (error) => (error ? done(error) : setTimeout(done, GRACE_MS))),
      );
    },
    close: async () => {
      current?.destroySoon();
      current = undefined;
    },
  };
}

async function connect({ url, ca, certificate, key, timeoutMs }: SyslogOptions): Promise<Socket> {
  const { host, port } = parseAddress(url);
  const secure = url.startsWith('tls:');
  const socket = url.startsWith('unix:')
    ? connectPlain(url.slice('unix:'.length))
    : secure
      ? connectTls({
          host,
          port,
          ...(isHostName(host) && { servername: host }),
          rejectUnauthorized: true,
          ...(ca !== undefined && { ca }),
          ...(certificate !== undefined && { cert: certificate, key }),
        })
      : connectPlain(port, host);
  await waitForSocket(timeoutMs ?? TIMEOUT_MS, socket, (done) =>
    socket.once(secure ? 'secureConnect' : 'connect', () => done()),
  );
  return socket;
}

/** Rejects if the socket closes or the time is over before `done` is called. */
function waitForSocket(
  ms: number,
  socket: Socket,
  start: (done: (error?: Error | null) => void) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (error?: Error | null): void => {
      clearTimeout(timer);
      socket.off('error', settle).off('close', onClose);
      if (error) {
        socket.on('error', () => {}).destroy();
        reject(error);
      } else resolve();
    };
    const onClose = (): void => settle(new Error('the connection was closed'));
    const timer = setTimeout(() => settle(new Error('the receiver timed out')), ms);
    socket.on('error', settle).on('close', onClose);
    start(settle);
  });
}

const isHostName = (host: string): boolean => !isIPv6(host) && !/^[\d.]+$/.test(host);

function parseAddress(url: string): { readonly host: string; readonly port: number } {
  const [, host = '', port = ''] = /^[a-z]+:\/\/(?:\[?([^\]]*?)\]?):(\d+)$/.exec(url) ?? [];
  return { host, port: Number(port) };
}
