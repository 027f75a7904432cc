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

const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const INCOMPLETE = { kind: 'incomplete' } as const;
const UNREADABLE = { kind: 'unreadable' } as const;

export function readClientHello(bytes: Buffer): ClientHello {
  const parts: Buffer[] = [];
  let gathered = 0;
  for (let at = 0; ; ) {
    if (bytes.length > MAX_HELLO_BYTES) return UNREADABLE;
    if (at < bytes.length && bytes[at] !== HANDSHAKE) return UNREADABLE;
    if (at + 5 > bytes.length) return INCOMPLETE;
    const length = bytes.readUInt16BE(at + 3);
    // RFC 8446 §5.1: handshake records are never empty.
    if (bytes[at + 1] !== 3 || length === 0 || length > 16_384) return UNREADABLE;
    const part = bytes.subarray(at + 5, at + 5 + length);
    parts.push(part);
    gathered += part.length;
    at += 5 + length;
    const message = Buffer.concat(parts, gathered);
    if (message.length > 0 && message[0] !== CLIENT_HELLO) return UNREADABLE;
    if (message.length >= 4) {
      const size = message.readUIntBE(1, 3);
      if (size > MAX_HELLO_BYTES) return UNREADABLE;
      if (message.length >= 4 + size) return serverNameIn(message.subarray(4, 4 + size));
    }
    if (part.length < length) return INCOMPLETE;
  }
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
