import { hash, hkdfSync } from 'node:crypto';

/** The key material of TLS session tickets (RFC 8446 §4.6.1, RFC 5077). */
export interface SessionTicketOptions {
  /** Random. Anyone who obtains it can decrypt and forge tickets, and a ticket contains the client certificate. */
  readonly secret: Buffer;
  /** Identifies the configuration that a ticket is valid under: tickets of another scope are not accepted. */
  readonly scope: string;
}

/**
 * Seconds for which a session can be resumed after the full handshake. Short: a client with a renewed certificate keeps
 * presenting the old one for this long, and that should not expire meanwhile.
 */
export const TICKET_SECONDS = 600;
/** Key name, HMAC key and cipher key (`server.setTicketKeys`). */
const KEY_BYTES = 48;

/** Servers that request a certificate have other keys than those that do not: a session cannot move between them. */
const buildLabel = (certificateRequested: boolean, scope: string): string =>
  `gatehouse tls tickets 1\n${certificateRequested ? 'asks' : 'asks nobody'}\n${scope}`;

export const deriveTicketKeys = ({ secret, scope }: SessionTicketOptions, certificateRequested: boolean): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', buildLabel(certificateRequested, scope), KEY_BYTES));

/** Also compared by OpenSSL. Node's default depends on the command line, which may differ between replicas. */
export const deriveSessionIdContext = (scope: string, certificateRequested: boolean): string =>
  hash('sha256', buildLabel(certificateRequested, scope), 'base64url').slice(0, 32);
