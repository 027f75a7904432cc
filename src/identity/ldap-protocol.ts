import type { Socket } from 'node:net';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import type { BerReader } from 'ldapts';
import { Fault } from '../ports/fault.ts';

/** RFC 4511 §4.14.1: an extended request with message id 1. */
const START_TLS_OID = Buffer.from('1.3.6.1.4.1.1466.20037');
const START_TLS_REQUEST = Buffer.concat([Buffer.from('301d02010177188016', 'hex'), START_TLS_OID]);
const MAX_RESPONSE_BYTES = 64 * 1_024;

/**
 * Upgrades a connection to an LDAP server to TLS. Plaintext after the StartTLS response was injected by an attacker and
 * closes the connection; ldapts would process it as if it had been received over TLS.
 */
export async function startTls(plain: Socket, tls: ConnectionOptions): Promise<TLSSocket> {
  plain.write(START_TLS_REQUEST);
  const code = parseResultCode(await readSingleMessage(plain));
  if (code !== 0) throw createUnavailableFault(`StartTLS was refused (result ${code})`);
  const secure = connect({ ...tls, socket: plain });
  await new Promise<void>((resolve, reject) => {
    secure.once('secureConnect', resolve).once('error', reject);
    // Without an error event, for example after a timeout.
    secure.once('close', () => reject(new Error('Connection closed')));
    plain.once('close', () => reject(new Error('Connection closed')));
  });
  return secure;
}

export const createUnavailableFault = (reason: string): Fault =>
  new Fault('directory_unavailable', `LDAP: ${reason}`, { retryAfter: 2 });

/** Rejects if more bytes follow the message. */
function readSingleMessage(socket: Socket): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let bytes: Buffer = Buffer.alloc(0);
    const finish = (settle: () => void): void => {
      socket.off('data', onData).off('error', onError).off('close', onClose).pause();
      settle();
    };
    const onError = (error: Error): void => finish(() => reject(error));
    const onClose = (): void => finish(() => reject(new Error('Connection closed')));
    const onData = (chunk: Buffer): void => {
      bytes = Buffer.concat([bytes, chunk]);
      const message = readElement(bytes, 0);
      if (message !== undefined && message.end === bytes.length) return finish(() => resolve(bytes));
      const isMalformed = bytes[0] !== 0x30 || bytes.length > MAX_RESPONSE_BYTES;
      if (isMalformed || (message !== undefined && message.end < bytes.length))
        finish(() => reject(createUnavailableFault('the StartTLS response is not a single message')));
    };
    socket.on('data', onData).on('error', onError).on('close', onClose);
  });
}

/** Offsets of the contents of a BER element (X.690 §8.1); undefined while its header is incomplete. */
function readElement(bytes: Buffer, offset: number): { start: number; end: number } | undefined {
  const lengthByte = bytes[offset + 1];
  if (lengthByte === undefined) return undefined;
  if (lengthByte < 0x80) return { start: offset + 2, end: offset + 2 + lengthByte };
  const lengthBytes = lengthByte & 0x7f;
  const start = offset + 2 + lengthBytes;
  // Active Directory encodes all lengths in four bytes.
  if (lengthBytes < 1 || lengthBytes > 4) return { start, end: Number.POSITIVE_INFINITY };
  return bytes.length < start ? undefined : { start, end: start + bytes.readUIntBE(offset + 2, lengthBytes) };
}

/** The result code of an extended response to message 1; -1 for anything else. */
function parseResultCode(bytes: Buffer): number {
  let offset = readElement(bytes, 0)?.start ?? bytes.length;
  const isMessageOne = bytes.subarray(offset, offset + 3).equals(Buffer.from([0x02, 0x01, 0x01]));
  offset += 3;
  if (!isMessageOne || bytes[offset] !== 0x78) return -1;
  offset = readElement(bytes, offset)?.start ?? bytes.length;
  return bytes[offset] === 0x0a && bytes[offset + 1] === 0x01 ? (bytes[offset + 2] ?? -1) : -1;
}

interface Reader extends Pick<BerReader, 'length' | 'offset'> {
  readLength: (this: Reader, offset?: number) => number | null;
  readSequence: (this: Reader, tag?: number) => number | null;
  readString: (this: Reader, tag?: number, asBuffer?: boolean) => unknown;
  readTag: (this: Reader, tag: number) => number | null;
}

const limited = new WeakSet<object>();

/**
 * Rejects messages whose values exceed the message. ldapts 9.2.0 treats such a value as missing and reads it again, so that a
 * damaged response of a few bytes would exhaust the memory; and it takes lengths of 2³¹ and more for negative.
 */
export function rejectTruncatedValues(readerClass: typeof BerReader): void {
  const reader = readerClass.prototype as unknown as Reader;
  if (limited.has(reader)) return;
  limited.add(reader);
  const { readLength, readSequence, readString, readTag } = reader;
  const requireValue = <T>(value: T): T => {
    if (value === null) throw new Error('a value exceeds its message');
    return value;
  };
  reader.readLength = function (offset) {
    const next = readLength.call(this, offset);
    if (this.length < 0) throw new Error('a length out of range');
    return next;
  };
  reader.readSequence = function (tag) {
    // At the beginning, the message may not have arrived completely.
    const isFirst = this.offset === 0;
    const found = readSequence.call(this, tag);
    return isFirst ? found : requireValue(found);
  };
  reader.readString = function (tag, asBuffer) {
    return requireValue(readString.call(this, tag, asBuffer));
  };
  reader.readTag = function (tag) {
    return requireValue(readTag.call(this, tag));
  };
}
