import type { Socket } from 'node:net';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { Fault } from '../ports/fault.ts';

/** RFC 4511 §4.14.1: an extended request of the name 1.3.6.1.4.1.1466.20037, as message 1. */
const NAME = Buffer.from('1.3.6.1.4.1.1466.20037');
const REQUEST = Buffer.concat([Buffer.from('301d02010177188016', 'hex'), NAME]);
const MAX_ANSWER = 64 * 1_024;

/**
 * Turns a plain connection to an LDAP server into one with TLS. Whatever comes in the clear behind the server's answer
 * was put there by somebody in the middle, to be taken for what the server says under TLS: it ends the connection.
 * That is why this is not left to the LDAP library, which would keep it.
 */
export async function startTls(plain: Socket, tls: ConnectionOptions): Promise<TLSSocket> {
  plain.write(REQUEST);
  const code = resultIn(await oneMessage(plain));
  if (code !== 0) throw away(`StartTLS was refused (result ${code})`);
  const secure = connect({ ...tls, socket: plain });
  await new Promise<void>((resolve, reject) => {
    secure.once('secureConnect', resolve).once('error', reject);
    // An end without an error, as when our own patience is over.
    secure.once('close', () => reject(new Error('Connection closed')));
    plain.once('close', () => reject(new Error('Connection closed')));
  });
  return secure;
}

const away = (why: string): Fault => new Fault('directory_unavailable', `LDAP: ${why}`, { retryAfter: 2 });

/** The bytes of one message, and not one more. */
function oneMessage(socket: Socket): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let bytes: Buffer = Buffer.alloc(0);
    const end = (settle: () => void): void => {
      socket.off('data', onData).off('error', onError).off('close', onClose).pause();
      settle();
    };
    const onError = (error: Error): void => end(() => reject(error));
    const onClose = (): void => end(() => reject(new Error('Connection closed')));
    const onData = (part: Buffer): void => {
      bytes = Buffer.concat([bytes, part]);
      const message = elementAt(bytes, 0);
      if (message !== undefined && message.end === bytes.length) return end(() => resolve(bytes));
      const isOdd = bytes[0] !== 0x30 || bytes.length > MAX_ANSWER;
      if (isOdd || (message !== undefined && message.end < bytes.length))
        end(() => reject(away('the answer to StartTLS is not one message')));
    };
    socket.on('data', onData).on('error', onError).on('close', onClose);
  });
}

/** Where the contents of an element begin and end (X.690 §8.1); undefined while that cannot be told. */
function elementAt(bytes: Buffer, at: number): { readonly start: number; readonly end: number } | undefined {
  const first = bytes[at + 1];
  if (first === undefined) return undefined;
  if (first < 0x80) return { start: at + 2, end: at + 2 + first };
  const count = first & 0x7f;
  const start = at + 2 + count;
  // Active Directory writes every length in four bytes.
  if (count < 1 || count > 4) return { start, end: Number.POSITIVE_INFINITY };
  return bytes.length < start ? undefined : { start, end: start + bytes.readUIntBE(at + 2, count) };
}

/** The result code of an extended response to message 1; -1 for anything else. */
function resultIn(bytes: Buffer): number {
  let at = elementAt(bytes, 0)?.start ?? bytes.length;
  const isMessageOne = bytes.subarray(at, at + 3).equals(Buffer.from([0x02, 0x01, 0x01]));
  at += 3;
  if (!isMessageOne || bytes[at] !== 0x78) return -1;
  at = elementAt(bytes, at)?.start ?? bytes.length;
  return bytes[at] === 0x0a && bytes[at + 1] === 0x01 ? (bytes[at + 2] ?? -1) : -1;
}
