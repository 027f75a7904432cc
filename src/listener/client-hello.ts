/** The result of looking for the server name in a ClientHello (RFC 8446 §4.1.2, RFC 6066 §3). */
export type ClientHello =
  | { readonly kind: 'incomplete' }
  | { readonly kind: 'malformed' }
  | { readonly kind: 'parsed'; readonly serverName: string | undefined };

const MAX_HELLO_BYTES = 16_384;
/** RFC 8446 §5.1. */
const RECORD_HEADER = 5;

const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const INCOMPLETE = { kind: 'incomplete' } as const;
const MALFORMED = { kind: 'malformed' } as const;

/** Takes the bytes as they arrive and reads each once: the message may span any number of records and segments. */
export function createClientHelloReader(): (bytes: Buffer) => ClientHello {
  const recordHeader = Buffer.alloc(RECORD_HEADER);
  let recordHeaderLength = 0;
  let recordRemaining = 0;
  const parts: Buffer[] = [];
  /** Type and length of the handshake message. */
  const messageHeader = Buffer.alloc(4);
  let messageLength = 0;
  let received = 0;
  return (bytes) => {
    received += bytes.length;
    if (received > MAX_HELLO_BYTES) return MALFORMED;
    for (let at = 0; at < bytes.length; ) {
      if (recordRemaining === 0) {
        recordHeader[recordHeaderLength] = bytes[at] as number;
        at += 1;
        recordHeaderLength += 1;
        if (recordHeader[0] !== HANDSHAKE) return MALFORMED;
        if (recordHeaderLength < RECORD_HEADER) continue;
        recordHeaderLength = 0;
        recordRemaining = recordHeader.readUInt16BE(3);
        // RFC 8446 §5.1: handshake records are never empty.
        if (recordHeader[1] !== 3 || recordRemaining === 0 || recordRemaining > 16_384) return MALFORMED;
        continue;
      }
      const part = bytes.subarray(at, at + recordRemaining);
      if (messageLength < messageHeader.length) part.copy(messageHeader, messageLength);
      parts.push(part);
      messageLength += part.length;
      recordRemaining -= part.length;
      at += part.length;
      if (messageHeader[0] !== CLIENT_HELLO) return MALFORMED;
      if (messageLength < messageHeader.length) continue;
      const size = messageHeader.readUIntBE(1, 3);
      if (size > MAX_HELLO_BYTES) return MALFORMED;
      const end = messageHeader.length + size;
      if (messageLength >= end) return parseServerName(Buffer.concat(parts, end).subarray(messageHeader.length));
    }
    return INCOMPLETE;
  };
}

/** Reads length-prefixed fields in order, with bounds checks. */
class FieldReader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  take(length: number): Buffer {
    this.#at += length;
    if (this.#at > this.#bytes.length) throw new RangeError('the ClientHello is truncated');
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  readUint(size: number): number {
    return this.take(size).readUIntBE(0, size);
  }

  readVector(lengthSize: number): Buffer {
    return this.take(this.readUint(lengthSize));
  }
}

function parseServerName(hello: Buffer): ClientHello {
  try {
    const fields = new FieldReader(hello);
    // Version and random, session id, cipher suites, compression methods.
    fields.take(2 + 32);
    fields.readVector(1);
    fields.readVector(2);
    fields.readVector(1);
    if (fields.isAtEnd) return { kind: 'parsed', serverName: undefined };
    const extensions = new FieldReader(fields.readVector(2));
    if (!fields.isAtEnd) return MALFORMED;
    let serverName: string | undefined;
    while (!extensions.isAtEnd) {
      const type = extensions.readUint(2);
      const content = extensions.readVector(2);
      if (type !== SERVER_NAME) continue;
      if (serverName !== undefined) return MALFORMED;
      serverName = parseHostName(content);
      if (serverName === undefined) return MALFORMED;
    }
    return { kind: 'parsed', serverName };
  } catch {
    return MALFORMED;
  }
}

function parseHostName(content: Buffer): string | undefined {
  const list = new FieldReader(content);
  const names = new FieldReader(list.readVector(2));
  const type = names.readUint(1);
  const name = names.readVector(2).toString('latin1');
  if (type !== 0 || !names.isAtEnd || !list.isAtEnd) return undefined;
  return /^[A-Za-z0-9_.-]{1,255}$/.test(name) ? normalizeServerName(name) : undefined;
}

/** Host names are case-insensitive; a trailing dot does not matter. */
export const normalizeServerName = (text: string): string => text.toLowerCase().replace(/\.$/, '');
