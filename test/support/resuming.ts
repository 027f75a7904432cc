import { once } from 'node:events';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { children, context, type Element, readOne, TAG } from '../../src/tls/der.ts';
import type { Certified } from './pki.ts';

export const VERSIONS = ['TLSv1.2', 'TLSv1.3'] as const;
export type Version = (typeof VERSIONS)[number];

export interface Visit {
  readonly isResumed: boolean;
  /** What the session can be resumed with, as OpenSSL writes it down; none when the server gave nothing. */
  readonly session: Buffer | undefined;
  readonly status: number;
  readonly json: Record<string, unknown>;
}

export interface VisitOptions {
  readonly ca: Certified;
  readonly version: Version;
  readonly as?: Certified | undefined;
  readonly session?: Buffer | undefined;
  readonly serverName?: string;
  readonly path?: string;
  /** Sent as JSON by POST. */
  readonly body?: unknown;
  readonly more?: ConnectionOptions;
}

/** One connection of its own with one request on it. */
export async function visit(port: number, options: VisitOptions): Promise<Visit> {
  const { ca, version, as, session, serverName = 'localhost', path = '/health', body, more } = options;
  const socket = connect({
    host: '127.0.0.1',
    port,
    ca: ca.pem,
    servername: serverName,
    // The certificates here are for localhost.
    checkServerIdentity: () => undefined,
    minVersion: version,
    maxVersion: version,
    ...(as !== undefined && { cert: as.pem, key: as.keyPem }),
    ...(session !== undefined && { session: forHost(session, serverName) }),
    ...more,
  });
  const sessions: Buffer[] = [];
  socket.on('session', (one: Buffer) => sessions.push(one));
  try {
    await once(socket, 'secureConnect');
    const isResumed = socket.isSessionReused();
    const text = await answerTo(socket, requestOf(serverName, path, body));
    const json = /\r\n\r\n([\s\S]*)$/.exec(text)?.[1] ?? '';
    return {
      isResumed,
      session: withoutHost(sessions.at(-1)),
      status: Number(/^HTTP\/1\.1 (\d{3})/.exec(text)?.[1]),
      json: json.startsWith('{') ? (JSON.parse(json) as Record<string, unknown>) : {},
    };
  } finally {
    socket.destroy();
  }
}

function requestOf(host: string, path: string, body: unknown): string {
  if (body === undefined) return `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`;
  const text = JSON.stringify(body);
  return `POST ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n${text}`;
}

async function answerTo(socket: TLSSocket, request: string): Promise<string> {
  socket.write(request);
  // Tickets come in records of their own before the end.
  let text = '';
  for await (const part of socket) text += String(part);
  return text;
}

/**
 * Node writes the name of the host in front of what OpenSSL gives, and does not use a session for another one. Whoever
 * wants to break in does.
 */
const FRONT = Buffer.from('\0nodejs:tls:session:1\0', 'latin1');

function withoutHost(session: Buffer | undefined): Buffer | undefined {
  if (session?.subarray(0, FRONT.length).equals(FRONT) !== true) return session;
  return session.subarray(FRONT.length + 2 + session.readUInt16BE(FRONT.length));
}

function forHost(session: Buffer, host: string): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(host.length);
  return Buffer.concat([FRONT, length, Buffer.from(host), session]);
}

/** Where the ticket lies in a session as OpenSSL writes it down: `[10] OCTET STRING`. */
export function ticketIn(session: Buffer): { readonly at: number; readonly length: number } {
  const tagged = children(readOne(session, TAG.sequence)).find(({ tag }) => tag === context(10));
  if (tagged === undefined) throw new Error('a session without a ticket');
  const ticket: Element = readOne(tagged.content, TAG.octetString);
  const at = session.indexOf(ticket.content);
  return { at, length: ticket.content.length };
}

/** The same session with one bit of its ticket turned over. */
export function withBitTurned(session: Buffer, offset: number): Buffer {
  const copy = Buffer.from(session);
  const at = ticketIn(session).at + offset;
  copy[at] = (copy[at] ?? 0) ^ 0x10;
  return copy;
}
