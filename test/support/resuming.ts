import type { SecureContextOptions, TLSSocket } from 'node:tls';
import { children, context, type Element, readOne, TAG } from '../../src/tls/der.ts';
import { beginRequest } from './https-client.ts';
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
  readonly more?: SecureContextOptions;
}

/** One connection of its own with one request on it. */
export async function visit(port: number, options: VisitOptions): Promise<Visit> {
  const { ca, version, as, session, serverName = 'localhost', path = '/health', body, more } = options;
  const text = body === undefined ? undefined : JSON.stringify(body);
  const { sent, reply } = beginRequest({
    port,
    path,
    method: text === undefined ? 'GET' : 'POST',
    headers: { host: serverName, connection: 'close', ...(text && { 'content-type': 'application/json' }) },
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
  let isResumed = false;
  const sessions: Buffer[] = [];
  sent.once('socket', (socket) => {
    const secure = socket as TLSSocket;
    secure.on('session', (one) => sessions.push(one));
    secure.once('secureConnect', () => {
      isResumed = secure.isSessionReused();
    });
  });
  sent.end(text);
  const { status, json } = await reply;
  return { isResumed, session: withoutHost(sessions.at(-1)), status, json };
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
