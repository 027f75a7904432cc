import { hash, hkdfSync } from 'node:crypto';

/** What tickets of TLS sessions are made with (RFC 8446 §4.6.1, RFC 5077). */
export interface TicketMaterial {
  /** Random; whoever has it can read tickets and make them, and a ticket says whose certificate was shown. */
  readonly secret: Buffer;
  /** Stands for everything a ticket must not outlive. Under another scope it is as if it had never been given out. */
  readonly scope: string;
}

/**
 * Seconds from the handshake in which a key was proved to the last one that is taken on its word. Short: who has got a new
 * certificate goes on with the old one for so long, and it should not run out meanwhile.
 */
export const TICKET_SECONDS = 600;
/** Name, MAC key and cipher key, as node wants them. */
const KEY_BYTES = 48;

/**
 * Servers that ask for a certificate and servers that do not have keys of their own: a session that began where nobody
 * asked does not go on where somebody would have, nor the other way round.
 */
const labelOf = (asked: boolean, scope: string): string =>
  `gatehouse tls tickets 1\n${asked ? 'asks' : 'asks nobody'}\n${scope}`;

export const ticketKeys = ({ secret, scope }: TicketMaterial, asked: boolean): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', labelOf(asked, scope), KEY_BYTES));

/** OpenSSL compares it too. Node's own choice is made of the command line, which replicas need not have in common. */
export const sessionContext = (scope: string, asked: boolean): string =>
  hash('sha256', labelOf(asked, scope), 'base64url').slice(0, 32);
