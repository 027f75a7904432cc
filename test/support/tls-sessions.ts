import type { SecureContextOptions, TLSSocket } from 'node:tls';
import { children, contextTag, type Element, readElement, TAG } from '../../src/x509/der.ts';
import { beginRequest } from './https-client.ts';
import type { IssuedCertificate } from './pki.ts';

export const TLS_VERSIONS = ['TLSv1.2', 'TLSv1.3'] as const;
export type TlsVersion = (typeof TLS_VERSIONS)[number];

export interface SessionResult {
  readonly isResumed: boolean;
  /** What the session can be resumed with, as OpenSSL writes it down; none when the server gave nothing. */
  readonly session: Buffer | undefined;
  readonly status: number;
  readonly json: Record<string, unknown>;
}

export interface SessionOptions {
  readonly ca: IssuedCertificate;
  readonly version: TlsVersion;
  readonly as?: IssuedCertificate | undefined;
  readonly session?: Buffer | undefined;
  readonly serverName?: string;
  readonly path?: string;
  /** Sent as JSON by POST. */
  readonly body?: unknown;
  readonly more?: SecureContextOptions;
}

/** One connection of its own with one request on it. */
export async function requestOnce(port: number, options: SessionOptions): Promise<SessionResult> {
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
    ...(session !== undefined && { session: addHostPrefix(session, serverName) }),
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
  return { isResumed, session: removeHostPrefix(sessions.at(-1)), status, json };
}

/**
 * Node writes the name of the host in front of what OpenSSL gives, and does not use a session for another one. Whoever
 * wants to break in does.
 */
const NODE_SESSION_PREFIX = Buffer.from('\0nodejs:tls:session:1\0', 'latin1');

function removeHostPrefix(session: Buffer | undefined): Buffer | undefined {
  if (session?.subarray(0, NODE_SESSION_PREFIX.length).equals(NODE_SESSION_PREFIX) !== true) return session;
  return session.subarray(NODE_SESSION_PREFIX.length + 2 + session.readUInt16BE(NODE_SESSION_PREFIX.length));
}

function addHostPrefix(session: Buffer, host: string): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(host.length);
  return Buffer.concat([NODE_SESSION_PREFIX, length, Buffer.from(host), session]);
}

/** Where the ticket lies in a session as OpenSSL writes it down: `[10] OCTET STRING`. */
export function findTicket(session: Buffer): { readonly at: number; readonly length: number } {
  const tagged = children(readElement(session, TAG.sequence)).find(({ tag }) => tag === contextTag(10));
  if (tagged === undefined) throw new Error('a session without a ticket');
  const ticket: Element = readElement(tagged.content, TAG.octetString);
  const at = session.indexOf(ticket.content);
  return { at, length: ticket.content.length };
}

/** The same session with one bit of its ticket turned over. */
export function flipTicketBit(session: Buffer, offset: number): Buffer {
  const copy = Buffer.from(session);
  const at = findTicket(session).at + offset;
  copy[at] = (copy[at] ?? 0) ^ 0x10;
  return copy;
}
