import type { SecureContextOptions, TLSSocket } from 'node:tls';
import { children, contextTag, type Element, readElement, TAG } from '../../src/x509/der.ts';
import { beginRequest } from './https-client.ts';
import type { IssuedCertificate } from './pki.ts';

export const TLS_VERSIONS = ['TLSv1.2', 'TLSv1.3'] as const;
export type TlsVersion = (typeof TLS_VERSIONS)[number];

export interface SessionResult {
  readonly isResumed: boolean;
  /** The session in OpenSSL's encoding; undefined if the server sent no ticket or session id. */
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
  /** Sent as JSON in a POST request. */
  readonly body?: unknown;
  readonly more?: SecureContextOptions;
}

/** Sends one request on a new connection. */
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
    // The test certificates are for localhost.
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
    secure.on('session', (received) => sessions.push(received));
    secure.once('secureConnect', () => {
      isResumed = secure.isSessionReused();
    });
  });
  sent.end(text);
  const { status, json } = await reply;
  return { isResumed, session: removeHostPrefix(sessions.at(-1)), status, json };
}

/**
 * Node prefixes the session with the host name and refuses to resume it for another host. An attacker's client would not
 * refuse.
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

/** Position of the ticket in a session in OpenSSL's encoding: `[10] OCTET STRING`. */
export function findTicket(session: Buffer): { readonly at: number; readonly length: number } {
  const tagged = children(readElement(session, TAG.sequence)).find(({ tag }) => tag === contextTag(10));
  if (tagged === undefined) throw new Error('the session has no ticket');
  const ticket: Element = readElement(tagged.content, TAG.octetString);
  const at = session.indexOf(ticket.content);
  return { at, length: ticket.content.length };
}

/** Returns a copy of the session with one bit of its ticket flipped. */
export function flipTicketBit(session: Buffer, offset: number): Buffer {
  const copy = Buffer.from(session);
  const at = findTicket(session).at + offset;
  copy[at] = (copy[at] ?? 0) ^ 0x10;
  return copy;
}
