/**
 * The host name a TLS client asks for, read from its first bytes before the handshake begins (RFC 8446 §4.1.2,
 * RFC 6066 §3). The message may come in any number of records. Nothing here decides what an unreadable hello
 * means: the caller takes the stricter way.
 */
export type ClientHello =
  | { readonly kind: 'incomplete' }
  | { readonly kind: 'unreadable' }
  | { readonly kind: 'read'; readonly serverName: string | undefined };

const MAX_HELLO_BYTES = 16_384;
/** RFC 8446 §5.1. */
const RECORD_HEADER = 5;

const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const INCOMPLETE = { kind: 'incomplete' } as const;
const UNREADABLE = { kind: 'unreadable' } as const;

/** Of bytes that came at once. */
export const readClientHello = (bytes: Buffer): ClientHello => clientHelloReader()(bytes);

/** Takes the bytes as they come, and looks at each once: a client may send records of one byte, in a segment each. */
export function clientHelloReader(): (bytes: Buffer) => ClientHello {
  const header = Buffer.alloc(RECORD_HEADER);
  let ofHeader = 0;
  /** What is missing of the record. */
  let missing = 0;
  const parts: Buffer[] = [];
  /** The type and the length of the message. */
  const head = Buffer.alloc(4);
  let gathered = 0;
  let received = 0;
  return (bytes) => {
    received += bytes.length;
    if (received > MAX_HELLO_BYTES) return UNREADABLE;
    for (let at = 0; at < bytes.length; ) {
      if (missing === 0) {
        header[ofHeader] = bytes[at] as number;
        at += 1;
        ofHeader += 1;
        if (header[0] !== HANDSHAKE) return UNREADABLE;
        if (ofHeader < RECORD_HEADER) continue;
        ofHeader = 0;
        missing = header.readUInt16BE(3);
        // RFC 8446 §5.1: handshake records are never empty.
        if (header[1] !== 3 || missing === 0 || missing > 16_384) return UNREADABLE;
        continue;
      }
      const part = bytes.subarray(at, at + missing);
      if (gathered < head.length) part.copy(head, gathered);
      parts.push(part);
      gathered += part.length;
      missing -= part.length;
      at += part.length;
      if (head[0] !== CLIENT_HELLO) return UNREADABLE;
      if (gathered < head.length) continue;
      const size = head.readUIntBE(1, 3);
      if (size > MAX_HELLO_BYTES) return UNREADABLE;
      if (gathered >= head.length + size)
        return serverNameIn(Buffer.concat(parts, head.length + size).subarray(head.length));
    }
    return INCOMPLETE;
  };
}

/** Reads length-prefixed fields in order; every step checks its bounds. */
function reader(bytes: Buffer) {
  let at = 0;
  const take = (length: number): Buffer => {
    if (at + length > bytes.length) throw new RangeError('ends too soon');
    at += length;
    return bytes.subarray(at - length, at);
  };
  const number = (size: number): number => take(size).readUIntBE(0, size);
  return { take, number, vector: (size: number) => take(number(size)), left: () => bytes.length - at };
}

function serverNameIn(hello: Buffer): ClientHello {
  try {
    const fields = reader(hello);
    fields.take(2 + 32);
    fields.vector(1);
    fields.vector(2);
    fields.vector(1);
    if (fields.left() === 0) return { kind: 'read', serverName: undefined };
    const extensions = reader(fields.vector(2));
    if (fields.left() > 0) return UNREADABLE;
    let serverName: string | undefined;
    while (extensions.left() > 0) {
      const type = extensions.number(2);
      const content = extensions.vector(2);
      if (type !== SERVER_NAME) continue;
      if (serverName !== undefined) return UNREADABLE;
      serverName = hostIn(content);
      if (serverName === undefined) return UNREADABLE;
    }
    return { kind: 'read', serverName };
  } catch {
    return UNREADABLE;
  }
}

function hostIn(content: Buffer): string | undefined {
  const outer = reader(content);
  const names = reader(outer.vector(2));
  const type = names.number(1);
  const name = names.vector(2).toString('latin1');
  if (type !== 0 || names.left() > 0 || outer.left() > 0) return undefined;
  return /^[A-Za-z0-9_.-]{1,255}$/.test(name) ? hostName(name) : undefined;
}

/** Host names compare without case and without the dot of the root. */
export const hostName = (text: string): string => text.toLowerCase().replace(/\.$/, '');
